"""Replicas that send interim answers without an end, as fast as they can: the engine keeps none of them, their request
ends as silence does, and nothing of them stays.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.router.core.table import Revision, Routing
from tests.integration.router.backends import Backend
from tests.integration.router.clients import Load
from tests.integration.router.http2 import EARLY, SETTINGS, headers, read_request
from tests.integration.router.running import HOST, replicas, running, toy
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MEGABYTES, ENOUGH = 32, 96 << 20
"""What the engine may grow by, and what it is sent: a third of that is far more than its buffers."""
FLOODS = {
    "103": (b"HTTP/1.1 103 Early Hints\r\nlink: </x>; rel=preload\r\n\r\n", False),
    "102": (b"HTTP/1.1 102 Processing\r\n\r\n", False),
    "100": (b"HTTP/1.1 100 Continue\r\n\r\n", False),
    "103 of HTTP/2": (headers(EARLY), True),
}


class Flood:
    """A replica that answers each request so, and never with more; it counts connections and bytes."""

    def __init__(self, piece: bytes, *, http2: bool) -> None:
        self.sent = 0
        self.connections = 0
        self.port = 0
        self._pieces = piece * 1000
        self._http2 = http2
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            if self._http2:
                writer.write(SETTINGS)
                await read_request(reader)
            else:
                await reader.readuntil(b"\r\n\r\n")
            while True:
                writer.write(self._pieces)
                await writer.drain()
                self.sent += len(self._pieces)
                await asyncio.sleep(0)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            # The end of the test is no error of the loop.
            pass
        finally:
            self._tasks.discard(task)
            self.connections -= 1
            writer.close()


async def resident_megabytes(pid: int) -> float:
    text = await asyncio.to_thread(Path(f"/proc/{pid}/status").read_text)
    return int(text.partition("VmRSS:")[2].split()[0]) / 1024


@pytest.mark.parametrize("name", FLOODS)
async def test_interim_answers_without_end_cost_no_memory_and_leave_nothing(tmp_path: Path, name: str) -> None:
    piece, http2 = FLOODS[name]
    flood = Flood(piece, http2=http2)
    async with running(tmp_path) as router, flood.open(), Backend("a") as backend:
        only = Revision(1, 100, http2=http2, replicas=replicas(flood.port))
        good = Revision(1, 100, replicas=replicas(backend.port))
        await router.serve(toy(only, routing=Routing(idle_timeout=300.0)), toy(good, hosts=("good.test",)))
        await router.listening()
        engine = router.serving.engine.pid
        assert engine is not None
        before = await resident_megabytes(engine)
        message = f"GET / HTTP/1.1\r\nhost: {HOST}\r\n\r\n".encode()
        async with Load(router.port, "good.test", clients=2, pause=0.01) as load:
            # One client reads what comes, the other nothing.
            (reader, reading), (_, deaf) = [await asyncio.open_connection("127.0.0.1", router.port) for _ in range(2)]
            deaf.transport.pause_reading()  # type: ignore[attr-defined]
            for writer in (reading, deaf):
                writer.write(message)
            draining = asyncio.create_task(reader.read())
            await eventually(lambda: flood.sent > ENOUGH)
            assert flood.connections <= 2
            assert await resident_megabytes(engine) - before < MEGABYTES
            # Their connections end with the clients.
            for writer in (reading, deaf):
                writer.close()
            await eventually(lambda: flood.connections == 0)
            draining.cancel()
            await load.sent_more(20)
        assert load.lost == []
        # Without a client that leaves, the time for silence ends it.
        await router.serve(toy(only, hosts=("silent.test",), routing=Routing(idle_timeout=1.0)))
        reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
        writer.write(message.replace(HOST.encode(), b"silent.test"))
        async with asyncio.timeout(NEVER):
            while (head := await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 10"):
                pass
        assert head.startswith(b"HTTP/1.1 504 ")
        writer.close()
        await eventually(lambda: flood.connections == 0)
        assert router.serving.engine.pid == engine
