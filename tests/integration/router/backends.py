"""A replica of the tests: an HTTP/1.1 server that says what it got, streams, echoes WebSocket frames' bytes,
and counts.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Self

# Thousands of connections come at once, and a busy machine takes them late.
_BACKLOG = 4096


class Backend:
    """Answers every request with JSON about it; `/slow?S` after S seconds, `/held` once it may continue, `/stream?N` in
    N pieces, `/ticking` in pieces until it may end, `/cut` in a part, an upgrade by an echo.
    """

    def __init__(self, name: str, delay: float = 0.0, at_once: int = 1_000_000) -> None:
        """It takes `delay` seconds for a request, and works on so many at once."""
        self.name = name
        self.delay = delay
        self._places = asyncio.Semaphore(at_once)
        self.requests = 0
        self.active = 0
        self.most = 0
        self.status = 200
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.port = 0
        self.resume = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, backlog=_BACKLOG)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stops as a process does that is killed: connections break."""
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, ValueError):
            # What is no request ends its connection.
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        request, *lines = head.decode().split("\r\n")
        headers = {key.lower(): value for key, _, value in (line.partition(": ") for line in lines if line)}
        method, path, _ = request.split(" ")
        self.requests += 1
        self.active += 1
        self.most = max(self.most, self.active)
        self.headers.append(headers)
        self.paths.append(path)
        try:
            if headers.get("upgrade") == "websocket":
                await self._echo(reader, writer)
                return False
            if headers.get("expect") == "100-continue":
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            size = 0
            if "content-length" in headers:
                size = len(await reader.readexactly(int(headers["content-length"])))
            elif headers.get("transfer-encoding") == "chunked":
                while part := int(await reader.readline(), 16):
                    size += part
                    await reader.readexactly(part + 2)
                # Trailers, as far as there are any, and the empty line.
                while await reader.readline() not in {b"\r\n", b""}:
                    pass
            await self._answer(writer, method, path, headers, size)
        finally:
            self.active -= 1
        return True

    async def _answer(
        self, writer: asyncio.StreamWriter, method: str, path: str, headers: dict[str, str], size: int
    ) -> None:
        word, _, number = path.lstrip("/").partition("?")
        if word == "break":
            writer.transport.abort()
            return
        if word == "cut":
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\npart\r\n")
            await writer.drain()
            writer.transport.abort()
            return
        if word in {"stream", "ticking"}:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            for index in range(int(number)) if number else itertools.count():
                if word == "ticking" and self.resume.is_set():
                    break
                data = f"data: {index}\n\n".encode()
                writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                await writer.drain()
                await asyncio.sleep(0.1)
            writer.write(b"0\r\n\r\n")
            await writer.drain()
            return
        if word == "held":
            await self.resume.wait()
        async with self._places:
            await asyncio.sleep(float(number) if word == "slow" else self.delay)
        status = f"{number if word == 'status' else self.status} Status"
        answered = {"name": self.name, "method": method, "path": path, "headers": headers, "size": size}
        body = json.dumps(answered).encode()
        writer.write(f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()

    async def _echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n")
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
