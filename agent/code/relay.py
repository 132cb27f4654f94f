"""Stands between libzmq and a socket of a Jupyter kernel, so that nothing the kernel sends
grows the agent beyond bounds.

What the kernel says is followed frame by frame (`zmtp.py`); a sender of too much at once is cut off. No more is read
than one message beyond those that were taken: the rest waits in the kernel.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import tempfile
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.agent.code.core.zmtp import FrameCounter, RefusedMessageError

if TYPE_CHECKING:
    from retinue.agent.runtime.kernel import KernelSocket

_log = logging.getLogger(__name__)

PIECE = 64 * 1024
MESSAGE_COST = 1024
"""Bytes that a message counts for besides its content."""


class Relay:
    """One channel. Close it in any case."""

    def __init__(self, target: KernelSocket, largest: int) -> None:
        """`target` is the kernel's socket, which stays its owner's; `largest` are bytes of a message."""
        self._target = target
        self._largest = largest
        self._descriptor = -1
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._under_way: deque[int] = deque()
        self._waiting = 0
        self._changed = asyncio.Event()

    async def open(self) -> None:
        """Begins to listen, at `address`."""
        listener = socket.socket(socket.AF_UNIX)
        with tempfile.TemporaryDirectory(prefix="retinue-") as directory:
            path = Path(directory, "s")
            listener.bind(str(path))
            # It is reached by the descriptor from now on: nothing of it is left in the file system.
            self._descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        self._server = await asyncio.start_unix_server(self._accept, sock=listener, limit=PIECE)

    @property
    def address(self) -> str:
        """Returns the address that libzmq connects to."""
        return f"ipc:///proc/self/fd/{self._descriptor}"

    def taken(self) -> None:
        """Records that the oldest message in flight was read."""
        if self._under_way:
            self._waiting -= self._under_way.popleft()
        self._changed.set()

    async def close(self) -> None:
        """Ends all connections."""
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._connect(reader, writer), name="relay of a Jupyter kernel")
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Messages in flight on an earlier connection were lost with it.
        self._under_way.clear()
        self._waiting = 0
        with contextlib.closing(writer):
            try:
                connection = await self._target.connect()
            except OSError:
                return
            connection.setblocking(False)
            with contextlib.closing(connection):
                tasks = (
                    asyncio.create_task(self._to_kernel(reader, connection)),
                    asyncio.create_task(self._from_kernel(connection, writer)),
                )
                try:
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)

    @staticmethod
    async def _to_kernel(reader: asyncio.StreamReader, connection: socket.socket) -> None:
        loop, reads = asyncio.get_running_loop(), True
        while data := await reader.read(PIECE):
            if reads:
                try:
                    await loop.sock_sendall(connection, data)
                except OSError:
                    # What it said before it closed the connection is still read.
                    reads = False

    async def _from_kernel(self, connection: socket.socket, writer: asyncio.StreamWriter) -> None:
        frames, loop = FrameCounter(self._largest), asyncio.get_running_loop()
        try:
            # From the socket itself: a stream reader raises the error of a reset before it returns what came before.
            while data := await loop.sock_recv(connection, PIECE):
                for size in frames.feed(data):
                    self._under_way.append(size + MESSAGE_COST)
                    self._waiting += size + MESSAGE_COST
                writer.write(data)
                await writer.drain()
                while self._waiting > self._largest:
                    self._changed.clear()
                    await self._changed.wait()
        except RefusedMessageError as error:
            _log.info("a Jupyter kernel is cut off: %s", error)
        except OSError:
            return
