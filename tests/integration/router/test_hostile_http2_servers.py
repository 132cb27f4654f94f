"""Replicas that break HTTP/2 on purpose, as gRPC servers may: each costs the requests that it was sent, and nothing
beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

from retinue.router.core.table import Endpoint, Revision, Routing
from tests.integration.router.backends import Backend
from tests.integration.router.clients import Answer, Load, request
from tests.integration.router.http2 import (
    CONTINUATION,
    DATA,
    EARLY,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    OK,
    PING,
    RESET,
    SETTINGS,
    WINDOW,
    frame,
    headers,
    read_request,
)
from tests.integration.router.running import HOST, Running, replicas, running, toy
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from pathlib import Path

Behaviour: TypeAlias = Callable[[asyncio.StreamWriter], Awaitable[None]]
BAD = "bad.test"
HEADER = b"\x00\x01x\x7f\x80\x7f" + b"y" * 255


def says(*frames: bytes) -> Behaviour:
    """Answers the first request with these frames, and is silent then."""

    async def behave(writer: asyncio.StreamWriter) -> None:
        for found in frames:
            writer.write(found)
            await writer.drain()
        await asyncio.Event().wait()

    return behave


def closes(*frames: bytes) -> Behaviour:
    """The same, and closes."""

    async def behave(writer: asyncio.StreamWriter) -> None:
        writer.write(b"".join(frames))
        await writer.drain()

    return behave


def repeats(first: bytes, piece: bytes, pause: float = 0.0) -> Behaviour:
    """Answers with frames without an end."""

    async def behave(writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        while True:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)

    return behave


# What the client gets of each: one of these, where None is an answer that is not whole.
WRONG: dict[str, tuple[Behaviour, set[int | None]]] = {
    "no frames": (closes(b"HTTP/1.1 400 Bad Request\r\n\r\n"), {502}),
    "nothing at all": (closes(), {502}),
    "silence": (says(), {504}),
    "settings of a wrong size": (says(frame(4, 0, 0, b"12345")), {502}),
    "an answer to no request": (says(frame(HEADERS, END_HEADERS | END_STREAM, 3, OK)), {502}),
    "data before headers": (says(frame(DATA, END_STREAM, 1, b"x")), {502}),
    "headers that are no HPACK": (says(headers(b"\xff" * 9 + b"\x0f")), {502}),
    "no status": (says(headers(b"\x00\x01x\x01y", END_HEADERS | END_STREAM)), {502}),
    "a status that is none": (says(headers(b"\x08\x03abc", END_HEADERS | END_STREAM)), {502}),
    "a status of 1 at the end": (says(headers(EARLY, END_HEADERS | END_STREAM)), {502}),
    "headers without end": (repeats(headers(OK, 0), frame(CONTINUATION, 0, 1, HEADER)), {502}),
    "headers of nothing without end": (repeats(headers(OK, 0), frame(CONTINUATION, 0, 1), 0.0001), {502}),
    "interim answers without end": (repeats(b"", headers(EARLY), 0.01), {103, 502, 504}),
    "a reset at once": (says(frame(RESET, 0, 1, (2).to_bytes(4))), {502, 503}),
    # Sent again, which it does not answer any more.
    "a refused stream": (says(frame(RESET, 0, 1, (7).to_bytes(4))), {502, 503, 504}),
    "a reset within the body": (
        says(headers(OK), frame(DATA, 0, 1, b"part"), frame(RESET, 0, 1, (2).to_bytes(4))),
        {None},
    ),
    "a body longer than it says": (
        says(headers(OK + b"\x0f\x0d\x012"), frame(DATA, 0, 1, b"more"), frame(DATA, END_STREAM, 1, b"more")),
        {None, 502},
    ),
    "a body shorter than it says": (
        says(headers(OK + b"\x0f\x0d\x019"), frame(DATA, END_STREAM, 1, b"part")),
        {None, 502},
    ),
    "going away": (closes(frame(GOAWAY, 0, 0, bytes(8))), {502, 503}),
    "going away with an error": (closes(frame(GOAWAY, 0, 0, (0).to_bytes(4) + (11).to_bytes(4))), {502, 503}),
    "a promise": (says(frame(5, END_HEADERS, 1, (2).to_bytes(4) + OK)), {502, 504}),
    "a window of nothing": (says(frame(WINDOW, 0, 0, bytes(4))), {502}),
    "a window beyond all": (says(frame(WINDOW, 0, 0, b"\x7f\xff\xff\xff") * 2), {502}),
    "a frame beyond all": (says(frame(DATA, 0, 1, b"", size=(1 << 24) - 1) + bytes(65536)), {502}),
    "pings without end": (repeats(b"", frame(PING, 0, 0, bytes(8)) * 100), {502, 504}),
    "settings without end": (repeats(b"", SETTINGS * 100), {502, 504}),
    "empty data without end": (repeats(headers(OK), frame(DATA, 0, 1) * 10), {None, 502}),
}


@contextlib.asynccontextmanager
async def server(behave: Behaviour) -> AsyncIterator[int]:
    """A replica that behaves so on every connection, once a request is there; what it is sent it reads."""
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        reading = None
        try:
            writer.write(SETTINGS)
            await read_request(reader)
            reading = asyncio.create_task(_swallow(reader))
            await behave(writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            # The end of the test is no error of the loop.
            pass
        finally:
            if reading is not None:
                reading.cancel()
            tasks.discard(task)
            writer.close()

    listening = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        for task in tasks:
            task.cancel()


async def _swallow(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(65536):
            pass


async def outcome(router: Running, host: str) -> Answer | None:
    """Returns an answer; None for one that is not whole."""
    try:
        async with asyncio.timeout(NEVER):
            return await request(router.port, host)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


async def test_what_a_replica_breaks_of_http2_is_its_own_request(tmp_path: Path) -> None:
    """All of them at once, beside an endpoint that continues."""
    async with running(tmp_path) as router, contextlib.AsyncExitStack() as stack:
        engine = router.serving.engine
        backend = await stack.enter_async_context(Backend("a"))
        endpoints: list[Endpoint] = [toy(Revision(1, 100, replicas=replicas(backend.port)))]
        for number, (behave, expected) in enumerate(WRONG.values()):
            port = await stack.enter_async_context(server(behave))
            revision = Revision(1, 100, http2=True, replicas=replicas(port))
            # The others answer as soon as they get to it, all in this process.
            silent = 1.0 if expected == {504} else 5.0
            routing = Routing(idle_timeout=silent) if 504 in expected else Routing()
            endpoints.append(toy(revision, hosts=(f"{number}.{BAD}",), routing=routing))
        await router.serve(*endpoints)
        await router.listening()
        before = engine.pid
        async with Load(router.port, HOST, clients=4, pause=0.01) as load:
            found = await asyncio.gather(*(outcome(router, f"{number}.{BAD}") for number in range(len(WRONG))))
            await load.sent_more(50)
        assert load.lost == []
        assert engine.pid == before
        # Tables are followed as before.
        await router.serve(toy(Revision(1, 100, replicas=replicas(backend.port)), hosts=("later.test",)))
        assert (await request(router.port, "later.test")).status == 200
    seen = {name: answer and answer.status for name, answer in zip(WRONG, found, strict=True)}
    assert {name: status for name, status in seen.items() if status not in WRONG[name][1]} == {}
