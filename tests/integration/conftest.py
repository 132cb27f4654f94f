"""One real PostgreSQL for all tests that need a database of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from manager.store.embedded import EmbeddedServer
from manager.store.migrations import migrate
from tests.integration.databases import TEMPLATE, Postgres, passable_directory


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
