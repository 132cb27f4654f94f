"""Any number of sessions can be waited for over a few streams, and none misses what happened to it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio
import pytest

from retinue.client import shared_watch as sharing
from retinue.client.aio import Client, Unavailable
from retinue.client.sessions import OWN_STREAMS, Session
from retinue.client.shared_watch import SharedWatch
from retinue.manager.v1 import session_pb2 as pb
from retinue.manager.v1 import session_service_pb2 as service_pb
from retinue.manager.v1 import session_service_pb2_grpc as service_grpc
from retinue.manager.v1.journal_position_pb2 import JournalPosition
from tests.support.eventually import NEVER, eventually
from tests.unit.client.journal import refuse

Connect = Callable[[Callable[[grpc.aio.Server], None]], Awaitable[Client]]
SESSIONS = 1000
MAX_STREAMS = 16
STATES = (pb.SESSION_STATE_RUNNING, pb.SESSION_STATE_TERMINATED)


class Servicer(service_grpc.SessionServiceServicer):
    """Serves a journal that grows, to a few streams at a time."""

    def __init__(self) -> None:
        self.events: list[pb.SessionEvent] = []
        self.grown = asyncio.Event()
        self.open = self.most = 0

    def add(self, session_id: str, state: pb.SessionState.ValueType) -> None:
        event = pb.SessionEvent(revision=len(self.events) + 1, session_id=session_id)
        event.session_moved.to_state = state
        self.events.append(event)
        self.grown.set()
        self.grown = asyncio.Event()

    async def WatchSessions(  # type: ignore[override]  # it writes to the context by itself
        self, request: service_pb.WatchSessionsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        if self.open >= MAX_STREAMS:
            await refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "STREAM_LIMIT", limit=str(MAX_STREAMS))
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            position = request.after.revision
            while True:
                grown = self.grown
                for event in self.events[position:]:
                    position = event.revision
                    if request.session_id in ("", event.session_id):
                        # Not by `yield`: a generator whose caller goes while it writes is left
                        # to the garbage collector.
                        response = service_pb.WatchSessionsResponse(
                            position=JournalPosition(revision=position, incarnation="i"), events=[event]
                        )
                        await context.write(response)
                await grown.wait()
        finally:
            self.open -= 1


async def test_a_thousand_waits_take_a_few_streams(connect: Connect) -> None:
    servicer = Servicer()
    client = await connect(lambda server: service_grpc.add_SessionServiceServicer_to_server(servicer, server))
    ids = [str(uuid.UUID(int=number)) for number in range(SESSIONS)]
    # What happened before they were last seen.
    for session_id in ids:
        servicer.add(session_id, pb.SESSION_STATE_PENDING)
    handles = [
        Session(client.sessions, pb.Session(id=session_id, state=pb.SESSION_STATE_PENDING), number + 1, "i")
        for number, session_id in enumerate(ids)
    ]
    # Half of them pass through the state that is waited for before anything is asked.
    for session_id in ids[::2]:
        servicer.add(session_id, pb.SESSION_STATE_RUNNING)
    async with asyncio.timeout(NEVER):
        waits = [asyncio.create_task(handle.wait("RUNNING")) for handle in handles]
        await asyncio.gather(*waits[::2])
        for session_id in ids[1::2]:
            servicer.add(session_id, pb.SESSION_STATE_RUNNING)
        await asyncio.gather(*waits)
        ends = [asyncio.create_task(handle.wait_ended()) for handle in handles]
        for session_id in ids:
            servicer.add(session_id, pb.SESSION_STATE_TERMINATED)
        assert {handle.state for handle in await asyncio.gather(*ends)} == {"TERMINATED"}
        await eventually(lambda: not servicer.open)
    # While one ends on either side, the next may begin.
    assert servicer.most <= 2 * (OWN_STREAMS + 1)


def event(revision: int, session_id: str) -> pb.SessionEvent:
    return pb.SessionEvent(revision=revision, session_id=session_id)


class Source:
    """What a shared watch reads, given by the test."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.items: asyncio.Queue[pb.SessionEvent | Exception] = asyncio.Queue()

    async def watch(self, after: int, incarnation: str) -> AsyncGenerator[pb.SessionEvent, None]:
        self.begun.append(after)
        while True:
            item = await self.items.get()
            if isinstance(item, Exception):
                raise item
            yield item


async def test_a_follower_gets_what_was_before_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "MAX_KEPT", 3)
    source = Source()
    shared = SharedWatch(source.watch)
    for number in range(1, 6):
        source.items.put_nowait(event(number, "ab"[number % 2]))
    async with aclosing(shared.events("b", 0, "i")) as first:
        assert [(await anext(first)).revision for _ in range(3)] == [1, 3, 5]
        # 3, 4 and 5 are kept.
        assert [shared.covers(revision, "i") for revision in range(4)] == [False, False, True, True]
        assert not shared.covers(4, "another history")
        async with aclosing(shared.events("a", 2, "i")) as second:
            assert (await anext(second)).revision == 4
        async with aclosing(shared.events("b", 3, "i")) as third:
            assert (await anext(third)).revision == 5
    assert source.begun == [0]
    # With the last follower the stream ends.
    async with aclosing(shared.events("b", 5, "i")) as again:
        source.items.put_nowait(event(6, "b"))
        assert (await anext(again)).revision == 6
    assert source.begun == [0, 5]


async def test_a_failure_is_that_of_all_followers() -> None:
    source = Source()
    shared = SharedWatch(source.watch)
    followers = [shared.events(name, 0, "i") for name in "aab"]
    waiting = [asyncio.ensure_future(anext(follower)) for follower in followers]
    await asyncio.sleep(0)
    source.items.put_nowait(Unavailable("gone", code=grpc.StatusCode.UNAVAILABLE, request_id=""))
    for wait in waiting:
        with pytest.raises(Unavailable):
            await wait
    assert shared.covers(0, "whatever comes next")
