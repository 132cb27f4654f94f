"""One real PostgreSQL for all tests here, a database for each, and servers over them that speak TLS."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from manager.store.database import Database
from manager.store.embedded import EmbeddedServer
from manager.store.migrations import migrate
from tests.integration.manager_foundations.rig import (
    TEMPLATE,
    Postgres,
    Service,
    fresh_database,
    passable_directory,
    served,
)


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def postgres() -> AsyncIterator[Postgres]:
    with passable_directory() as directory:
        server = EmbeddedServer(directory / "postgres", durable=False)
        try:
            found = Postgres(await server.start())
            await found.execute(f"CREATE DATABASE {TEMPLATE}")
            await migrate(found.url_of(TEMPLATE))
            yield found
        finally:
            await server.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def database_url(postgres: Postgres) -> AsyncIterator[str]:
    async with fresh_database(postgres) as url:
        yield url


@pytest_asyncio.fixture(loop_scope="session")
async def database(database_url: str) -> AsyncIterator[Database]:
    made = Database(database_url)
    try:
        yield made
    finally:
        await made.dispose()


@pytest_asyncio.fixture(loop_scope="session")
async def service(database_url: str, tmp_path: Path) -> AsyncIterator[Service]:
    async with served(database_url, tmp_path) as made:
        yield made
