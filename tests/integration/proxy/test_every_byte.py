"""Clients that take their time get every byte of an answer, and programs every byte of a request, as by nginx before
the same program.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
from typing import TYPE_CHECKING

import pytest

from tests.integration.proxy.edges import Edge, edges, nginx
from tests.integration.proxy.recorder import Recorder
from tests.integration.proxy.slow_clients import (
    ANSWERS,
    BODY,
    READING,
    REQUESTS,
    WRITING,
    body_of,
    connected,
    fetch,
    send,
)
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

EARLY = b"it is too large. " * 20_000


@contextlib.asynccontextmanager
async def all_ways(directory: Path, port: int) -> AsyncIterator[list[Edge]]:
    async with edges(directory, port) as ways, nginx(directory, port) as peer:
        yield [*ways, peer]


async def test_slow_readers_get_every_byte(tmp_path: Path) -> None:
    async with Recorder() as recorder, all_ways(tmp_path, recorder.port) as ways:
        recorder.answers = {f"/{name}": answer for name, answer in ANSWERS.items()}
        clients = list(itertools.product(ways, ANSWERS, REQUESTS.items(), READING.items()))
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


async def test_programs_get_every_byte_of_slow_writers(tmp_path: Path) -> None:
    async with Recorder() as recorder, all_ways(tmp_path, recorder.port) as ways:
        clients = list(itertools.product(ways, WRITING.items(), (False, True)))
        async with asyncio.timeout(NEVER):
            answers = await asyncio.gather(
                *(
                    send(edge, f"/{edge.name}/{name.replace(' ', '-')}/{chunked}", rhythm, chunked=chunked)
                    for edge, (name, rhythm), chunked in clients
                )
            )
        assert [answer.split(b" ")[1] for answer in answers] == [b"204"] * len(clients)
        assert len({request.first for request in recorder.requests}) == len(clients)
        whole = hashlib.sha256(BODY).hexdigest()
        cut = [
            (request.first, len(BODY) - len(request.body))
            for request in recorder.requests
            if hashlib.sha256(request.body).hexdigest() != whole
        ]
        assert not cut


async def test_a_client_that_says_that_it_is_done_is_taken_to_have_gone_as_by_nginx(tmp_path: Path) -> None:
    async with Recorder() as recorder, all_ways(tmp_path, recorder.port) as ways:
        recorder.answers = {f"/{name}": answer for name, answer in ANSWERS.items()}
        clients, request, rhythm = list(itertools.product(ways, ANSWERS)), REQUESTS["that closes"], [(0, 1.0)]
        async with asyncio.timeout(NEVER):
            answers = await asyncio.gather(
                *(fetch(edge, name, request, rhythm, half_closed=True) for edge, name in clients)
            )
        missing: dict[str, set[bool]] = {}
        for (edge, _), answer in zip(clients, answers, strict=True):
            missing.setdefault(edge.name, set()).add(body_of(answer) != BODY)
        assert missing == {"direct": {False}, "endpoint": {True}, "gateway": {True}, "nginx": {True}}


async def answers_early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers before the body has come, and reads what comes all the same, as servers do that mean to be heard."""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: %d\r\n\r\n" % len(EARLY) + EARLY)
        await writer.drain()
        while await reader.read(1 << 16):
            pass
    writer.close()


async def told_early(edge: Edge, pause: float) -> bytes:
    """Returns what a client reads that pauses in between, while it is still writing."""
    loop = asyncio.get_running_loop()
    async with connected(edge.port) as connection:
        head = f"PUT / HTTP/1.1\r\nHost: {edge.host}\r\nContent-Length: {len(BODY)}\r\n".encode()
        await loop.sock_sendall(connection, head + edge.access + b"\r\n")
        writing = asyncio.ensure_future(loop.sock_sendall(connection, BODY))
        received = bytearray()
        try:
            while len(received.partition(b"\r\n\r\n")[2]) < len(EARLY):
                with contextlib.suppress(ConnectionError):
                    if data := await loop.sock_recv(connection, 1 << 14):
                        received += data
                        await asyncio.sleep(pause)
                        continue
                break
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
        return bytes(received)


@pytest.mark.parametrize("pause", [0, 0.1])
async def test_an_answer_before_the_request_has_come_is_read_whole(tmp_path: Path, pause: float) -> None:
    answering: set[asyncio.Task[None]] = set()

    def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering.add(asyncio.create_task(answers_early(reader, writer)))

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as program:
        async with all_ways(tmp_path, program.sockets[0].getsockname()[1]) as ways:
            # Whether bytes would be lost depends on what is under way when the connection ends.
            clients = ways * 8
            async with asyncio.timeout(NEVER):
                answers = await asyncio.gather(*(told_early(edge, pause) for edge in clients))
        # Connections that are still open when the loop is closed would be found in a later test.
        async with asyncio.timeout(NEVER):
            await asyncio.gather(*answering)
        cut = [
            (edge.name, len(EARLY) - len(body_of(answer)))
            for edge, answer in zip(clients, answers, strict=True)
            if body_of(answer) != EARLY
        ]
        assert not cut
