"""The engine's admin interface, over a Unix socket: one HTTP/1.0-like exchange per question."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

_TIMEOUT = 5.0
_LENGTH = re.compile(r"content-length: (\d+)")
_OK = 200


class AdminError(OSError):
    """The engine does not answer, or says no."""


class Admin:
    """Reads and sets what the engine has."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def state(self) -> str:
        """Returns the engine's state: `LIVE` once it serves. Raises AdminError."""
        found: dict[str, Any] = json.loads(await self.get("/server_info"))
        return str(found.get("state", ""))

    async def version(self) -> str:
        """Returns the engine's version. Raises AdminError."""
        found: dict[str, Any] = json.loads(await self.get("/server_info"))
        return str(found.get("version", ""))

    async def in_progress(self, clusters: Collection[str]) -> int:
        """Returns requests that are in progress or pending on clusters. Raises AdminError."""
        names = "|".join(name.replace("-", "\\-") for name in clusters)
        pattern = quote(f"^cluster\\.({names})\\.upstream_rq_(active|pending_active)$", safe="")
        text = await self.get(f"/stats?filter={pattern}")
        return sum(int(line.rpartition(": ")[2]) for line in text.decode().splitlines())

    async def get(self, path: str) -> bytes:
        """Returns the body of an answer. Raises AdminError."""
        return await self._exchange("GET", path)

    async def post(self, path: str) -> bytes:
        """Asks the engine to do something. Raises AdminError."""
        return await self._exchange("POST", path)

    async def _exchange(self, method: str, path: str) -> bytes:
        try:
            async with asyncio.timeout(_TIMEOUT):
                reader, writer = await asyncio.open_unix_connection(str(self._path), limit=1 << 20)
                try:
                    # The engine closes after an answer to HTTP/1.1 with this header; then the body has no frames in it.
                    writer.write(f"{method} {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n".encode())
                    await writer.drain()
                    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                    body = await _body(reader, head)
                finally:
                    writer.close()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError) as error:
            raise AdminError(f"the engine's admin interface: {error!r}") from error
        status = int(head.split(" ", 2)[1])
        if status != _OK:
            raise AdminError(f"{path}: {status}")
        return body


async def _body(reader: asyncio.StreamReader, head: str) -> bytes:
    """Returns a body by its length: a connection may stay open for a while after it."""
    if "transfer-encoding: chunked" in head:
        return await _chunks(reader)
    found = _LENGTH.search(head)
    return await (reader.read() if found is None else reader.readexactly(int(found[1])))


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while size := int(await reader.readline(), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    return bytes(body)
