"""A way to a database server by TCP that can fall silent, as a network does from which a host was cut off."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from sqlalchemy.engine import make_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class SilentProxy:
    """Passes connections on to the server's socket; while it is silent,
    nothing arrives in either direction and nothing is closed.
    """

    def __init__(self, socket_path: str) -> None:
        self._socket_path = socket_path
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    def fall_silent(self) -> None:
        """Cuts the way; what is sent from now on waits."""
        self._open.clear()

    def recover(self) -> None:
        """Lets everything through again, what waited first."""
        self._open.set()

    async def connected(self, near_reader: asyncio.StreamReader, near_writer: asyncio.StreamWriter) -> None:
        """Takes a connection."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._open.wait()
            far_reader, far_writer = await asyncio.open_unix_connection(self._socket_path)
            try:
                there = asyncio.create_task(self._pass_on(near_reader, far_writer))
                back = asyncio.create_task(self._pass_on(far_reader, near_writer))
                try:
                    await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
                    # An end that is not seen by the other side yet is one that waits, too.
                    await self._open.wait()
                finally:
                    there.cancel()
                    back.cancel()
                    await asyncio.gather(there, back, return_exceptions=True)
            finally:
                far_writer.close()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            near_writer.close()
            self._tasks.discard(task)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._open.wait()
                writer.write(data)
                await writer.drain()

    async def close(self) -> None:
        """Cuts everything."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


@contextlib.asynccontextmanager
async def silent_proxy(url: str) -> AsyncIterator[tuple[SilentProxy, str]]:
    """A proxy to the server of a URL with a socket's directory, and the URL by way of it."""
    parsed = make_url(url)
    proxy = SilentProxy(f"{parsed.query['host']}/.s.PGSQL.5432")
    server = await asyncio.start_server(proxy.connected, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    by_proxy = parsed.set(query={}, host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
    try:
        yield proxy, by_proxy
    finally:
        server.close()
        await proxy.close()
