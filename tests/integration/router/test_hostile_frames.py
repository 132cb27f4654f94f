"""Clients that speak HTTP/2 and HTTP/1.1 wrongly: each loses its own connection, and a client beside them nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from retinue.router.core.table import Revision
from tests.integration.router.backends import Backend
from tests.integration.router.clients import Load
from tests.integration.router.http2 import PREFACE, SETTINGS, frame
from tests.integration.router.running import HOST, replicas, running, toy
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from pathlib import Path

_BEGIN = PREFACE + SETTINGS
# A GET of /, without its end where 0x4 is not set.
_HEADERS = b"\x82\x86\x84\x01" + bytes((len(HOST),)) + HOST.encode()
FRAMES = {
    "no preface": b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n" + SETTINGS,
    "data before headers": _BEGIN + frame(0, 1, 1, b"x"),
    "a stream of an even number": _BEGIN + frame(1, 5, 2, _HEADERS),
    "settings of a wrong size": PREFACE + frame(4, 0, 0, b"12345"),
    "settings of a stream": PREFACE + frame(4, 0, 1),
    "a window of nothing": _BEGIN + frame(8, 0, 0, bytes(4)),
    "a window beyond all": _BEGIN + frame(8, 0, 0, b"\x7f\xff\xff\xff") * 2,
    "a frame beyond all": _BEGIN + frame(1, 5, 1, b"", size=(1 << 24) - 1) + bytes(65536),
    "headers that are no HPACK": _BEGIN + frame(1, 5, 1, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x0f"),
    "headers without end": _BEGIN
    + frame(1, 1, 1, _HEADERS)
    + frame(9, 0, 1, b"\x00\x01x\x7f\x80\x7f" + b"y" * 255) * 2000,
    "headers of nothing without end": _BEGIN + frame(1, 1, 1, _HEADERS) + frame(9, 0, 1) * 20_000,
    "a continuation of another": _BEGIN + frame(1, 1, 1, _HEADERS) + frame(9, 4, 3),
    "pings without end": _BEGIN + frame(6, 0, 0, bytes(8)) * 50_000,
    "settings without end": _BEGIN + SETTINGS * 50_000,
    "priorities without end": _BEGIN + frame(2, 0, 1, bytes(5)) * 50_000,
    "empty data without end": _BEGIN + frame(1, 4, 1, _HEADERS) + frame(0, 0, 1) * 50_000,
    "a promise": _BEGIN + frame(5, 4, 1, bytes(4)),
    "HTTP/1.1 without a version": b"GET /\r\n\r\n",
    "HTTP/1.1 with a null byte": f"GET / HTTP/1.1\r\nhost: {HOST}\r\nx: \0\r\n\r\n".encode(),
    "a line without end": b"GET /" + b"x" * 500_000,
    "lines of nothing": b"\r\n" * 100_000,
    "no host": b"GET / HTTP/1.1\r\n\r\n",
}


async def until_ended(port: int, message: bytes) -> None:
    """Sends a message; returns once the router has closed the connection, or reset it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(message)
        await writer.drain()
        while await reader.read(65536):
            pass
    except ConnectionError:
        pass
    finally:
        writer.close()


@pytest.mark.attack("floods-at-routers")
async def test_wrong_frames_and_lines_end_their_own_connection_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # For those that say nothing more; the load sends its headers in one piece.
    monkeypatch.setattr("retinue.router.core.listener._HEADERS_SECONDS", 5)
    async with running(tmp_path) as router, Backend("a") as backend:
        await router.serve(toy(Revision(1, 100, replicas=replicas(backend.port))))
        await router.listening()
        engine = router.serving.engine.pid
        async with Load(router.port, HOST, clients=4, pause=0.01) as load:
            tasks = [asyncio.create_task(until_ended(router.port, sent), name=name) for name, sent in FRAMES.items()]
            _, still_open = await asyncio.wait(tasks, timeout=NEVER)
            await load.sent_more(50)
        assert load.lost == []
        assert router.serving.engine.pid == engine
        assert [task.get_name() for task in still_open] == []
