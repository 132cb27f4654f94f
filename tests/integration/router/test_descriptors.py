"""A client that opens as many connections as it can: it gets no more than its part of what the engine may have, and
who is there already is served on.
"""

from __future__ import annotations

import asyncio
import resource
from typing import TYPE_CHECKING

from retinue.router.core.table import Revision
from tests.integration.router.backends import Backend
from tests.integration.router.clients import Load, read_answer, request
from tests.integration.router.running import HOST, Running, replicas, running, toy
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

LIMIT, CLIENTS = 600, 40


async def take_all(port: int) -> list[asyncio.StreamWriter]:
    """Opens more connections than there are descriptors; the router closes some."""
    found = []
    for _ in range(LIMIT + 100):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            break
        found.append(writer)
    return found


async def slow_requests(connections: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> list[int]:
    """Each connection sends a request, all at once: each needs a connection to a replica."""

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
        writer.write(f"GET /slow?1 HTTP/1.1\r\nhost: {HOST}\r\n\r\n".encode())
        return (await read_answer(reader)).status

    return await asyncio.gather(*(one(*connection) for connection in connections))


async def test_a_client_that_takes_every_connection_costs_those_that_are_there_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The engine gets them later: this process keeps what it has.
    monkeypatch.setattr("retinue.router.serving.soft_limit", lambda: LIMIT)
    async with running(tmp_path) as router, Backend("a") as backend:
        await check(router, backend)


async def check(router: Running, backend: Backend) -> None:
    only = Revision(1, 100, replicas=replicas(backend.port))
    await router.serve(toy(only))
    await router.listening()
    engine = router.serving.engine.pid
    assert engine is not None
    resource.prlimit(engine, resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
    good = [await asyncio.open_connection("127.0.0.1", router.port) for _ in range(CLIENTS)]
    async with Load(router.port, HOST, clients=2, pause=0.01) as load:
        await load.sent_more(20)
        bad = await take_all(router.port)
        assert len(bad) > LIMIT - CLIENTS
        assert await slow_requests(good) == [200] * CLIENTS
        # Tables are followed, and what the engine counts is read.
        await router.serve(toy(only, hosts=("later.test",)))
        assert await router.serving.engine.admin.state() == "LIVE"
        await load.sent_more(50)
    assert load.lost == []
    for writer in (*bad, *(writer for _, writer in good)):
        writer.close()
    # The next client is let in again.
    answer = await eventually(
        lambda: request(router.port, "later.test"), ignoring=(OSError, asyncio.IncompleteReadError)
    )
    assert answer.status == 200
    assert router.serving.engine.pid == engine
