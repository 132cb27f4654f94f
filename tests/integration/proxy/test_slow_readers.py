"""Clients that take their time to read an answer get all of it, however the connection is to end."""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
from collections.abc import Iterator
from pathlib import Path

from tests.integration.proxy.edges import Edge, edges
from tests.integration.proxy.recorder import Recorder
from tests.support.eventually import NEVER

BODY = random.Random(7).randbytes(5 << 20)
_CHUNK = 100_000
CHUNKS = [BODY[start : start + _CHUNK] for start in range(0, len(BODY), _CHUNK)]
ANSWERS = {
    "sized": b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY,
    "chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"".join(b"%x\r\n" % len(chunk) + chunk + b"\r\n" for chunk in CHUNKS)
    + b"0\r\n\r\n",
    "to-the-end": b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + BODY,
}
REQUESTS = {
    "that closes": "GET /{answer} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n",
    "that keeps the connection": "GET /{answer} HTTP/1.1\r\nHost: {host}\r\n",
    "of HTTP/1.0": "GET /{answer} HTTP/1.0\r\nHost: {host}\r\n",
}
# Bytes that a client reads, and seconds that it then does something else: longer than an engine may want to wait for
# it, and after so many bytes that what is left is in buffers on the way.
RHYTHMS = {
    "pauses at first": [(0, 2.5)],
    "pauses late": [(3 << 20, 2.5)],
    "pauses twice": [(1 << 20, 1.5), (4 << 20, 1.5)],
}


async def fetch(edge: Edge, answer: str, request: str, rhythm: list[tuple[int, float]]) -> bytes:
    """Returns all that a client reads in a rhythm, and then as fast as it can, up to the end of the answer."""
    loop = asyncio.get_running_loop()
    with socket.socket() as connection:
        # Little is on its way to the client.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        connection.setblocking(False)
        await loop.sock_connect(connection, ("127.0.0.1", edge.port))
        await loop.sock_sendall(
            connection, request.format(host=edge.host, answer=answer).encode() + edge.access + b"\r\n"
        )
        received = bytearray()
        steps: Iterator[tuple[int, float]] = itertools.chain(rhythm, [(1 << 30, 0.0)])
        for size, pause in steps:
            wanted = len(received) + size
            while len(received) < wanted and not _is_whole(received):
                data = await loop.sock_recv(connection, min(1 << 16, wanted - len(received)))
                if not data:
                    return bytes(received)
                received += data
            await asyncio.sleep(pause)
        return bytes(received)


def _is_whole(received: bytearray) -> bool:
    head, blank, _ = bytes(received[:4096]).partition(b"\r\n\r\n")
    if b"chunked" in head.lower():
        return received.endswith(b"\r\n0\r\n\r\n")
    return b"content-length" in head.lower() and len(received) == len(head) + len(blank) + len(BODY)


def body_of(answer: bytes) -> bytes:
    head, _, rest = answer.partition(b"\r\n\r\n")
    if b"chunked" not in head.lower():
        return rest
    pieces, at = [], 0
    while at < len(rest):
        end = rest.index(b"\r\n", at)
        at = end + 2 + int(rest[at:end], 16)
        pieces.append(rest[end + 2 : at])
        at += 2
    return b"".join(pieces)


async def test_slow_clients_get_every_byte(tmp_path: Path) -> None:
    async with Recorder() as recorder, edges(tmp_path, recorder.port) as ways:
        recorder.answers = {f"/{name}": answer for name, answer in ANSWERS.items()}
        clients = list(itertools.product(ways, ANSWERS, REQUESTS.items(), RHYTHMS.items()))
        async with asyncio.timeout(NEVER):
            answers = await asyncio.gather(
                *(fetch(edge, name, one, rhythm) for edge, name, (_, one), (_, rhythm) in clients)
            )
        cut = [
            (edge.name, name, request, rhythm, len(BODY) - len(body_of(answer)))
            for (edge, name, (request, _), (rhythm, _)), answer in zip(clients, answers, strict=True)
            if body_of(answer) != BODY
        ]
        assert not cut
