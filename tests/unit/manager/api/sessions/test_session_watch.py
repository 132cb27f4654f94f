"""A watch until a session's end sends that end, at whatever moment of the look at the session it comes."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import uuid
from contextlib import aclosing
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from retinue.manager.api.sessions import watch
from retinue.manager.api.sessions.watch import serve_watch
from retinue.manager.domain.session.events import SessionMoved, UnreadableEvent
from retinue.manager.domain.session.states import Result, SessionState
from retinue.manager.store.journal import journal
from retinue.manager.store.journal.journal import Event
from retinue.manager.store.journal.journal_tail import PORTION
from retinue.manager.store.sessions import sessions
from retinue.manager.v1 import session_pb2
from retinue.manager.v1 import session_service_pb2 as pb
from retinue.manager.v1.journal_position_pb2 import JournalPosition

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SESSION = uuid.UUID(int=7)
MOVE = SessionMoved(SessionState.TERMINATING, SessionState.TERMINATED, Result.UNDEFINED)
UNREADABLE = UnreadableEvent("SESSION_MOVED", "it is empty")


class World:
    """A session that ends after so many looks at the database."""

    def __init__(self, looks: int) -> None:
        self._looks = looks

    def look(self) -> bool:
        """Whether it has ended by this look."""
        self._looks -= 1
        return self._looks < 0

    async def head(self, tx: Any) -> tuple[int, int, str]:
        return (2 if self.look() else 1), 0, "now"

    async def read_journal(self, tx: Any, after: int, limit: int, *, session_id: Any, incarnation: str) -> Any:
        return SimpleNamespace(events=[self.end()] if self.look() and after < 2 else [])

    async def read_session(self, tx: Any, ids: Any) -> dict[uuid.UUID, SimpleNamespace]:
        state = "TERMINATED" if self.look() else "TERMINATING"
        return {SESSION: SimpleNamespace(owner="ada", project="p", state=state)}

    def end(self) -> Event:
        return Event(2, dt.datetime.now(dt.UTC), SESSION, "ada", "p", MOVE)

    async def follow(self, after: int) -> AsyncIterator[list[Event]]:
        if after < 2:
            yield [self.end()]
        raise AssertionError("nothing comes any more: it would be waited for without end")

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        yield None


@pytest.mark.parametrize("looks", range(4))
async def test_the_end_is_sent_whenever_it_comes(looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world: Any = World(looks)
    monkeypatch.setattr(journal, "head", world.head)
    monkeypatch.setattr(journal, "read", world.read_journal)
    monkeypatch.setattr(sessions, "read", world.read_session)
    monkeypatch.setattr(watch, "caller_visibility", lambda: SimpleNamespace(can_read=lambda owner, project: True))
    monkeypatch.setattr(watch, "event_message", lambda event: session_pb2.SessionEvent(revision=event.revision))
    request = pb.WatchSessionsRequest(session_id=str(SESSION), until_ended=True, after=JournalPosition(revision=1))
    responses = [response async for response in serve_watch(world, world, request)]
    assert [event.revision for response in responses for event in response.events] == [2]


async def test_an_entry_that_cannot_be_read_does_not_break_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    world: Any = World(9)

    async def follow(after: int) -> AsyncIterator[list[Event]]:
        yield [replace(world.end(), body=UNREADABLE)]
        yield [replace(world.end(), revision=3)]

    monkeypatch.setattr(world, "follow", follow)
    monkeypatch.setattr(journal, "head", world.head)
    monkeypatch.setattr(journal, "read", world.read_journal)
    monkeypatch.setattr(sessions, "read", world.read_session)
    monkeypatch.setattr(watch, "caller_visibility", lambda: SimpleNamespace(can_read=lambda owner, project: True))
    request = pb.WatchSessionsRequest(session_id=str(SESSION), until_ended=True, after=JournalPosition(revision=1))
    responses = [response async for response in serve_watch(world, world, request)]
    events = [event for response in responses for event in response.events]
    assert [(event.revision, event.WhichOneof("change")) for event in events] == [(2, None), (3, "session_moved")]


async def test_an_interval_passes_before_the_next_portion_unless_one_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    world: Any = World(9)
    event, slept, sleep = world.end(), list[float](), asyncio.sleep

    async def follow(after: int) -> AsyncIterator[list[Event]]:
        for number in (PORTION, PORTION, 1, 2, PORTION, 1):
            yield [event] * number

    async def note(seconds: float) -> None:
        slept.append(seconds)
        await sleep(0)

    monkeypatch.setattr(world, "follow", follow)
    monkeypatch.setattr(asyncio, "sleep", note)
    sizes: list[int] = []
    async with aclosing(watch.portions(world, 1, None, 0.25)) as found:
        async for _, events in found:
            sizes.append(len(events))
            if len(sizes) == 6:
                break
    assert sizes == [PORTION, PORTION, 1, 2, PORTION, 1]
    assert slept == [0.25, 0.25]
