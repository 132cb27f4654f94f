"""Clients that read answers and write requests in a rhythm of their own, and the answers that they are to get."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import socket
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.integration.proxy.edges import Edge

SEED, SIZE, PIECE = 7, 5 << 20, 100_000
BODY = random.Random(SEED).randbytes(SIZE)
_PIECES = [BODY[start : start + PIECE] for start in range(0, len(BODY), PIECE)]
ANSWERS = {
    "sized": b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY,
    "chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"".join(b"%x\r\n" % len(piece) + piece + b"\r\n" for piece in _PIECES)
    + b"0\r\n\r\n",
    "to-the-end": b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + BODY,
}
REQUESTS = {
    "that closes": "GET /{answer} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n",
    "that keeps the connection": "GET /{answer} HTTP/1.1\r\nHost: {host}\r\n",
    "of HTTP/1.0": "GET /{answer} HTTP/1.0\r\nHost: {host}\r\n",
}
Rhythm = Sequence[tuple[int, float]]
"""Bytes that a client reads or writes, and seconds that it then does something else; after the last, it does not pause
any more.
"""
# Pauses are longer than an engine may want to wait for a client, and begin when what is left is in buffers on the way.
READING: dict[str, Rhythm] = {
    "pauses at first": [(0, 2.5)],
    "pauses late": [(3 << 20, 2.5)],
    "pauses twice": [(1 << 20, 1.5), (4 << 20, 1.5)],
    "reads little at a time": [(1 << 14, 0.01)] * (SIZE >> 14),
    "crawls at first": [(1 << 12, 0.2)] * 100,
}
WRITING: dict[str, Rhythm] = {
    "pauses at first": [(0, 2.5)],
    "pauses late": [(3 << 20, 2.5)],
    "writes little at a time": [(1 << 14, 0.01)] * (SIZE >> 14),
    "writes at once": [],
}
_REST: Rhythm = [(1 << 30, 0.0)]


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[socket.socket]:
    """A connection to this machine, on which little is on its way to the client."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
        yield connection


async def fetch(edge: Edge, answer: str, request: str, rhythm: Rhythm, *, half_closed: bool = False) -> bytes:
    """Returns all that a client reads in a rhythm, and then as fast as it can, up to the end of the answer. One that is
    half closed has said with its request that it sends nothing more.
    """
    text = request.format(host=edge.host, answer=answer).encode() + edge.access + b"\r\n"
    async with connected(edge.port) as connection:
        await asyncio.get_running_loop().sock_sendall(connection, text)
        if half_closed:
            connection.shutdown(socket.SHUT_WR)
        return await _received(connection, rhythm)


async def send(edge: Edge, path: str, rhythm: Rhythm, *, chunked: bool) -> bytes:
    """Returns the answer to a client that writes the body in a rhythm, and then as fast as it can."""
    size = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(BODY)
    head = f"PUT {path} HTTP/1.1\r\nHost: {edge.host}\r\nConnection: close\r\n".encode() + size + b"\r\n"
    loop = asyncio.get_running_loop()
    async with connected(edge.port) as connection:
        await loop.sock_sendall(connection, head + edge.access + b"\r\n")
        at = 0
        for count, pause in itertools.chain(rhythm, _REST):
            piece, at = BODY[at : at + count], at + count
            if piece:
                await loop.sock_sendall(connection, b"%x\r\n" % len(piece) + piece + b"\r\n" if chunked else piece)
            await asyncio.sleep(pause)
        if chunked:
            await loop.sock_sendall(connection, b"0\r\n\r\n")
        return await _received(connection, [])


async def _received(connection: socket.socket, rhythm: Rhythm) -> bytes:
    received = bytearray()
    for count, pause in itertools.chain(rhythm, _REST):
        wanted = len(received) + count
        while len(received) < wanted and not _is_whole(received):
            # A connection that is broken off is one that has ended: what came is compared.
            with contextlib.suppress(ConnectionError):
                data = await asyncio.get_running_loop().sock_recv(connection, min(1 << 16, wanted - len(received)))
                received += data
                if data:
                    continue
            return bytes(received)
        await asyncio.sleep(pause)
    return bytes(received)


def _is_whole(received: bytearray) -> bool:
    head, blank, _ = bytes(received[:4096]).partition(b"\r\n\r\n")
    if head.split(b" ")[1:2] == [b"204"]:
        return bool(blank)
    if b"chunked" in head.lower():
        return received.endswith(b"\r\n0\r\n\r\n")
    length = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), None)
    return length is not None and len(received) == len(head) + len(blank) + int(length.partition(b":")[2])


def body_of(answer: bytes) -> bytes:
    """Returns the body of an answer, as far as it came."""
    head, _, rest = answer.partition(b"\r\n\r\n")
    if b"chunked" not in head.lower():
        return rest
    pieces, at = [], 0
    while (end := rest.find(b"\r\n", at)) > at:
        at = end + 2 + int(rest[at:end], 16)
        pieces.append(rest[end + 2 : at])
        at += 2
    return b"".join(pieces)
