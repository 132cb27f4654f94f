"""Clients of the tests: one request over HTTP/1.1, and load that counts every request that was lost."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOMENT = 0.02


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def read_answer(reader: asyncio.StreamReader, method: str = "GET") -> Answer:
    """Raises IncompleteReadError when it is not whole."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.split("\r\n")
    headers = {key.lower(): value for key, _, value in (line.partition(": ") for line in lines if line)}
    body = b""
    if method == "HEAD":
        pass
    elif "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    elif headers.get("transfer-encoding") == "chunked":
        while size := int((await reader.readuntil(b"\n")), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
    return Answer(int(first.split(" ")[1]), headers, body)


async def request(
    port: int,
    host: str,
    path: str = "/",
    *,
    method: str = "GET",
    body: bytes = b"",
    source: str = "127.0.0.1",
    fields: Mapping[str, str] | None = None,
    **headers: str,
) -> Answer:
    """Sends one request on a connection of its own, from the address `source`;
    `_` in names of `headers` and `fields` is `-`.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
    try:
        lines = [f"{method} {path} HTTP/1.1", f"host: {host}", "connection: close"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in {**headers, **(fields or {})}.items()]
        if body:
            lines.append(f"content-length: {len(body)}")
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await writer.drain()
        return await read_answer(reader, method)
    finally:
        writer.close()


@dataclass(slots=True)
class Load:
    """Clients that send one request after the other on kept connections;
    each answer other than 200 is lost, and so is a break.
    """

    port: int
    host: str
    clients: int = 8
    path: str = "/"
    pause: float = 0.0
    headers: str = ""
    sent: int = 0
    lost: list[str] = field(default_factory=list)
    by_name: collections.Counter[str] = field(default_factory=collections.Counter)
    longest: float = 0.0
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _stopping: bool = False

    async def __aenter__(self) -> Load:
        self._tasks = [asyncio.create_task(self._client()) for _ in range(self.clients)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping = True
        await asyncio.gather(*self._tasks)

    async def sent_more(self, count: int) -> None:
        """Returns after so many more answers."""
        goal = self.sent + count
        await eventually(lambda: self.sent >= goal or all(task.done() for task in self._tasks))

    async def _client(self) -> None:
        reader = writer = None
        message = f"GET {self.path} HTTP/1.1\r\nhost: {self.host}\r\n{self.headers}\r\n".encode()
        while not self._stopping:
            began = time.monotonic()
            try:
                if writer is None or reader is None:
                    reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.write(message)
                answer = await read_answer(reader)
                if answer.status == 200:
                    self.by_name[answer.json["name"]] += 1
                else:
                    self.lost.append(f"{answer.status} {answer.body.decode()}")
                if answer.headers.get("connection") == "close":
                    writer.close()
                    writer = None
            except (OSError, asyncio.IncompleteReadError) as error:
                self.lost.append(repr(error))
                if writer is not None:
                    writer.close()
                writer = None
                await asyncio.sleep(0.01)
            self.sent += 1
            self.longest = max(self.longest, time.monotonic() - began)
            if self.pause:
                await asyncio.sleep(self.pause)
        if writer is not None:
            writer.close()


class Drip(threading.Thread):
    """A client that sends a piece every moment, until it is to finish: in a thread of its own, so that nothing
    that the test is busy with makes it silent.
    """

    def __init__(self, port: int, head: bytes, piece: bytes, end: bytes, *, answered: bytes = b"") -> None:
        """It reads up to the end of the connection; or first the head of an answer, and at last up to `answered`."""
        super().__init__(daemon=True)
        self.pieces = 0
        self.answer = b""
        self._connection = socket.create_connection(("127.0.0.1", port))
        self._head, self._piece, self._end, self._answered = head, piece, end, answered
        self._enough = threading.Event()
        self.start()

    def run(self) -> None:
        # One that is cut has the answer that came before.
        with self._connection, contextlib.suppress(OSError):
            self._connection.sendall(self._head)
            if self._answered:
                self._read_to(b"\r\n\r\n")
            while not self._enough.wait(_MOMENT):
                self._connection.sendall(self._piece)
                self.pieces += 1
            self._connection.sendall(self._end)
            self._read_to(self._answered)

    def _read_to(self, text: bytes) -> None:
        """Reads up to a text, or to the end without one."""
        while not (text and text in self.answer) and (data := self._connection.recv(65536)):
            self.answer += data

    async def finished(self) -> bytes:
        """Has it send its end; returns all that it was answered."""
        self._enough.set()
        await asyncio.to_thread(self.join)
        return self.answer


_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_WHOLE, _ACKNOWLEDGED = 0x5, 0x1
_OK = 0x88


class Multiplexed:
    """A connection of HTTP/2 without TLS: many small requests at once,
    of which it knows only whether they were answered 200.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._stream = -1
        self.good = 0
        self.bad = 0

    @classmethod
    async def open(cls, port: int) -> Multiplexed:
        found = cls(*await asyncio.open_connection("127.0.0.1", port))
        # No table of headers, so that a status is one byte; and windows that never fill.
        settings = (1).to_bytes(2) + (0).to_bytes(4) + (4).to_bytes(2) + (1 << 30).to_bytes(4)
        found._writer.write(_PREFACE)
        found._send(_SETTINGS, 0, 0, settings)
        found._send(_WINDOW, 0, 0, (1 << 30).to_bytes(4))
        return found

    def _send(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        self._writer.write(len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload)

    def begin(self, host: str) -> int:
        """Sends a whole GET of `/`; returns its stream."""
        self._stream += 2
        self._send(_HEADERS, _WHOLE, self._stream, b"\x82\x86\x84\x01" + bytes((len(host),)) + host.encode())
        return self._stream

    def reset(self, stream: int) -> None:
        """Takes a request back."""
        self._send(_RESET, 0, stream, (8).to_bytes(4))

    async def read(self, answers: int) -> None:
        """Reads until there were so many answers. Raises IncompleteReadError when the connection ends."""
        await self._writer.drain()
        while self.good + self.bad < answers:
            head = await self._reader.readexactly(9)
            payload = await self._reader.readexactly(int.from_bytes(head[:3]))
            kind, flags = head[3], head[4]
            if kind == _SETTINGS and not flags & _ACKNOWLEDGED:
                self._send(_SETTINGS, _ACKNOWLEDGED, 0, b"")
            elif kind == _PING and not flags & _ACKNOWLEDGED:
                self._send(_PING, _ACKNOWLEDGED, 0, payload)
            elif kind == _GOAWAY:
                raise asyncio.IncompleteReadError(payload, None)
            elif kind == _RESET:
                self.bad += 1
            elif kind == _HEADERS:
                if payload.lstrip(b"\x20")[0] == _OK:
                    self.good += 1
                else:
                    self.bad += 1

    def close(self) -> None:
        self._writer.close()


def is_whole(body: bytes) -> bool:
    """Returns whether a stream has all of its pieces, and any."""
    return bool(body) and body == b"".join(b"data: %d\n\n" % number for number in range(body.count(b"data: ")))
