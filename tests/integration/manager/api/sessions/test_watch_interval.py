"""A watch with an interval gets what happens in a busy time together, and misses and repeats nothing."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.duration_pb2 import Duration

from retinue.manager.api.sessions import watch as module
from retinue.manager.v1 import session_pb2
from retinue.manager.v1 import session_service_pb2 as pb
from retinue.manager.v1.journal_position_pb2 import JournalPosition

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.integration.manager.api.sessions.ada import Ada

pytestmark = pytest.mark.asyncio(loop_scope="session")

SESSIONS = 30
INTERVAL = 1


async def created(watch: Any) -> AsyncIterator[list[str]]:
    """The sessions of each response that has any."""
    async for response in watch:
        if found := [event.session_id for event in response.events if event.HasField("created")]:
            yield found


async def test_events_of_a_busy_time_come_together(ada: Ada, monkeypatch: pytest.MonkeyPatch) -> None:
    over = asyncio.Event()

    async def sleep(seconds: float) -> None:
        await (over.wait() if seconds == INTERVAL else asyncio.sleep(seconds))

    async def create() -> str:
        request = pb.CreateSessionRequest()
        request.spec.type, request.spec.kernel.slots["cpu"] = session_pb2.SESSION_TYPE_INTERACTIVE, "1"
        session_id: str = (await ada.stub.CreateSession(request, metadata=ada.metadata)).session.id
        return session_id

    monkeypatch.setattr(module, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
    requests = (
        pb.WatchSessionsRequest(after=JournalPosition(revision=0)),
        pb.WatchSessionsRequest(after=JournalPosition(revision=0), min_interval=Duration(seconds=INTERVAL)),
    )
    watches = [ada.stub.WatchSessions(request, metadata=ada.metadata) for request in requests]
    plain, batched = map(created, watches)
    made = [await create()]
    assert (await anext(plain), await anext(batched)) == (made, made)
    for _ in range(SESSIONS):
        made.append(await create())
        assert await anext(plain) == made[-1:]
    rest = asyncio.ensure_future(anext(batched))
    # What another watch has is there for this one, too.
    made.append(await create())
    assert await anext(plain) == made[-1:]
    assert not rest.done()
    over.set()
    assert await rest == made[1:]
    for watch in watches:
        watch.cancel()
