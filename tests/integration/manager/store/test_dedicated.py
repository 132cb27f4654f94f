"""Statements of connections outside the pool end in time, and health is reported by one of them."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from sqlalchemy import text

from retinue.manager.store.postgres.database import Database, StoreUnavailable
from retinue.manager.store.postgres.dedicated import execute_within
from retinue.manager.store.postgres.health import watch_database
from retinue.manager.store.postgres.lanes import Lane
from tests.support.eventually import eventually
from tests.support.silence import silent_proxy

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_health_reports_a_database_that_hangs_without_any_call(database_url: str) -> None:
    answers: list[bool] = []

    async def report(reason: str, _answers: bool) -> None:
        answers.append(not reason)

    async def last(expected: bool) -> None:
        async def is_last() -> bool:
            return bool(answers) and answers[-1] is expected

        await eventually(is_last)

    async with silent_proxy(database_url) as (proxy, url):
        database = Database(url, sizes={Lane.USERS: 1})
        task = asyncio.create_task(watch_database(database, report))
        try:
            # Another project has all that the pool has.
            async with database.transaction() as tx:
                await tx.execute(text("SELECT 1"))
                await last(True)
                proxy.fall_silent()
                await last(False)
                proxy.recover()
                await last(True)
        finally:
            task.cancel()
            await asyncio.wait((task,))
            await database.dispose()


async def test_a_statement_without_an_answer_ends_at_its_deadline(database_url: str) -> None:
    async with silent_proxy(database_url) as (proxy, url):
        database = Database(url)
        connection = await database.connect("test")
        proxy.fall_silent()
        with pytest.raises(StoreUnavailable):
            await execute_within(connection, 0.1, "SELECT 1")
        assert connection.closed
        await connection.close()
        await database.dispose()


async def test_a_cancelled_statement_ends_at_once(database_url: str) -> None:
    async with silent_proxy(database_url) as (proxy, url):
        database = Database(url)
        connection = await database.connect("test")
        proxy.fall_silent()
        task = asyncio.create_task(execute_within(connection, 3600, "SELECT 1"))
        # The statement is on its way.
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()
        await connection.close()
        await database.dispose()


async def test_errors_of_a_statement_are_those_of_the_server(database: Database) -> None:
    connection = await database.connect("test")
    try:
        with pytest.raises(psycopg.errors.DivisionByZero):
            await execute_within(connection, 10, "SELECT 1 / 0")
        assert await execute_within(connection, 10, "SELECT %s::int + 1", (41,)) == [(42,)]
    finally:
        await connection.close()
