"""What looks at the database again and again rests until someone has written to it."""

from __future__ import annotations

import asyncio

import pytest

from retinue.manager.store.postgres.writes import Snapshot, Writes, has_changed
from tests.support.eventually import NEVER


@pytest.mark.parametrize(
    ("before", "now", "own", "changed"),
    [
        # Nobody has written.
        (Snapshot(5, 100, 100), Snapshot(5, 100, 100), 0, False),
        # The lease was renewed twice, and by nothing else.
        (Snapshot(5, 100, 100), Snapshot(7, 102, 102), 0, False),
        # Beside that this process wrote what matters to nobody.
        (Snapshot(5, 100, 100), Snapshot(7, 103, 103), 1, False),
        # Another transaction has ended, in either way.
        (Snapshot(5, 100, 100), Snapshot(7, 103, 103), 0, True),
        (Snapshot(5, 100, 100), Snapshot(5, 101, 101), 0, True),
        # One is under way, or was: it may have ended since, and that takes no number.
        (Snapshot(5, 100, 100), Snapshot(6, 100, 102), 0, True),
        (Snapshot(5, 99, 101), Snapshot(6, 102, 102), 0, True),
        # The numbers begin anew: the database was restored.
        (Snapshot(5, 100, 100), Snapshot(2, 40, 40), 0, True),
        (None, Snapshot(5, 100, 100), 0, True),
    ],
)
def test_a_snapshot_says_whether_anyone_has_written(
    before: Snapshot | None, now: Snapshot, own: int, *, changed: bool
) -> None:
    assert has_changed(before, now, own) is changed


@pytest.mark.asyncio
async def test_a_rest_ends_with_the_next_write() -> None:
    writes = Writes()
    with writes.watching():
        writes.look(Snapshot(5, 100, 100), 0)
        seen = writes.number
        resting = asyncio.create_task(writes.rest(asyncio.Event(), seen, 0.0, NEVER))
        for renewal in (6, 7):
            writes.look(Snapshot(renewal, 95 + renewal, 95 + renewal), 0)
            await asyncio.sleep(0)
        assert writes.knows_none_since(seen)
        writes.look(Snapshot(8, 104, 104), 0)
        await resting
        assert not writes.knows_none_since(seen)


@pytest.mark.asyncio
async def test_a_rest_does_not_begin_after_a_write() -> None:
    writes = Writes()
    with writes.watching():
        seen = writes.number
        writes.note()
        await writes.rest(asyncio.Event(), seen, 0.0, NEVER)


@pytest.mark.asyncio
async def test_a_rest_ends_when_it_is_asked_for_and_when_writes_are_not_seen_any_more() -> None:
    writes, changed = Writes(), asyncio.Event()
    with writes.watching():
        resting = [asyncio.create_task(writes.rest(event, 0, 0.0, NEVER)) for event in (changed, asyncio.Event())]
        await asyncio.sleep(0)
        changed.set()
        await resting[0]
    await resting[1]


@pytest.mark.asyncio
async def test_without_a_watch_only_the_pause_counts() -> None:
    writes = Writes()
    await writes.rest(asyncio.Event(), writes.number, 0.0, NEVER)
    assert not writes.knows_none_since(writes.number)
