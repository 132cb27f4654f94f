"""Replicas that break HTTP on purpose: each costs the request that it was sent, and nothing beside it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

import pytest

from retinue.router.core.table import Endpoint, Revision, Routing
from tests.integration.router.backends import Backend
from tests.integration.router.clients import Answer, Load, request
from tests.integration.router.running import HOST, Running, replicas, running, toy
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from pathlib import Path

Behaviour: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
SILENCE = Routing(idle_timeout=1.0)
BAD = "bad.test"


def says(*pieces: bytes) -> Behaviour:
    """Answers with these bytes, and closes."""

    async def behave(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    return behave


def repeats(first: bytes, piece: bytes, pause: float = 0.0) -> Behaviour:
    """Answers with bytes without an end."""

    async def behave(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        while True:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)

    return behave


async def resets(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Begins an answer and resets the connection."""
    writer.write(b"HTTP/1.1 200 OK\r\nconte")
    await writer.drain()
    writer.transport.abort()


@contextlib.asynccontextmanager
async def server(behave: Behaviour) -> AsyncIterator[int]:
    """A replica that behaves so on every connection, once the head of a request is there."""
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await reader.readuntil(b"\r\n\r\n")
            await behave(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            # The end of the test is no error of the loop.
            pass
        finally:
            tasks.discard(task)
            writer.close()

    listening = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        for task in tasks:
            task.cancel()


@pytest.fixture
async def router(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path) as found:
        yield found


OK = b"HTTP/1.1 200 OK\r\n"
# What the client gets of each: a status, or an answer that is not whole.
WRONG: dict[str, tuple[Behaviour, set[int] | None]] = {
    "too little of a body": (says(OK + b"content-length: 9\r\n\r\nshort"), None),
    "a chunk without its end": (says(OK + b"transfer-encoding: chunked\r\n\r\n9\r\nshort"), None),
    "a chunk of no size": (says(OK + b"transfer-encoding: chunked\r\n\r\nsize\r\nx\r\n0\r\n\r\n"), None),
    "two lengths": (says(OK + b"content-length: 1\r\ncontent-length: 2\r\n\r\nxx"), {502}),
    "a length below zero": (says(OK + b"content-length: -1\r\n\r\n"), {502}),
    "a length beyond all numbers": (says(OK + b"content-length: 99999999999999999999999\r\n\r\n"), {502}),
    "no HTTP": (says(b"220 mail.test ESMTP\r\n"), {502}),
    "nothing at all": (says(), {502}),
    "no status": (says(b"HTTP/1.1 \r\n\r\n"), {502}),
    "a name with a null byte": (says(OK + b"x\0y: z\r\n\r\n"), {502}),
    "an upgrade that was not asked for": (says(b"HTTP/1.1 101 Switching\r\nupgrade: x\r\n\r\nraw"), {502, 503, 101}),
    "headers without end": (repeats(OK, b"x-more: " + b"x" * 1000 + b"\r\n"), {502}),
    "one header without end": (repeats(OK + b"x-more: ", b"x" * 1000), {502}),
    "headers drop by drop": (repeats(OK, b"x-more: x\r\n", 0.05), {502, 504}),
    "interim answers without end": (repeats(b"", b"HTTP/1.1 103 Early\r\n\r\n", 0.01), {103}),
    "permission without end": (repeats(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.01), {100}),
    "a reset within the head": (resets, {502}),
    "silence": (repeats(b"", b"", 1.0), {504}),
}


async def outcome(router: Running, host: str) -> Answer | None:
    """Returns an answer; None for one that is not whole."""
    try:
        async with asyncio.timeout(NEVER):
            return await request(router.port, host)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


async def test_what_a_replica_breaks_is_its_own_request(router: Running) -> None:
    """All of them at once, beside an endpoint that continues."""
    engine = router.serving.engine
    async with contextlib.AsyncExitStack() as stack:
        backend = await stack.enter_async_context(Backend("a"))
        endpoints: list[Endpoint] = [toy(Revision(1, 100, replicas=replicas(backend.port)))]
        for number, (behave, expected) in enumerate(WRONG.values()):
            port = await stack.enter_async_context(server(behave))
            revision = Revision(1, 100, replicas=replicas(port))
            # The others answer as soon as they get to it, all in this process.
            routing = SILENCE if 504 in (expected or ()) else Routing()
            endpoints.append(toy(revision, hosts=(f"{number}.{BAD}",), routing=routing))
        await router.serve(*endpoints)
        await router.listening()
        before = engine.pid
        async with Load(router.port, HOST, clients=4, pause=0.01) as load:
            found = await asyncio.gather(*(outcome(router, f"{number}.{BAD}") for number in range(len(WRONG))))
            await load.sent_more(50)
        assert load.lost == []
        assert engine.pid == before
    seen = {name: answer and answer.status for name, answer in zip(WRONG, found, strict=True)}
    wrong = {
        name: status
        for name, status in seen.items()
        if (status is not None if (good := WRONG[name][1]) is None else status not in good)
    }
    assert not wrong


async def test_what_follows_an_answer_is_no_answer_to_the_next(router: Running) -> None:
    """Bytes after a whole answer would be the next one's on a kept connection: that is closed instead."""
    evil = OK + b"content-length: 4\r\n\r\nevil"

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK + b"content-length: 4\r\n\r\ngood" + evil)
        await writer.drain()
        await reader.read()

    async with server(behave) as port:
        await router.serve(toy(Revision(1, 100, replicas=replicas(port))))
        await router.listening()
        bodies = [(await request(router.port, HOST)).body for _ in range(20)]
        assert set(bodies) == {b"good"}
        heads = [await request(router.port, HOST, method="HEAD") for _ in range(5)]
        assert {answer.status for answer in heads} == {200}
        assert {(await request(router.port, HOST)).body for _ in range(5)} == {b"good"}


async def test_old_servers_and_those_that_answer_at_once_serve(router: Running) -> None:
    async def at_once(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Refuses before the body is there, and closes."""
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\nconnection: close\r\n\r\nbig")
        await writer.drain()

    async with server(says(b"HTTP/1.0 200 OK\r\n\r\nold")) as old, server(at_once) as early, Backend("a") as backend:
        await router.serve(
            toy(Revision(1, 100, replicas=replicas(old))),
            toy(Revision(1, 100, replicas=replicas(early)), hosts=("early.test",)),
            toy(Revision(1, 100, replicas=replicas(backend.port)), hosts=("good.test",)),
        )
        await router.listening()
        reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
        writer.write(f"GET / HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\n\r\n".encode())
        async with asyncio.timeout(NEVER):
            whole = await reader.read()
        writer.close()
        assert whole.startswith(b"HTTP/1.1 200")
        assert b"old" in whole
        # The client is answered before it has sent all.
        reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
        writer.write(b"POST / HTTP/1.1\r\nhost: early.test\r\ncontent-length: 1000000\r\n\r\nfirst")
        async with asyncio.timeout(NEVER):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 413")
        writer.close()
        assert (await request(router.port, "good.test")).status == 200


@pytest.mark.parametrize(
    "interim", [b"HTTP/1.1 103 Early\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"], ids=["103", "100"]
)
async def test_interim_answers_without_end_end_as_silence_does(router: Running, interim: bytes) -> None:
    async with server(repeats(b"", interim, 0.01)) as port:
        await router.serve(toy(Revision(1, 100, replicas=replicas(port)), routing=SILENCE))
        await router.listening()
        reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
        writer.write(f"GET / HTTP/1.1\r\nhost: {HOST}\r\n\r\n".encode())
        async with asyncio.timeout(NEVER):
            while (head := await reader.readuntil(b"\r\n\r\n")).startswith(interim[:12]):
                pass
        assert head.startswith(b"HTTP/1.1 504 ")
        writer.close()
