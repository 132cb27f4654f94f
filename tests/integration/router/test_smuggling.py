"""Requests that hide another one, by their length, their lines or what HTTP/2 allows in a field: a replica gets what
the router checked, and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from retinue.router.core.table import Access, Endpoint, Revision, Routing
from tests.integration.router.backends import Backend
from tests.integration.router.clients import request
from tests.integration.router.http2 import (
    ACKNOWLEDGED,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RESET,
    SETTINGS,
    frame,
    read_frame,
)
from tests.integration.router.running import HOST, Running, replicas, running, toy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

# For this host one needs a token.
INNER = b"GET /smuggled HTTP/1.1\r\nhost: other.test\r\n\r\n"
LAST = b"GET /last HTTP/1.1\r\nhost: toy.test\r\nconnection: close\r\n\r\n"
BEGIN = f"POST / HTTP/1.1\r\nhost: {HOST}\r\n".encode()
LENGTH = b"content-length: %d\r\n\r\n" % len(INNER)
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"
NO_CHUNK = b"0\r\n\r\n"
HEADS = {
    "a length and chunks": BEGIN + LENGTH[:-2] + CHUNKED + NO_CHUNK,
    "chunks and a length": BEGIN + CHUNKED[:-2] + b"content-length: 4\r\n\r\n" + NO_CHUNK,
    "two lengths": BEGIN + b"content-length: 0\r\n" + LENGTH,
    "a list of lengths": BEGIN + b"content-length: 0, %d\r\n\r\n" % len(INNER),
    "a length with a sign": BEGIN + b"content-length: +0\r\n\r\n",
    "a hexadecimal length": BEGIN + b"content-length: 0x0\r\n\r\n",
    "a length with a space": BEGIN + b"content-length: 0 0\r\n\r\n",
    "a length by another name": BEGIN + b"content_length: %d\r\n\r\n" % len(INNER),
    "a length that is for the connection": BEGIN + b"connection: content-length\r\n" + LENGTH,
    "chunks that are for the connection": BEGIN + b"connection: transfer-encoding\r\n" + CHUNKED + NO_CHUNK,
    "an unknown encoding": BEGIN + b"transfer-encoding: xchunked\r\n" + LENGTH,
    "an encoding with a space": BEGIN + b"transfer-encoding : chunked\r\n" + LENGTH,
    "two encodings": BEGIN + CHUNKED[:-2] + b"transfer-encoding: identity\r\n\r\n" + NO_CHUNK,
    "a list of encodings": BEGIN + b"transfer-encoding: chunked, identity\r\n\r\n" + NO_CHUNK,
    "a tab before the encoding": BEGIN + b"transfer-encoding:\tchunked\r\n\r\n" + NO_CHUNK,
    "a control character before it": BEGIN + b"transfer-encoding: \x0bchunked\r\n\r\n" + NO_CHUNK,
    "an encoding on the next line": BEGIN + b"transfer-encoding:\r\n chunked\r\n\r\n" + NO_CHUNK,
    "a length on a line of another field": BEGIN + b"x: y\r\n content-length: 0\r\n\r\n",
    "a length on the line of the host": BEGIN + b" content-length: 0\r\n\r\n",
    "a carriage return in a line": BEGIN + b"x: y\rcontent-length: 0\r\n\r\n",
    "line feeds only": BEGIN.replace(b"\r", b"") + b"content-length: 0\n\n",
    "a line feed before the end": BEGIN + b"content-length: 0\n\r\n",
    "chunks that end by line feeds": BEGIN + CHUNKED + b"0\n\n",
    "a line feed in a chunk's extension": BEGIN + CHUNKED + b"0;x\n\r\n\r\n",
    "a chunk with a prefix": BEGIN + CHUNKED + b"0x0\r\n\r\n",
    "a chunk below zero": BEGIN + CHUNKED + b"-1\r\n\r\n",
    "a chunk beyond all numbers": BEGIN + CHUNKED + b"10000000000000000\r\n\r\n",
    "a length and a host after the chunks": BEGIN + CHUNKED + b"0\r\n" + LENGTH[:-2] + b"host: other.test\r\n\r\n",
    "chunks in HTTP/1.0": BEGIN.replace(b"/1.1", b"/1.0") + b"connection: keep-alive\r\n" + CHUNKED + NO_CHUNK,
    "a body of a GET": BEGIN.replace(b"POST", b"GET") + LENGTH,
    "a body that waits": BEGIN + b"expect: 100-continue\r\n" + LENGTH,
    "an upgrade to HTTP/2": BEGIN + b"connection: upgrade\r\nupgrade: h2c\r\n" + LENGTH,
    "a space in the path": BEGIN.replace(b"/ ", b"/ /smuggled "),
}
POST = b"\x83\x86\x84\x01\x08toy.test"
GET = b"\x82\x86\x84\x01\x08toy.test"
# Headers that end the request, and those before a body.
WHOLE, OPEN = 5, 4


def field(name: str, value: str) -> bytes:
    return b"\x00" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()


LINES = "\r\nhost: other.test\r\n\r\nGET /smuggled HTTP/1.1"
BLOCKS = {
    "chunks": (POST + field("transfer-encoding", "chunked"), OPEN, NO_CHUNK + INNER),
    "less than it says": (POST + field("content-length", "999"), OPEN, INNER),
    "more than it says": (POST + field("content-length", "0"), OPEN, INNER),
    "two lengths": (POST + field("content-length", "5") + field("content-length", str(len(INNER))), OPEN, INNER),
    "lines in a value": (GET + field("x-a", f"b{LINES}"), WHOLE, b""),
    "line feeds in a value": (GET + field("x-a", f"b{LINES}".replace("\r", "")), WHOLE, b""),
    "a null byte in a value": (GET + field("x-a", "b\0c"), WHOLE, b""),
    "lines in a name": (GET + field(f"x: y{LINES}\r\nz".lower(), "z"), WHOLE, b""),
    "a colon in a name": (GET + field("host: other.test", "z"), WHOLE, b""),
    "capitals in a name": (GET + field("Host", "other.test"), WHOLE, b""),
    "lines in the path": (b"\x82\x86" + field(":path", f"/ HTTP/1.1{LINES}") + GET[3:], WHOLE, b""),
    "a space in the path": (b"\x82\x86" + field(":path", "/smuggled HTTP/1.1") + GET[3:], WHOLE, b""),
    "lines in the method": (field(":method", "GET /smuggled HTTP/1.1\r\nx: ") + GET[1:], WHOLE, b""),
    "lines in the scheme": (b"\x82" + field(":scheme", f"http{LINES}") + GET[2:], WHOLE, b""),
    "another host": (GET + field("host", "other.test"), WHOLE, b""),
    "two authorities": (GET + b"\x01\x0aother.test", WHOLE, b""),
    "a path after fields": (GET + field("x", "y") + field(":path", "/smuggled"), WHOLE, b""),
    "a field of the connection": (GET + field("connection", "host"), WHOLE, b""),
    "an upgrade": (GET + field("upgrade", "websocket"), WHOLE, b""),
    "a tunnel": (field(":method", "CONNECT") + b"\x01\x0aother.test", OPEN, INNER),
    "a WebSocket": (field(":method", "CONNECT") + field(":protocol", "websocket") + GET[1:], OPEN, INNER),
}


@pytest.fixture
async def router(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path) as found:
        yield found


async def send(port: int, message: bytes) -> None:
    """Sends bytes; returns when the router closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(message)
    with contextlib.suppress(ConnectionError):
        while await reader.read(65536):
            pass
    writer.close()


async def send_frames(port: int, message: bytes) -> None:
    """Sends frames of one request; returns when it is answered or refused and all of them were read."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(message + frame(PING, 0, 0, bytes(8)))
    was_read = is_answered = False
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        while not (was_read and is_answered):
            kind, flags, _ = await read_frame(reader)
            was_read |= kind == PING and bool(flags & ACKNOWLEDGED)
            is_answered |= kind in {HEADERS, RESET, GOAWAY}
    writer.close()


async def serve(router: Running, backend: Backend) -> list[Endpoint]:
    """Two endpoints of one replica: a token is needed for the second one.
    Requests of which something is missing end by silence.
    """
    only, silence = Revision(1, 100, replicas=replicas(backend.port)), Routing(idle_timeout=5.0)
    found = [toy(only, routing=silence), toy(only, hosts=("other.test",), access=Access(), routing=silence)]
    await router.serve(*found)
    await router.listening()
    return found


async def check(router: Running, backend: Backend, endpoints: list[Endpoint]) -> None:
    """No request came to the replica that the router would not have let pass."""
    await router.serve(*(replace(endpoint, routing=Routing()) for endpoint in endpoints))
    assert (await request(router.port, HOST, "/after")).status == 200
    assert set(backend.paths) <= {"/", "/last", "/after"}
    assert "/after" in backend.paths
    assert {headers["host"] for headers in backend.headers} == {HOST}


@pytest.mark.attack("smuggled-requests")
async def test_no_request_hides_in_another(router: Running) -> None:
    async with Backend("a") as backend:
        endpoints = await serve(router, backend)
        await asyncio.gather(*(send(router.port, head + INNER + LAST) for head in HEADS.values()))
        await check(router, backend, endpoints)


@pytest.mark.attack("smuggled-requests")
async def test_no_request_hides_in_what_http2_allows(router: Running) -> None:
    async with Backend("a") as backend:
        endpoints = await serve(router, backend)
        messages = [
            PREFACE + SETTINGS + frame(1, flags, 1, block) + (frame(0, 1, 1, body) if body else b"")
            for block, flags, body in BLOCKS.values()
        ]
        await asyncio.gather(*(send_frames(router.port, message) for message in messages))
        await check(router, backend, endpoints)
