"""Statements that go together: one round trip, one fate, and the same errors as any others."""

from __future__ import annotations

import asyncio
import datetime as dt
import uuid
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from sqlalchemy import text

from retinue.manager.store.postgres.database import (
    Database,
    Query,
    Statement,
    StoreConflict,
    StoreUnavailable,
    Transaction,
    fetch,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retinue.manager.store.postgres.recordset import Row

MAKE = "INSERT INTO project (name) VALUES (:name) RETURNING name"
COUNT = "SELECT count(*) AS number FROM project WHERE name LIKE :like"
PID = "SELECT pg_backend_pid() AS pid"


def make(name: str) -> Query[list[str]]:
    return Query(MAKE, {"name": name}, read=lambda rows: [row["name"] for row in rows])


def count() -> Query[int]:
    return Query(COUNT, {"like": "t-%"}, read=lambda rows: int(rows[0]["number"]))


def backend() -> Query[int]:
    return Query(PID, read=lambda rows: int(rows[0]["pid"]))


async def number(database: Database) -> int:
    async with database.transaction() as tx:
        return await fetch(tx, count())


async def test_each_sees_what_came_before_it(database: Database) -> None:
    async with database.transaction() as tx:
        made, counted = make("t-1"), count()
        nothing = Query("UPDATE project SET name = name WHERE FALSE", read=len)
        answers = await tx.pipeline(made, counted, nothing)
        assert (answers.of(made), answers.of(counted), answers.of(nothing)) == (["t-1"], 1, 0)
        assert await number(database) == 0
    assert await number(database) == 1


async def test_the_last_ones_end_the_transaction(database: Database) -> None:
    async with database.transaction() as tx:
        await tx.pipeline(make("t-1"))
        await tx.pipeline(make("t-2"), commit=True)
        assert await number(database) == 2


async def test_when_one_fails_nothing_is_left(database: Database) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        async with database.transaction() as tx:
            await tx.pipeline(make("t-1"), Statement("SELECT 1 / 0"), make("t-2"), commit=True)
    with pytest.raises(psycopg.errors.UniqueViolation):
        async with database.transaction() as tx:
            await tx.pipeline(make("t-1"), make("t-1"))
    assert await number(database) == 0


async def test_rows_that_a_query_refuses_cost_only_its_transaction(database: Database) -> None:
    def refuse(rows: object) -> None:
        raise LookupError(rows)

    async with database.transaction() as tx:
        before = await fetch(tx, backend())
    with pytest.raises(LookupError):
        async with database.transaction() as tx:
            await tx.pipeline(make("t-1"), Query(COUNT, {"like": "t-%"}, read=refuse), make("t-2"))
    assert await number(database) == 0
    async with database.transaction() as tx:
        assert await fetch(tx, backend()) == before


async def test_who_loses_against_another_may_try_again(database: Database) -> None:
    async with database.transaction() as tx:
        await tx.pipeline(make("t-1"), commit=True)
    async with database.transaction() as first:
        await first.pipeline(Statement("SELECT FROM project WHERE name = 't-1' FOR UPDATE"))
        with pytest.raises(StoreConflict):
            async with database.transaction() as second:
                await second.pipeline(Statement("SELECT FROM project WHERE name = 't-1' FOR UPDATE NOWAIT"))


async def test_connections_that_were_ended_while_nothing_used_them_cost_no_transaction(database: Database) -> None:
    async def pid(together: asyncio.Barrier) -> int:
        async with database.transaction() as tx:
            own = backend()
            answers = await tx.pipeline(own)
            await together.wait()
            return answers.of(own)

    barrier = asyncio.Barrier(3)
    pids = await asyncio.gather(*(pid(barrier) for _ in range(3)))
    assert len(set(pids)) == 3
    other = await database.connect("test")
    try:
        # The server went, and came back.
        await other.execute("SELECT pg_terminate_backend(pid, 5000) FROM unnest(%s::int[]) AS pid", (pids,))

        async def ended_in_the_middle() -> None:
            async with database.transaction() as tx:
                await other.execute("SELECT pg_terminate_backend(%s, 5000)", (await fetch(tx, backend()),))
                await fetch(tx, backend())

        with pytest.raises(StoreUnavailable):
            await ended_in_the_middle()
    finally:
        await other.close()
    barrier = asyncio.Barrier(3)
    assert not set(pids) & set(await asyncio.gather(*(pid(barrier) for _ in range(3))))
    async with database.transaction() as tx:
        assert (await tx.execute(text("SELECT 1"))).scalar_one() == 1


async def test_who_is_cancelled_leaves_nothing_and_holds_nothing(database: Database) -> None:
    async def slow() -> None:
        async with database.transaction() as tx:
            await tx.pipeline(make("t-1"), Statement("SELECT pg_sleep(3600)"), make("t-2"), commit=True)

    sleeping = text("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()")
    task = asyncio.create_task(slow())
    asleep = False
    while not asleep:
        async with database.transaction() as tx:
            asleep = (await tx.execute(sleeping)).first() is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    # Nothing locks their rows.
    async with database.transaction() as tx:
        await tx.pipeline(*map(make, ("t-1", "t-2")), commit=True)
    assert await number(database) == 2


async def test_they_and_their_transaction_are_one_exchange(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    exchanges = []
    wait = psycopg.AsyncConnection.wait

    def counted(steps: Any) -> Any:
        step = None
        try:
            step = next(steps)
        except StopIteration as ended:
            return ended.value
        exchanges.append(steps)
        try:
            while True:
                step = steps.send((yield step))
        except StopIteration as ended:
            return ended.value

    async def counting(connection: Any, steps: Any, *args: Any, **options: Any) -> Any:
        return await wait(connection, counted(steps), *args, **options)

    async with database.transaction() as tx:
        await tx.pipeline(count())
    monkeypatch.setattr(psycopg.AsyncConnection, "wait", counting)
    async with database.transaction() as tx:
        await tx.pipeline(make("t-1"), count(), commit=True)
    assert len(exchanges) == 1
    exchanges.clear()
    async with database.transaction() as tx:
        tx.ahead(make("t-2"))
        answered = count()
        assert (await tx.pipeline(answered, commit=True)).of(answered) == 2
    assert len(exchanges) == 1


VALUES: dict[str, list[object]] = {
    "boolean": [True, False, None],
    "bigint": [0, -1, 32_767, 32_768, 2**31, 2**63 - 1, None],
    "double precision": [0.1, -1e300, 3],
    "text": ["", "%", "%s %(a)s", ":a", "'\"\\", "ünïcode \U0001f40d", "x" * 100_000, None],
    "bytea": [b"", bytes(range(256))],
    "uuid": [uuid.UUID(int=7)],
    "timestamptz": [dt.datetime(2026, 1, 1, tzinfo=dt.UTC)],
    "bigint[]": [[], [1, 2], [2**40, 1]],
    "text[]": [[], ["a", 'b"', None], ["\\", "%"]],
    "uuid[]": [[uuid.UUID(int=1)]],
    "jsonb": ['{"a": [1, null, "%"]}'],
}


@pytest.mark.parametrize("times", [1, 5])
@pytest.mark.parametrize("kind", VALUES)
async def test_they_find_what_single_statements_find(database: Database, kind: str, times: int) -> None:
    """However often: statements are prepared after a few times."""
    sql = f"SELECT CAST(:value AS {kind}) AS value, '100%' AS other, CAST(:value AS {kind}) AS again, :number + 1 AS number"
    for _ in range(times):
        for value in VALUES[kind]:
            async with database.transaction() as tx:
                plain = (await tx.execute(text(sql), {"value": value, "number": 1})).mappings().one()
                query = Query(sql, {"value": value, "number": 1}, read=list)
                (found,) = (await tx.pipeline(query)).of(query)
            assert found == dict(plain)
            assert list(map(type, found.values())) == list(map(type, plain.values()))


async def test_what_a_value_is_refused_for_leaves_the_connection(database: Database) -> None:
    async with database.transaction() as tx:
        before = await fetch(tx, backend())
        with pytest.raises(psycopg.DataError):
            await tx.pipeline(make("t-1"), make("nul \0"))
        assert await fetch(tx, backend()) == before
    assert await number(database) == 0


async def test_what_goes_ahead_is_executed_with_whatever_comes_next(database: Database) -> None:
    found: list[list[str]] = []
    async with database.transaction() as tx:
        later = tx.ahead(make("t-1"), then=found.append)
        assert found == []
        assert (await tx.execute(text("SELECT count(*) FROM project WHERE name = 't-1'"))).scalar_one() == 1
        assert found == [later.found] == [["t-1"]]
        tx.ahead(make("t-2"))
    assert await number(database) == 2
    async with database.transaction() as tx:
        await tx.pipeline(make("t-3"), commit=True)
        tx.ahead(make("t-4"))
    assert await number(database) == 4


async def test_what_a_guard_refuses_is_not_committed(database: Database) -> None:
    def refuse(rows: object) -> None:
        raise LookupError(rows)

    async def refused() -> None:
        async with database.transaction() as tx:
            tx.ahead(Query(COUNT, {"like": "t-%"}, read=refuse), guards=True)
            await tx.pipeline(make("t-1"), commit=True)

    with pytest.raises(LookupError):
        await refused()
    assert await number(database) == 0


async def test_a_guard_that_refuses_costs_no_connection(database: Database) -> None:
    def refuse(rows: Sequence[Row]) -> None:
        raise LookupError("refused")

    async with database.transaction() as tx:
        before = await fetch(tx, backend())
        tx.ahead(Query(COUNT, {"like": "t-%"}, read=refuse), guards=True)
        with pytest.raises(LookupError, match="refused"):
            await tx.pipeline(make("t-1"))
        await tx.rollback()
        assert await fetch(tx, backend()) == before
    assert await number(database) == 0


async def test_what_goes_ahead_is_given_up_with_its_transaction(database: Database) -> None:
    async with database.transaction() as tx:
        tx.ahead(make("t-1"))
        await tx.rollback()
        assert await fetch(tx, count()) == 0
    assert await number(database) == 0


async def test_statements_are_prepared_again_after_one_that_failed(database: Database) -> None:
    divide = "SELECT 6 / CAST(:by AS int) AS number"

    def dividing(by: int) -> Query[int]:
        return Query(divide, {"by": by}, read=lambda rows: int(rows[0]["number"]))

    for by in (1, 2, 0, 3, 0, 1, 2):
        if by:
            async with database.transaction() as tx:
                assert await _one(tx, dividing(by)) == 6 // by
        else:
            with pytest.raises(psycopg.errors.DivisionByZero):
                async with database.transaction() as tx:
                    await _one(tx, dividing(by))


async def _one(tx: Transaction, query: Query[int]) -> int:
    return (await tx.pipeline(query)).of(query)
