"""Callers are cancelled at any moment: the connections that they used answer others with what these asked for."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import psycopg
import pytest
import pytest_asyncio
from sqlalchemy import text

from retinue.manager.store.postgres.database import Database, Query, Statement, StoreUnavailable, Transaction
from retinue.manager.store.postgres.lanes import Lane
from retinue.rpc.cancellation import cancellable, shielded
from tests.integration.manager.cancelling import broken_off_at, cancelled_at
from tests.support.eventually import NEVER

pytestmark = pytest.mark.asyncio(loop_scope="session")

CONNECTIONS = 2
_nonces = itertools.count(1)


@pytest_asyncio.fixture(loop_scope="session")
async def narrow(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Database]:
    """A pool so small that every connection in it is soon used again."""
    # The driver lets other tasks run, and itself be cancelled, within steps that wait for nothing,
    # if it has been busy for so long.
    monkeypatch.setattr(psycopg.waiting, "MAX_BUSY_TIME", 0.0)
    made = Database(database_url, sizes={Lane.USERS: CONNECTIONS})
    try:
        yield made
    finally:
        await made.dispose()


def asking(nonce: int) -> Query[int]:
    sql = "SELECT CAST(:nonce AS int) AS nonce, 'x' AS other"
    return Query(sql, {"nonce": nonce}, read=lambda rows: int(rows[0]["nonce"]))


async def ask(tx: Transaction) -> None:
    """Asks for numbers that no other task asks for, in both ways, and checks the answers."""
    nonce = next(_nonces)
    row = (await tx.execute(text("SELECT CAST(:nonce AS int) AS nonce"), {"nonce": nonce})).one()
    assert row.nonce == nonce
    nonces = (next(_nonces), next(_nonces))
    first, second = map(asking, nonces)
    answers = await tx.pipeline(first, second)
    assert (answers.of(first), answers.of(second)) == nonces


async def check(database: Database) -> None:
    """Every connection of the pool answers what it is asked, from a transaction of its own."""

    async def one(others: asyncio.Barrier) -> None:
        async with database.transaction() as tx:
            await ask(tx)
            assert (await tx.execute(text("SELECT FROM project WHERE name = 'left'"))).first() is None
            await others.wait()

    barrier = asyncio.Barrier(CONNECTIONS)
    async with asyncio.TaskGroup() as group:
        for _ in range(CONNECTIONS):
            group.create_task(one(barrier))


async def statements(database: Database) -> None:
    async with database.transaction() as tx:
        await ask(tx)
        await tx.execute(text("INSERT INTO project (name) VALUES ('left')"))
        await ask(tx)
        await tx.execute(text("DELETE FROM project WHERE name = 'left'"))


async def groups(database: Database) -> None:
    async with database.transaction() as tx:
        await tx.pipeline(Statement("INSERT INTO project (name) VALUES ('left')"), asking(1), asking(2))
        await tx.pipeline(Statement("DELETE FROM project WHERE name = 'left'"), asking(3), commit=True)


async def group_that_fails(database: Database) -> None:
    async def fail() -> None:
        async with database.transaction() as tx:
            await tx.pipeline(asking(1), asking(2))
            await tx.pipeline(asking(3), Statement("SELECT 1 / 0"), asking(4), commit=True)

    with pytest.raises((psycopg.errors.DivisionByZero, StoreUnavailable)):
        await fail()


async def slow_group(database: Database) -> None:
    """The server is still at it when it is asked to end it."""
    async with database.transaction() as tx:
        await tx.pipeline(asking(1), Statement("SELECT pg_sleep(0.01)"), asking(2))
        await tx.pipeline(asking(3), Statement("SELECT pg_sleep(0.01)"), asking(4), commit=True)


async def group_of_tasks(database: Database) -> None:
    """As a term of a leader ends: one fails, the others are cancelled wherever they are."""

    async def fail() -> None:
        raise ZeroDivisionError

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(groups(database))
            group.create_task(statements(database))
            group.create_task(fail())

    with pytest.raises(ExceptionGroup):
        await run()


Work = Callable[[Database], Coroutine[Any, Any, None]]
Way = Callable[[int, Coroutine[Any, Any, Any]], Coroutine[Any, Any, bool]]


WORKS = pytest.mark.parametrize("work", [statements, groups, slow_group, group_that_fails, group_of_tasks])


async def cancel_everywhere(database: Database, work: Work, way: Way, sweeps: int) -> None:
    """At its first wait, at its second, and so on until it does not last so long; that so many times."""
    for _ in range(sweeps):
        for wait in itertools.count(1):
            lasted = await way(wait, work(database))
            await check(database)
            if not lasted:
                break


@pytest.mark.attack("odd-deadlines")
@WORKS
async def test_a_connection_answers_those_who_use_it_next(narrow: Database, work: Work) -> None:
    await cancel_everywhere(narrow, work, cancelled_at, 12)


@WORKS
# The driver's generators say so when they are thrown away halfway.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_connection_that_is_broken_off_itself_is_not_used_again(narrow: Database, work: Work) -> None:
    await cancel_everywhere(narrow, work, broken_off_at, 1)


async def test_a_cancelled_caller_does_not_cost_a_connection(narrow: Database) -> None:
    async def connections() -> set[int]:
        found: set[int] = set()

        async def one(others: asyncio.Barrier) -> None:
            async with narrow.transaction() as tx:
                found.add((await tx.execute(text("SELECT pg_backend_pid()"))).scalar_one())
                await others.wait()

        barrier = asyncio.Barrier(CONNECTIONS)
        await asyncio.gather(*(one(barrier) for _ in range(CONNECTIONS)))
        return found

    before = await connections()
    for wait in itertools.count(1):
        if not await cancelled_at(wait, groups(narrow)) and not await cancelled_at(wait, statements(narrow)):
            break
    assert await connections() == before


async def test_a_connection_in_use_while_its_pool_is_closed_is_closed_after_use(narrow: Database) -> None:
    """As that of a call that ends after its server."""
    begun, may_end = asyncio.Event(), asyncio.Event()
    used: list[psycopg.AsyncConnection[Any]] = []

    async def use() -> None:
        async with narrow.transaction() as tx:
            connection: Any = await (await tx.connection()).get_raw_connection()
            used.append(connection.driver_connection)
            begun.set()
            await may_end.wait()

    for cancelled in (False, True):
        begun.clear()
        may_end.clear()
        using = asyncio.create_task(use())
        await begun.wait()
        await narrow.dispose()
        using.cancel() if cancelled else may_end.set()
        await asyncio.wait((using,))
        assert using.cancelled() is cancelled
        assert used[-1].closed
    await check(narrow)


async def test_work_that_is_shielded_ends_before_its_cancelled_caller() -> None:
    begun, may_end, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await may_end.wait()
        ended.set()

    caller = asyncio.create_task(shielded(work(), NEVER))
    await begun.wait()
    for _ in range(3):
        caller.cancel()
        await asyncio.sleep(0)
        assert not caller.done()
    may_end.set()
    await asyncio.wait((caller,))
    assert ended.is_set()
    assert caller.cancelled()


async def test_work_that_does_not_end_is_cancelled_after_a_while() -> None:
    begun = asyncio.Event()

    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    caller = asyncio.create_task(shielded(work(), 0.0))
    await begun.wait()
    caller.cancel()
    await asyncio.wait((caller,))
    assert caller.cancelled()


async def test_work_whose_caller_is_cancelled_before_it_began_is_not_begun() -> None:
    called: list[str] = []

    async def work() -> None:
        called.append("called")

    caller = asyncio.create_task(cancellable(work))
    caller.cancel()
    await asyncio.wait((caller,))
    assert caller.cancelled()
    # Nor is a coroutine of it left that was never awaited: the tests fail for such.
    assert not called


async def test_work_that_loses_its_cancellation_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retinue.rpc.cancellation._CLEANING_SECONDS", 0.01)
    monkeypatch.setattr("retinue.rpc.cancellation._CANCEL_SECONDS", 0.01)
    for waiting in (cancellable, lambda work: shielded(work(), 0.0)):
        begun, lost = asyncio.Event(), asyncio.Event()

        async def work(begun: asyncio.Event = begun, lost: asyncio.Event = lost) -> None:
            begun.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            lost.set()
            await asyncio.Event().wait()

        caller = asyncio.create_task(waiting(work))
        await begun.wait()
        caller.cancel()
        await asyncio.wait((caller,))
        assert lost.is_set()
        assert caller.cancelled()


async def test_a_cancelled_transaction_is_cancelled_whatever_its_rollback_meets(narrow: Database) -> None:
    pid: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def use() -> None:
        async with narrow.transaction() as tx:
            pid.set_result((await tx.execute(text("SELECT pg_backend_pid()"))).scalar_one())
            await asyncio.Event().wait()

    user = asyncio.create_task(use())
    server = await narrow.connect("test")
    try:
        # Ended at the server while the block holds the connection: its rollback finds it broken.
        await server.execute("SELECT pg_terminate_backend(%s, 5000)", (await pid,))
    finally:
        await server.close()
    user.cancel()
    await asyncio.wait((user,))
    assert user.cancelled()
