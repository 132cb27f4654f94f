"""A program as users write it, which has to please every type checker at its strictest; scripts/check-user-types."""

import asyncio
import datetime as dt
from typing import assert_type

from retinue.client import Client, Completed, NotFound, Session, SessionEnded, SessionOptions, aio
from retinue.client.errors import CallError
from retinue.manager.v1 import kernel_service_pb2, session_pb2, session_service_pb2, session_service_pb2_grpc
from retinue.types.v1 import code_pb2

OPTIONS: SessionOptions = {"slots": {"cpu": 2, "mem": "4g"}, "command": ["true"]}


def blocking(client: Client) -> str:
    """Calls of the form that blocks."""
    done = client.run(["true"], slots={"cpu": 2}, output=lambda chunk: print(chunk.data))
    assert_type(done, Completed)
    assert_type(done.session, session_pb2.Session)
    print(done.text, done.exit_code, done.session.state == session_pb2.SESSION_STATE_TERMINATED)
    session = client.sessions.create(**OPTIONS)
    assert_type(session, Session)
    for chunk in session.logs(follow=True):
        print(chunk.stream, chunk.data.decode())
    with session.code() as code:
        assert_type(code.execute("6 * 7").value, str)
        for event in code.run("print(1)"):
            assert_type(event, code_pb2.CodeEvent)
    if session.state == "RUNNING" and session.result == "UNDEFINED":
        session.extend(dt.timedelta(hours=1)).wait("TERMINATED", timeout=dt.timedelta(minutes=1))
    client.sessions.create(type="interactive", isolation="container", time_limit=dt.timedelta(hours=1))
    try:
        session.wait_ended(timeout=60)
        assert_type(next(client.agents.list(limit=1)).id, str)
        return next(each.name for each in client.sessions.list(limit=1))
    except NotFound as error:
        return error.reason
    except SessionEnded as error:
        return error.session.id
    except CallError as error:
        return error.metadata["service"]


async def asynchronous() -> None:
    """Calls of the form for asyncio."""
    async with aio.Client.connect("localhost:7440", token="t", ca=b"c") as client:
        done = await client.run(["true"])
        assert_type(done, Completed)
        async for stats in client.sessions.stats():
            assert_type(stats, kernel_service_pb2.StreamStatsResponse)
        async with asyncio.timeout(9), (await client.sessions.get("lab")).attach(["ls"]) as command:
            async for piece in command:
                assert_type(piece.data, bytes)


def own_stub(stub: session_service_pb2_grpc.SessionServiceStub) -> str:
    """Calls by the generated code."""
    request = session_service_pb2.GetSessionRequest(session="lab")
    answer: session_service_pb2.GetSessionResponse = stub.GetSession(request)
    return answer.session.id
