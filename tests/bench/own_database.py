"""A PostgreSQL of a measurement's own, with the schema and nothing in it."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.manager.store.migrations import migrate
from retinue.manager.store.postgres.database import Database
from retinue.manager.store.postgres.embedded import EmbeddedServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def own_database(*, durable: bool = True) -> AsyncIterator[tuple[EmbeddedServer, Database]]:
    """Starts a server, and removes it with all that it holds; what is not `durable` is not synced to disk."""
    directory = Path(tempfile.mkdtemp(prefix="bench-", dir="/var/lib"))
    # The database's user has to get through.
    directory.chmod(0o755)
    server = EmbeddedServer(directory / "postgres", durable=durable)
    try:
        url = await server.start()
        await migrate(url)
        database = Database(url, statement_timeout=600.0)
        try:
            yield server, database
        finally:
            await database.dispose()
    finally:
        await server.stop()
        shutil.rmtree(directory, ignore_errors=True)
