"""What the URL says of sessions counts everywhere: a schema of one's own, also by PGOPTIONS."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from sqlalchemy import text

from retinue.manager.store.leadership import leadership
from retinue.manager.store.migrations import check, migrate
from retinue.manager.store.postgres import cluster
from retinue.manager.store.postgres.database import Database
from retinue.manager.store.postgres.examination import UnfitDatabaseError
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.databases import Postgres

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def empty(postgres: Postgres) -> AsyncIterator[str]:
    """The URL of an empty database with two schemas beside `public`."""
    name = f"test_{uuid.uuid4().hex}"
    await postgres.execute(f"CREATE DATABASE {name}")
    try:
        url = postgres.url_of(name)
        for schema in ("one", "two"):
            database = Database(url)
            async with database.transaction() as tx:
                await tx.execute(text(f"CREATE SCHEMA {schema}"))
            await database.dispose()
        yield url
    finally:
        await postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")


async def schemas(url: str) -> set[str]:
    """Where there are tables of ours."""
    database = Database(url)
    try:
        async with database.transaction() as tx:
            rows = await tx.execute(text("SELECT schemaname FROM pg_tables WHERE tablename = 'session'"))
            return {str(row[0]) for row in rows}
    finally:
        await database.dispose()


async def test_clusters_in_schemas_of_one_database_lead_beside_each_other(empty: str) -> None:
    databases = [Database(f"{empty}&options=-csearch_path%3D{schema}") for schema in ("one", "two")]
    led = [asyncio.Event(), asyncio.Event()]

    async def lead(index: int) -> None:
        async def body(_: leadership.Lease) -> None:
            led[index].set()
            await asyncio.Event().wait()

        await leadership.campaign(databases[index], f"host:{index}", body)

    tasks: list[asyncio.Task[None]] = []
    try:
        for database in databases:
            url = database.url.render_as_string(hide_password=False)
            await migrate(url)
            await check(url)
        assert await schemas(empty) == {"one", "two"}
        ids = set()
        for database in databases:
            async with database.transaction() as tx:
                ids.add((await cluster.read(tx)).id)
        assert len(ids) == 2
        tasks += [asyncio.create_task(lead(index)) for index in range(2)]
        async with asyncio.timeout(NEVER):
            for event in led:
                await event.wait()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for database in databases:
            await database.dispose()


async def test_options_of_the_environment_count(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGOPTIONS", "-csearch_path=two -cgeqo=off")
    database = Database(empty)
    connection = await database.connect("test")
    try:
        await migrate(empty)
        async with database.transaction() as tx:
            shown = text("SELECT current_schema(), current_setting('geqo'), current_setting('timezone')")
            assert tuple((await tx.execute(shown)).one()) == ("two", "off", "UTC")
        cursor = await connection.execute("SELECT current_schema(), current_setting('statement_timeout')")
        assert await cursor.fetchone() == ("two", "0")
    finally:
        await connection.close()
        await database.dispose()
    assert await schemas(empty) == {"two"}


async def test_a_schema_that_nobody_made(empty: str) -> None:
    with pytest.raises(UnfitDatabaseError, match=r"no schema of search_path \(three\) .* CREATE SCHEMA"):
        await migrate(f"{empty}&options=-csearch_path%3Dthree")


async def test_what_the_url_says_of_time_outs_counts(empty: str) -> None:
    database = Database(f"{empty}&connect_timeout=3&keepalives_idle=7")
    connection = await database.connect("test")
    try:
        found = connection.info.get_parameters()
        assert (found["connect_timeout"], found["keepalives_idle"]) == ("3", "7")
    finally:
        await connection.close()
        await database.dispose()
