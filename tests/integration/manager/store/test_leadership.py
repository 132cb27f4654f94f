"""One leader at a time, noticed at once when it is lost, and fenced when it does not notice."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from retinue.manager.store.leadership import leadership, lease
from retinue.manager.store.leadership.leadership import Lease, NotLeader
from retinue.manager.store.postgres.database import Database, StoreUnavailable
from retinue.rpc.cancellation import UnrequestedCancellationError
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture(autouse=True)
def no_term_by_a_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    """Terms are counted here: none ends because this process, or the server, stood still for some seconds."""
    monkeypatch.setattr(lease, "VALID_SECONDS", NEVER)
    monkeypatch.setattr(lease, "LEASE_SECONDS", 2 * NEVER)
    monkeypatch.setattr(leadership, "_ANSWER_SECONDS", NEVER)
    # The parameters without which `_answer` is called.
    monkeypatch.setattr("retinue.manager.store.leadership.leadership._answer.__defaults__", ((), NEVER))


class Body:
    """A leader that does nothing, and says in which terms."""

    def __init__(self) -> None:
        self.terms: list[int] = []
        self.leading = False

    async def __call__(self, lease: Lease) -> None:
        self.terms.append(lease.term)
        self.leading = True
        try:
            await asyncio.Event().wait()
        finally:
            self.leading = False


async def cut_leader(database: Database) -> None:
    async with database.transaction() as tx:
        await tx.execute(
            text("""
                SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity a JOIN pg_locks l ON l.pid = a.pid
                WHERE a.datname = current_database() AND l.locktype = 'advisory' AND l.granted
            """)
        )


def holds(check: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def asked() -> bool:
        return check()

    return asked


@contextlib.asynccontextmanager
async def campaigning(database: Database, *bodies: Body) -> AsyncIterator[list[asyncio.Task[None]]]:
    """The tasks of one campaign for each body."""
    tasks = [asyncio.create_task(leadership.campaign(database, f"replica {n}", body)) for n, body in enumerate(bodies)]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_one_leads_and_the_other_takes_over(database: Database) -> None:
    first, second = Body(), Body()
    async with campaigning(database, first, second) as tasks:
        await eventually(holds(lambda: first.leading or second.leading))
        leader, follower = (first, second) if first.leading else (second, first)
        assert not follower.leading
        tasks[0 if leader is first else 1].cancel()
        await eventually(holds(lambda: follower.leading))
        assert not leader.leading
        assert (leader.terms, follower.terms) == ([1], [2])
        async with database.transaction() as tx:
            holder = (await tx.execute(text("SELECT holder FROM leadership"))).scalar_one()
        assert holder == ("replica 1" if follower is second else "replica 0")


async def test_a_leader_whose_connection_is_cut_stops_at_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It does not have to ask.
    monkeypatch.setattr(leadership, "RENEWAL_SECONDS", 3600.0)
    body = Body()
    lead = asyncio.create_task(leadership.lead(database, "x", body))
    await eventually(holds(lambda: body.leading))
    await cut_leader(database)
    with pytest.raises(NotLeader):
        await lead
    assert not body.leading


async def test_after_a_cut_some_manager_leads_again_in_a_higher_term(database: Database) -> None:
    first, second = Body(), Body()
    async with campaigning(database, first, second):
        for expected in (1, 2, 3):
            await eventually(holds(lambda: len(first.terms + second.terms) >= expected))  # noqa: B023  # awaited at once
            await cut_leader(database)
        await eventually(holds(lambda: 4 in first.terms + second.terms))
        assert sorted(first.terms + second.terms) == [1, 2, 3, 4]


async def test_a_cancelled_renewal_ends_a_term_as_an_interruption(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cancelled(*_: object) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(leadership, "_renew", cancelled)
    with pytest.raises(UnrequestedCancellationError):
        await leadership.lead(database, "x", Body())


async def write_project(database: Database, name: str, term: int) -> None:
    """As a leader writes: the check may come at any place of the transaction."""
    async with database.transaction() as tx:
        await tx.execute(text("INSERT INTO project (name) VALUES (:name)"), {"name": name})
        await leadership.check(tx, term)


async def test_a_stale_term_writes_nothing(database: Database) -> None:
    body = Body()
    async with campaigning(database, body):
        await eventually(holds(lambda: body.terms == [1]))
        await write_project(database, "in-time", term=1)
        await cut_leader(database)
        await eventually(holds(lambda: body.terms == [1, 2]))
        with pytest.raises(NotLeader):
            await write_project(database, "too-late", term=1)
    async with database.transaction() as tx:
        names = (await tx.execute(text("SELECT name FROM project ORDER BY name"))).scalars().all()
    assert names == ["default", "in-time"]


async def test_no_term_begins_while_a_write_of_the_one_before_is_under_way(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leadership, "_PATIENCE_SECONDS", NEVER)
    first, second = Body(), Body()
    async with campaigning(database, first) as tasks:
        await eventually(holds(lambda: first.leading))
        async with database.transaction() as tx:
            await leadership.check(tx, 1)
            await tx.execute(text("INSERT INTO project (name) VALUES ('under-way')"))
            tasks[0].cancel()
            await asyncio.wait(tasks)
            async with campaigning(database, second):

                async def waits() -> bool:
                    async with database.transaction() as other:
                        found = await other.execute(
                            text(
                                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'UPDATE leadership%'"
                                " AND datname = current_database()"
                            )
                        )
                        return bool(found.scalar_one())

                await eventually(waits)
                assert second.terms == []
                await tx.commit()
                await eventually(holds(lambda: second.terms == [2]))


async def test_a_body_that_fails_gives_up_its_term(database: Database) -> None:
    terms: list[int] = []
    failing = asyncio.Event()

    async def body(lease: Lease) -> None:
        terms.append(lease.term)
        if lease.term == 1:
            raise ZeroDivisionError
        failing.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(leadership.campaign(database, "x", body))
    try:
        await failing.wait()
    finally:
        task.cancel()
        await asyncio.wait((task,))
    assert terms == [1, 2]


async def test_a_term_that_a_library_cancels_is_followed_by_the_next_and_is_no_defect(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    next_term = asyncio.Event()

    async def body(lease: Lease) -> None:
        if lease.term == 1:
            raise asyncio.CancelledError
        next_term.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(leadership.campaign(database, "x", body))
    try:
        await next_term.wait()
    finally:
        task.cancel()
        await asyncio.wait((task,))
    assert [record.exc_info for record in caplog.records if "steps down" in record.message] == [None]


async def test_errors_of_a_body_are_distinguished(database: Database) -> None:
    async def broken(lease: Lease) -> None:
        raise ZeroDivisionError

    async def deposed(lease: Lease) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(raising(NotLeader("over")))
            group.create_task(raising(StoreUnavailable("gone")))

    async def raising(error: Exception) -> None:
        raise error

    with pytest.raises(ExceptionGroup) as caught:
        await leadership.lead(database, "x", broken)
    assert caught.group_contains(ZeroDivisionError)
    with pytest.raises((NotLeader, StoreUnavailable)):
        await leadership.lead(database, "x", deposed)


async def test_without_a_database_no_replica_leads(tmp_path: object) -> None:
    nowhere = Database(f"postgresql://x@/x?host={tmp_path}")
    try:
        with pytest.raises(StoreUnavailable):
            await leadership.lead(nowhere, "x", Body())
        with pytest.raises(StoreUnavailable):
            async with nowhere.transaction() as tx:
                await tx.execute(text("SELECT 1"))
    finally:
        await nowhere.dispose()
