"""A server that is slow to begin a connection, as on a machine whose disk or processors are busy."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Any

import psycopg
from sqlalchemy import text

from retinue.manager.store.postgres import connections
from retinue.manager.store.postgres.database import Database
from retinue.manager.store.postgres.embedded import EmbeddedServer
from tests.support.databases import passable_directory

if TYPE_CHECKING:
    import pytest

# Longer than a call waits here for a connection that others use.
PAUSE_SECONDS = 1.0


async def test_a_connection_that_takes_seconds_to_begin_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "POOL_SECONDS", PAUSE_SECONDS / 10)
    connect, under_way = psycopg.AsyncConnection.connect, asyncio.Event()

    async def connecting(*args: Any, **options: Any) -> psycopg.AsyncConnection[Any]:
        under_way.set()
        return await connect(*args, **options)

    monkeypatch.setattr(psycopg.AsyncConnection, "connect", connecting)
    with passable_directory() as directory:
        server = EmbeddedServer(directory / "postgres", durable=False)
        database = Database(await server.start())
        assert server.pid is not None
        try:
            # The kernel accepts the connection; what answers it is the server's first process.
            os.kill(server.pid, signal.SIGSTOP)

            async def ask() -> int:
                async with database.transaction() as tx:
                    return int((await tx.execute(text("SELECT 1"))).scalar_one())

            asked = asyncio.create_task(ask())
            await under_way.wait()
            await asyncio.sleep(PAUSE_SECONDS)
            assert not asked.done()
            os.kill(server.pid, signal.SIGCONT)
            assert await asked == 1
        finally:
            os.kill(server.pid, signal.SIGCONT)
            await database.dispose()
            await server.stop()
