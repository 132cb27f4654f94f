"""What a call that changes a session returns is where following it continues: nothing is read again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc.aio

from retinue.client.aio import Client
from retinue.client.sessions import Session
from retinue.manager.v1 import session_pb2 as pb
from retinue.manager.v1 import session_service_pb2 as service_pb
from retinue.manager.v1 import session_service_pb2_grpc as service_grpc
from retinue.manager.v1.journal_position_pb2 import JournalPosition

Connect = Callable[[Callable[[grpc.aio.Server], None]], Awaitable[Client]]


class Servicer(service_grpc.SessionServiceServicer):
    """Knows one session, which ends at revision 9; does not implement GetSession."""

    def __init__(self) -> None:
        self.watched: list[tuple[int, str]] = []

    async def TerminateSession(
        self, request: service_pb.TerminateSessionRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> service_pb.TerminateSessionResponse:
        session = pb.Session(id=request.session, state=pb.SESSION_STATE_TERMINATING)
        return service_pb.TerminateSessionResponse(
            session=session, position=JournalPosition(revision=8, incarnation="i")
        )

    async def ExtendSession(
        self, request: service_pb.ExtendSessionRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> service_pb.ExtendSessionResponse:
        session = pb.Session(id=request.session, state=pb.SESSION_STATE_RUNNING)
        return service_pb.ExtendSessionResponse(session=session, position=JournalPosition(revision=7, incarnation="i"))

    async def WatchSessions(
        self, request: service_pb.WatchSessionsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[service_pb.WatchSessionsResponse]:
        self.watched.append((request.after.revision, request.after.incarnation))
        event = pb.SessionEvent(revision=9, session_id=request.session_id)
        event.session_moved.to_state = pb.SESSION_STATE_TERMINATED
        yield service_pb.WatchSessionsResponse(position=JournalPosition(revision=9, incarnation="i"), events=[event])


async def test_the_end_is_followed_from_the_reply(connect: Connect) -> None:
    servicer = Servicer()
    client = await connect(lambda server: service_grpc.add_SessionServiceServicer_to_server(servicer, server))
    ended = await (await client.sessions.terminate("s")).wait_ended(30)
    assert (ended.state, servicer.watched) == ("TERMINATED", [(8, "i")])


async def test_a_session_in_hand_is_as_the_reply_says(connect: Connect) -> None:
    servicer = Servicer()
    client = await connect(lambda server: service_grpc.add_SessionServiceServicer_to_server(servicer, server))
    session = Session(client.sessions, pb.Session(id="s", state=pb.SESSION_STATE_RUNNING), 3, "i")
    assert (await session.extend()).revision == 7
    assert (await session.terminate()).state == "TERMINATING"
    await session.wait_ended(30)
    assert (session.state, servicer.watched) == ("TERMINATED", [(8, "i")])
