"""A watch resumed at any revision gives the same stream, however many write at once."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from retinue.client.errors import InvalidRequest, OutOfRange
from retinue.client.session_view import fold
from retinue.manager.v1 import session_pb2

if TYPE_CHECKING:
    from retinue.client.aio import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")

WRITERS = 12
CANCELLED = session_pb2.SESSION_STATE_CANCELLED


async def collect(client: Client, after: int, until: int) -> list[session_pb2.SessionEvent]:
    events = []
    async with aclosing(client.sessions.watch(after_revision=after)) as stream:
        async for event in stream:
            events.append(event)
            if event.revision >= until:
                break
    return events


async def test_resumed_at_every_revision_the_stream_is_the_same(client: Client) -> None:
    begin = (await client.sessions.create(type="batch", command=["true"], slots={"cpu": "64"})).revision

    async def write(number: int) -> None:
        session = await client.sessions.create(
            type="batch", command=["true"], slots={"cpu": "64"}, name=f"writer-{number}"
        )
        await session.terminate()

    async with asyncio.TaskGroup() as group:
        live = group.create_task(collect_until_quiet(client, begin - 1))
        for number in range(WRITERS):
            group.create_task(write(number))
    events = live.result()
    revisions = [event.revision for event in events]
    assert revisions == sorted(set(revisions))
    assert len({event.session_id for event in events if event.HasField("created")}) == WRITERS + 1
    last = revisions[-1]
    for position, revision in enumerate(revisions[:-1]):
        resumed = await collect(client, revision, last)
        assert resumed == events[position + 1 :], f"resumed after {revision}"
    folded: dict[str, session_pb2.Session | None] = {}
    for event in events:
        folded[event.session_id] = fold(folded.get(event.session_id), event)
    writers = [session async for session in client.sessions.list(show_ended=True) if session.name.startswith("writer-")]
    assert len(writers) == WRITERS
    for session in writers:
        view = folded[session.id]
        assert view is not None
        assert (view.state, view.reason) == (session.view.state, session.view.reason)
    async for session in client.sessions.list():
        await session.terminate()


async def collect_until_quiet(client: Client, after: int) -> list[session_pb2.SessionEvent]:
    """Events until every writer's session is cancelled."""
    events: list[session_pb2.SessionEvent] = []
    ended: set[str] = set()
    async with aclosing(client.sessions.watch(after_revision=after)) as stream:
        async for event in stream:
            events.append(event)
            if event.HasField("session_moved") and event.session_moved.to_state == session_pb2.SESSION_STATE_CANCELLED:
                ended.add(event.session_id)
            if len(ended) == WRITERS:
                return events
    return events


async def test_a_filter_lets_all_events_of_a_session_through_or_none(client: Client) -> None:
    made = [
        await client.sessions.create(type="batch", command=["true"], slots={"cpu": "64"}, labels={"team": team})
        for team in ("red", "blue", "red")
    ]
    begin = made[0].revision - 1
    for session in made:
        await session.terminate()

    async def seen(text: str) -> list[tuple[str, str | None]]:
        found: list[tuple[str, str | None]] = []
        stream = client.sessions.watch(after_revision=begin, filter=text)
        async with aclosing(stream) as events:
            async for event in events:
                found.append((event.session_id, event.WhichOneof("change")))
                if event.session_id == made[-1].id and event.session_moved.to_state == CANCELLED:
                    return found
        return found

    everything = await seen("")
    for text, kept in (
        ('labels.team = "red"', made[::2]),
        ('labels.team != "blue" AND type = "SESSION_TYPE_BATCH"', made[::2]),
        (f'id = "{made[2].id}"', made[2:]),
    ):
        ids = {session.id for session in kept}
        assert await seen(text) == [event for event in everything if event[0] in ids], text
    assert {session_id for session_id, _ in everything} == {session.id for session in made}


@pytest.mark.parametrize("text", ['state = "RUNNING"', 'result = "SUCCESS"', 'secret = "x"', "x"])
async def test_a_filter_of_what_changes_is_refused(client: Client, text: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        async for _ in client.sessions.watch(filter=text):
            pass
    assert [violation.field for violation in raised.value.violations] == ["filter"]


async def test_a_revision_that_is_not_there_yet_is_refused(client: Client) -> None:
    with pytest.raises(OutOfRange) as raised:
        async for _ in client.sessions.watch(after_revision=2**40):
            pass
    assert raised.value.reason == "REVISION_IN_FUTURE"
    assert int(raised.value.metadata["newest"]) >= 0


async def test_one_sessions_watch_ends_with_it(client: Client) -> None:
    session = await client.sessions.create(type="batch", command=["true"])
    assert session.revision is not None
    stream = client.sessions.watch(after_revision=session.revision - 1, session_id=session.id, until_ended=True)
    events = [event async for event in stream]
    assert {event.session_id for event in events} == {session.id}
    assert events[0].HasField("created")
    assert events[-1].session_moved.to_state == session_pb2.SESSION_STATE_TERMINATED
    kernel_states = [event.kernel_moved.to_state for event in events if event.HasField("kernel_moved")]
    assert kernel_states
    assert kernel_states == sorted(kernel_states)
