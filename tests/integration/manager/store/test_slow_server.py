"""A server that is slow to begin a connection, as on a machine whose disk or processors are busy."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from sqlalchemy import text

from retinue.manager.store import connections
from retinue.manager.store.database import Database
from retinue.manager.store.embedded import EmbeddedServer
from tests.support.databases import passable_directory

# Longer than a call waits here for a connection that others use.
PAUSE_SECONDS = 1.0


async def test_a_connection_that_takes_seconds_to_begin_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "POOL_SECONDS", PAUSE_SECONDS / 10)
    with passable_directory() as directory:
        server = EmbeddedServer(directory / "postgres", durable=False)
        database = Database(await server.start())
        assert server.pid is not None
        try:
            # The kernel accepts the connection; what answers it is the server's first process.
            os.kill(server.pid, signal.SIGSTOP)
            asyncio.get_running_loop().call_later(PAUSE_SECONDS, os.kill, server.pid, signal.SIGCONT)
            async with database.transaction() as tx:
                assert (await tx.execute(text("SELECT 1"))).scalar_one() == 1
        finally:
            os.kill(server.pid, signal.SIGCONT)
            await database.dispose()
            await server.stop()
