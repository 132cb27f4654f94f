"""The journal is ordered, without gaps, and followed from any revision with the same outcome,
beside concurrent writers.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from retinue.manager.domain.errors import ReaderTooSlow, RevisionCompacted, RevisionInFuture, RevisionLost
from retinue.manager.domain.session.events import ReasonChanged
from retinue.manager.store.journal import journal
from retinue.manager.store.journal.journal import Entry, Event
from retinue.manager.store.journal.journal_tail import PORTION, JournalTail
from retinue.manager.store.postgres import cluster
from retinue.manager.store.postgres.database import Database, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

pytestmark = pytest.mark.asyncio(loop_scope="session")

WRITERS, COMMITS = 32, 3


def entry(label: str = "", owner: str = "ada", project: str = "p", session: uuid.UUID | None = None) -> Entry:
    return Entry(session or uuid.uuid4(), owner, project, ReasonChanged("X", label))


def label_of(event: Event) -> str:
    assert isinstance(event.body, ReasonChanged)
    return event.body.message


async def write(database: Database, *entries: Entry) -> int:
    async with database.transaction() as tx:
        return await journal.append(tx, entries)


@contextlib.asynccontextmanager
async def running(tail: JournalTail) -> AsyncIterator[JournalTail]:
    task = asyncio.create_task(tail.run())
    try:
        yield tail
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def take(tail: JournalTail, after: int, number: int) -> list[Event]:
    """The next so many events after a revision."""
    events: list[Event] = []
    async with contextlib.aclosing(tail.follow(after)) as following:
        async for portion in following:
            assert 1 <= len(portion) <= PORTION
            events += portion
            if len(events) >= number:
                break
    return events


def revisions(events: Sequence[Event]) -> list[int]:
    return [event.revision for event in events]


async def test_appending(database: Database) -> None:
    session = uuid.uuid4()
    assert await write(database, entry("a"), entry("b", session=session)) == 1
    assert await write(database) == 3
    assert await write(database, entry("c")) == 3
    async with database.transaction() as tx:
        page = await journal.read(tx, 0, 10)
        assert revisions(page.events) == [1, 2, 3]
        assert [label_of(event) for event in page.events] == ["a", "b", "c"]
        assert (page.newest, page.oldest) == (3, 0)
        assert revisions((await journal.read(tx, 1, 1)).events) == [2]
        assert revisions((await journal.read(tx, 0, 10, session_id=session)).events) == [2]
        assert (await journal.read(tx, 3, 10)).events == ()


async def test_a_transaction_that_fails_leaves_no_gap(database: Database) -> None:
    await write(database, entry())
    with contextlib.suppress(ZeroDivisionError):
        async with database.transaction() as tx:
            await journal.append(tx, [entry()])
            raise ZeroDivisionError
    assert await write(database, entry()) == 2


async def test_visibility(database: Database) -> None:
    await write(database, entry(owner="ada"), entry(owner="bob", project="q"), entry(owner="bob", project="p"))
    async with database.transaction() as tx:
        assert revisions((await journal.read(tx, 0, 10, owner="ada")).events) == [1]
        assert revisions((await journal.read(tx, 0, 10, owner="ada", projects=["q"])).events) == [1, 2]
        assert revisions((await journal.read(tx, 0, 10)).events) == [1, 2, 3]


async def test_hostile_text_comes_back_as_it_went(database: Database) -> None:
    label = "'; DROP TABLE journal; -- \\ \" {} %s :owner \n\u202e"
    await write(database, entry(label, owner="o'; --"))
    async with database.transaction() as tx:
        (event,) = (await journal.read(tx, 0, 10)).events
    assert (label_of(event), event.owner) == (label, "o'; --")


async def test_followers_from_every_revision_see_the_same_with_32_writers(database: Database) -> None:
    randomness = random.Random(20)  # repeatable on purpose
    pauses = [[randomness.random() * 0.02 for _ in range(COMMITS)] for _ in range(WRITERS)]
    sizes = [[randomness.randint(1, 3) for _ in range(COMMITS)] for _ in range(WRITERS)]
    total = sum(map(sum, sizes))
    tail = JournalTail(database, ring=64, page=16)

    async def writer(number: int) -> None:
        for commit in range(COMMITS):
            async with database.transaction() as tx:
                # Work before and between: commits overlap, and would commit out of order if numbers were given early.
                await tx.execute(text("SELECT pg_sleep(:pause)"), {"pause": pauses[number][commit]})
                await journal.append(
                    tx, [entry(f"{number}.{commit:03}.{item}") for item in range(sizes[number][commit])]
                )
                await tx.execute(text("SELECT pg_sleep(:pause)"), {"pause": pauses[number][commit] / 4})
            tail.wake()

    async with running(tail):
        live = asyncio.create_task(take(tail, 0, total))
        async with asyncio.TaskGroup() as group:
            for number in range(WRITERS):
                group.create_task(writer(number))
        seen = await live
        assert revisions(seen) == list(range(1, total + 1))
        assert len({label_of(event) for event in seen}) == total
        for after in range(0, total, 1):
            assert await take(tail, after, total - after) == seen[after:]
    # Of one writer everything is in the order of its commits.
    for number in range(WRITERS):
        own = [label for label in map(label_of, seen) if label.startswith(f"{number}.")]
        assert own == sorted(own)


async def test_another_replica_is_notified(database: Database) -> None:
    # Polling alone would take an hour.
    async with (
        running(JournalTail(database, poll_seconds=3600)) as here,
        running(JournalTail(database, poll_seconds=3600)) as there,
    ):
        await write(database, entry("first"))
        here.wake()
        assert revisions(await take(there, 0, 1)) == [1]
        following = asyncio.create_task(take(there, 1, 1))
        await write(database, entry("second"))
        here.wake()
        assert revisions(await following) == [2]


async def test_a_lost_wake_up_costs_time_only(database: Database) -> None:
    async with running(JournalTail(database, poll_seconds=0.05)) as tail:
        following = asyncio.create_task(take(tail, 0, 1))
        await write(database, entry())
        assert revisions(await following) == [1]


async def test_the_tail_survives_the_loss_of_its_connections(database: Database) -> None:
    async with running(JournalTail(database, poll_seconds=0.1)) as tail:
        await write(database, entry())
        tail.wake()
        assert revisions(await take(tail, 0, 1)) == [1]
        following = asyncio.create_task(take(tail, 1, 2))
        with contextlib.suppress(StoreUnavailable):
            async with database.transaction() as tx:
                await tx.execute(
                    text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()")
                )
        for _ in range(2):
            await write(database, entry())
            tail.wake()
        assert revisions(await following) == [2, 3]


async def test_revisions_that_are_not_there(database: Database) -> None:
    await write(database, *(entry(str(number)) for number in range(10)))
    async with running(JournalTail(database)) as tail:
        with pytest.raises(RevisionInFuture) as future:
            await take(tail, 11, 1)
        assert future.value.newest == 10
        async with database.transaction() as tx:
            assert await journal.compact(tx, 4) == 4
            assert await journal.compact(tx, 4) == 0
            assert await journal.compact(tx, 3) == 0
            assert (await journal.head(tx))[:2] == (10, 4)
        async with database.transaction() as tx:
            with pytest.raises(RevisionCompacted) as compacted:
                await journal.read(tx, 3, 10)
            assert compacted.value.oldest == 4
    async with running(JournalTail(database, ring=2, page=2)) as tail:
        with pytest.raises(RevisionCompacted):
            await take(tail, 0, 1)
        assert revisions(await take(tail, 4, 6)) == [5, 6, 7, 8, 9, 10]


async def test_a_restored_database_is_another_history(database: Database) -> None:
    await write(database, *(entry(str(number)) for number in range(10)))
    async with running(JournalTail(database, poll_seconds=0.05)) as tail:
        assert revisions(await take(tail, 8, 2)) == [9, 10]
        lost = tail.incarnation
        following = asyncio.create_task(take(tail, 10, 1))
        waiting = asyncio.create_task(take(tail, 0, 11))
        async with database.transaction() as tx:
            await tx.execute(text("DELETE FROM journal WHERE revision > 3"))
            await tx.execute(text("UPDATE journal_head SET revision = 3"))
            incarnation = str(await cluster.begin_incarnation(tx))
        await write(database, *(entry(str(number)) for number in range(20)))
        # Their revisions are there again, and are others.
        for task in (following, waiting):
            with pytest.raises(RevisionLost) as raised:
                await task
            assert raised.value.incarnation == incarnation
        assert revisions(await take(tail, 10, 2))[:2] == [11, 12]
        async with database.transaction() as tx:
            with pytest.raises(RevisionLost):
                await journal.read(tx, 10, 1, incarnation=lost)
            assert (await journal.read(tx, 10, 1, incarnation=incarnation)).incarnation == incarnation
            assert revisions((await journal.read(tx, 10, 1)).events) == [11]


async def test_everything_can_be_compacted_and_numbers_continue(database: Database) -> None:
    await write(database, entry(), entry())
    async with database.transaction() as tx:
        assert await journal.compact(tx, 10**9) == 2
        assert (await journal.head(tx))[:2] == (2, 2)
    async with running(JournalTail(database, poll_seconds=0.05)) as tail:
        following = asyncio.create_task(take(tail, 2, 1))
        assert await write(database, entry()) == 3
        assert revisions(await following) == [3]


@pytest.mark.attack("slow-readers")
async def test_a_follower_that_was_live_and_stops_reading_is_cut(database: Database) -> None:
    async with running(JournalTail(database, ring=10, page=10)) as tail:
        await write(database, entry())
        tail.wake()
        following = tail.follow(0)
        assert revisions(await anext(following)) == [1]
        for _ in range(10):
            await write(database, *(entry() for _ in range(5)))
            tail.wake()
        # The reader of the database has seen all when another follower has.
        assert (await take(tail, 0, 51))[-1].revision == 51
        with pytest.raises(ReaderTooSlow) as slow:
            await anext(following)
        assert slow.value.revision == 1


async def test_a_follower_that_catches_up_from_the_database_is_not_cut(database: Database) -> None:
    await write(database, *(entry() for _ in range(350)))
    async with running(JournalTail(database, ring=10, page=50)) as tail:
        following = tail.follow(0)
        seen = list(await anext(following))
        await write(database, *(entry() for _ in range(50)))
        tail.wake()
        async for portion in following:
            seen += portion
            if len(seen) == 400:
                break
        await following.aclose()
        assert revisions(seen) == list(range(1, 401))
