"""One real PostgreSQL for all tests here, a database for each, and servers over them that speak TLS."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest_asyncio

from retinue.manager.store.postgres import connections
from retinue.manager.store.postgres.database import Database
from tests.integration.manager.rig import Service, served
from tests.support.databases import Postgres, fresh_database
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import pytest


@pytest_asyncio.fixture(loop_scope="session")
async def database_url(postgres: Postgres) -> AsyncIterator[str]:
    async with fresh_database(postgres) as url:
        yield url


@pytest_asyncio.fixture(loop_scope="session")
async def database(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Database]:
    # A busy machine takes seconds to begin ten connections at once, and no test repeats what was refused meanwhile.
    monkeypatch.setattr(connections, "POOL_SECONDS", NEVER)
    made = Database(database_url)
    try:
        yield made
    finally:
        await made.dispose()


@pytest_asyncio.fixture(loop_scope="session")
async def service(database_url: str, tmp_path: Path) -> AsyncIterator[Service]:
    async with served(database_url, tmp_path) as made:
        yield made
