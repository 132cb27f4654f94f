"""An engine that answers what a test gives it, on a Unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING

from retinue.agent.docker.engine import Engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    Answer = bytes | Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]

VERSION = json.dumps({"ApiVersion": "1.41"}).encode()


def reply(content: bytes, status: str = "200 OK", kind: str = "application/json") -> bytes:
    """A whole answer."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


class FakeEngine:
    """Gives `answer` to every request but that for its version; `hold` keeps the connection open then."""

    def __init__(self, answer: bytes, *, hold: bool = False) -> None:
        self.answer = answer
        self.hold = hold
        self.asked: list[str] = []
        self.got = asyncio.Queue[bytes]()
        """What comes after a request whose connection is held; empty at the end."""

    @contextlib.asynccontextmanager
    async def serving(self, directory: Path) -> AsyncIterator[Engine]:
        """An Engine that asks this one."""
        server = await asyncio.start_unix_server(self._serve, directory / "s")
        engine = Engine(f"unix://{directory}/s")
        try:
            yield engine
        finally:
            await engine.close()
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                for line in head.lower().splitlines():
                    if line.startswith("content-length:"):
                        await reader.readexactly(int(line.partition(":")[2]))
                method, target, _ = head.partition("\r\n")[0].split()
                if target == "/version":
                    writer.write(reply(VERSION))
                    continue
                self.asked.append(f"{method} {target}")
                whole = self.hold or method != "HEAD"
                writer.write(self.answer if whole else self.answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
                await writer.drain()
                if not self.hold and b"Content-Length" in self.answer:
                    continue
                while self.hold and (data := await reader.read(1 << 16)):
                    self.got.put_nowait(data)
                break
        self.got.put_nowait(b"")
        writer.close()
