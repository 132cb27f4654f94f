"""Requests that do not arrive: those of strangers cost the manager little memory, end soon, and hold up nobody."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.manager.call_server import CREATE, ENROLL, WRONG
from tests.integration.manager.server.test_call_ends import Running, serving
from tests.support.eventually import NEVER
from tests.support.http2_frames import (
    DATA,
    END_STREAM,
    HEADERS,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    headers,
    request,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.asyncio(loop_scope="session")

# What a stranger once killed managers of 1 GB with.
CONNECTIONS, STREAMS = 5, 60
SIZE, PIECE = 3_900_000, 16_384
MEGABYTES = 50


class Stranger:
    """A connection whose unary calls of a method each send all of a large request but for its last byte, as far as the
    server gives them room.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, method: str, token: str) -> None:
        self._reader = reader
        self._writer = writer
        self._fields = request(method, token)
        self._left = dict.fromkeys(range(1, 2 * STREAMS, 2), SIZE - 1)
        self._room = dict.fromkeys(self._left, 65_535)
        self._all = self._initial = 65_535
        self.ended: set[int] = set()

    async def run(self) -> None:
        """Returns when all of its streams have ended, or its connection."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await self._run()

    async def _run(self) -> None:
        self._writer.write(PREFACE)
        for stream in self._left:
            self._writer.write(headers(stream, self._fields))
            self._writer.write(frame(DATA, 0, stream, b"\0" + struct.pack(">I", SIZE)))
            self._room[stream] -= 5
            self._all -= 5
        while len(self.ended) < STREAMS:
            self._send()
            await self._writer.drain()
            head = await self._reader.readexactly(9)
            size, kind, flags = int.from_bytes(head[:3]), head[3], head[4]
            self._take(kind, flags, int.from_bytes(head[5:]) & 0x7FFFFFFF, await self._reader.readexactly(size))

    def _send(self) -> None:
        for stream in self._left.keys() - self.ended:
            while size := min(self._left[stream], self._room[stream], self._all, PIECE):
                if size < 0:
                    break
                self._writer.write(frame(DATA, 0, stream, bytes(size)))
                self._left[stream] -= size
                self._room[stream] -= size
                self._all -= size

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & 1:
            for at in range(0, len(payload), 6):
                name, value = struct.unpack_from(">HI", payload, at)
                if name == 4:
                    self._room = {stream: room + value - self._initial for stream, room in self._room.items()}
                    self._initial = value
            self._writer.write(frame(SETTINGS, 1, 0))
        elif kind == WINDOW_UPDATE:
            more = int.from_bytes(payload)
            if stream == 0:
                self._all += more
            elif stream in self._room:
                self._room[stream] += more
        elif kind == RST_STREAM or (kind == HEADERS and flags & END_STREAM):
            self.ended.add(stream)


@asynccontextmanager
async def strangers(running: Running, method: str, token: str = "") -> AsyncIterator[list[asyncio.Task[None]]]:
    host, port = running.address.split(":")
    tasks, writers = [], []
    try:
        for _ in range(CONNECTIONS):
            reader, writer = await asyncio.open_connection(host, int(port))
            writers.append(writer)
            tasks.append(asyncio.create_task(Stranger(reader, writer, method, token).run()))
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        for writer in writers:
            writer.transport.abort()
        await asyncio.gather(*tasks, return_exceptions=True)


def megabytes(running: Running) -> int:
    """The largest part of memory that the server has had."""
    status = Path(f"/proc/{running.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) // 1024


@pytest.mark.attack("unfinished-requests")
@pytest.mark.parametrize(
    ("method", "token"),
    [(ENROLL, ""), (CREATE, ""), (CREATE, f"Bearer {WRONG}"), ("/retinue.manager.v1.SessionService/Unknown", "")],
    ids=["for anyone", "without a token", "with no token of ours", "unknown method"],
)
async def test_strangers_requests_that_never_end(method: str, token: str) -> None:
    async with serving() as running:
        await running.answers()
        before = megabytes(running)
        async with strangers(running, method, token) as tasks:
            # All end by themselves, and others are served meanwhile.
            ended = asyncio.gather(*tasks)
            async with asyncio.timeout(NEVER):
                while not ended.done():
                    await running.answers()
                    assert megabytes(running) - before < MEGABYTES
                    await asyncio.sleep(0.05)
                await ended
