"""A program that keeps what it was sent, byte for byte, and answers with the bytes that a test gave it."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Message:
    """A request or an answer: its first line, headers with names in small letters, body and trailers."""

    first: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    trailers: tuple[tuple[str, str], ...] = ()

    def header(self, name: str) -> str | None:
        """Returns the first value of a header."""
        return next((value for key, value in self.headers if key == name), None)


async def read_message(reader: asyncio.StreamReader, *, bodiless: bool = False, to_end: bool = False) -> Message:
    """Returns a message. One without a length has no body, or with `to_end` one up to the end of the connection.
    Raises IncompleteReadError when it is not whole.
    """
    first, headers = _fields(await reader.readuntil(b"\r\n\r\n"))
    named, body = dict(headers), b""
    trailers: tuple[tuple[str, str], ...] = ()
    if bodiless or (first.startswith("HTTP/") and first.split(" ")[1] in {"204", "304"}):
        pass
    elif named.get("transfer-encoding") == "chunked":
        while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
            body += (await reader.readexactly(size + 2))[:-2]
        lines = b""
        while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
            lines += line
        trailers = _fields(b"\r\n" + lines)[1] if lines else ()
    elif "content-length" in named:
        body = await reader.readexactly(int(named["content-length"]))
    elif to_end:
        body = await reader.read()
    return Message(first, headers, body, trailers)


def _fields(head: bytes) -> tuple[str, tuple[tuple[str, str], ...]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines if line)
    return first, tuple((name.lower(), value.strip()) for name, _, value in pairs)


class Recorder:
    """Listens at a port of the loopback address; to a path without an answer of its own it gives `answer`."""

    def __init__(self) -> None:
        self.answer = b"HTTP/1.1 204 No Content\r\n\r\n"
        self.answers: dict[str, bytes] = {}
        self.requests: list[Message] = []
        self.port = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while True:
                    request = await read_message(reader)
                    self.requests.append(request)
                    answer = self.answers.get(request.first.split(" ")[1], self.answer)
                    writer.write(answer)
                    await writer.drain()
                    if b"Connection: close" in answer:
                        return
        finally:
            writer.close()
