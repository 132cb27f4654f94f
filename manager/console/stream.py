"""Carries one stream of the API over a websocket, from its start to its end, whichever side ends it.

A message is asked for on either side only when the one before it was taken. The socket is read all the while, but not
far ahead of the call, so that its close is seen, and input waits for its reader. Browsers take whatever comes, so a
page may say how much it has dealt with: then what it has not stays bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from aiohttp import WSMsgType, web

from retinue.manager.console.core.frames import End

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

HEARTBEAT_SECONDS = 20.0
# How often the caller's token is looked at. The API does so itself, but not while its answers are not read.
RECHECK_SECONDS = 2.0
CLOSE_SECONDS = 2.0
# Requests beside the one that the call takes: each may be of megabytes, and a user has many sockets.
_AHEAD = 1
# How much a page that reports what it has taken may have before it.
WINDOW_BYTES = 512 << 10
_LONGEST_REPORT = 15

_NOT_A_MESSAGE = End(
    grpc.StatusCode.INVALID_ARGUMENT.value[0],
    "requests are binary messages, and end by an empty text; another text is the number of bytes that were taken",
)


class Window:
    """How much more a page may be sent. One that reports nothing takes everything at once."""

    def __init__(self) -> None:
        """Nothing is sent or reported yet."""
        self._sent = 0
        self._taken: int | None = None
        self._open = False
        self._changed = asyncio.Event()

    def report(self, taken: int) -> None:
        """Notes how many bytes the page has taken in all; it cannot take any back."""
        self._taken = max(taken, self._taken or 0)
        self._changed.set()

    def open(self) -> None:
        """Lets everything pass until it is closed again: reports cannot be heard."""
        self._open = True
        self._changed.set()

    def close(self) -> None:
        """Bounds what is sent again."""
        self._open = False

    async def send(self, size: int) -> None:
        """Counts a message, and returns when there is room for another."""
        self._sent += size
        while self._taken is not None and not self._open and self._sent - self._taken > WINDOW_BYTES:
            self._changed.clear()
            await self._changed.wait()


class Stream:
    """One socket with its call."""

    def __init__(self, socket: web.WebSocketResponse, check: Callable[[], Awaitable[End | None]]) -> None:
        """`check` returns what the stream has to end with when its caller's token is good no more."""
        self._socket = socket
        self._check = check
        # None ends the requests.
        self._requests: asyncio.Queue[bytes | None] = asyncio.Queue(_AHEAD)
        self._window = Window()
        # Set whenever something comes, or something that was sent has gone.
        self._lives = True
        # While requests wait for their reader, nothing is read: neither an answer to a ping nor a close.
        self._waits = False

    async def carry(self, channel: grpc.aio.Channel, method: str, metadata: tuple[tuple[str, str], ...]) -> None:
        """Calls a method, and returns when the stream has ended and the socket is closed."""
        make: Any = channel.stream_stream(method)
        call: grpc.aio.StreamStreamCall[bytes, bytes] = make(self._given(), metadata=metadata)
        # The first that ends says with what the stream ends: nothing when the client has gone.
        parts = [asyncio.create_task(part) for part in (self._read(), self._write(call), self._beat(), self._watch())]
        try:
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            end = next(part.result() for part in parts if part in done)
        finally:
            call.cancel()
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
        await self.end(end)

    async def _given(self) -> AsyncIterator[bytes]:
        while (message := await self._requests.get()) is not None:
            yield message

    async def _read(self) -> End | None:
        ended = False
        while True:
            message = await self._socket.receive()
            self._lives = True
            match message.type:
                case WSMsgType.BINARY if not ended:
                    await self._give(message.data)
                case WSMsgType.TEXT if not message.data and not ended:
                    ended = True
                    await self._give(None)
                case WSMsgType.TEXT if message.data.isdecimal() and len(message.data) <= _LONGEST_REPORT:
                    self._window.report(int(message.data))
                case WSMsgType.PING:
                    await self._socket.pong(message.data)
                case WSMsgType.PONG:
                    continue
                case WSMsgType.BINARY | WSMsgType.TEXT:
                    return _NOT_A_MESSAGE
                case _:
                    return None

    async def _give(self, message: bytes | None) -> None:
        self._waits = True
        # Reports behind this request are not read meanwhile, and it may wait for output to be taken.
        self._window.open()
        await self._requests.put(message)
        self._waits = False
        self._window.close()

    async def _write(self, call: grpc.aio.StreamStreamCall[bytes, bytes]) -> End | None:
        try:
            async for message in call:
                await self._socket.send_bytes(message)
                self._lives = True
                await self._window.send(len(message))
        except grpc.aio.AioRpcError as error:
            return end_of(error)
        except ConnectionError:
            return None
        return End()

    async def _beat(self) -> None:
        """Returns when the client is silent, and takes nothing, for longer than a heartbeat."""
        while True:
            self._lives = False
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await self._socket.ping()
            await asyncio.sleep(HEARTBEAT_SECONDS)
            if not self._lives and not self._waits:
                return

    async def _watch(self) -> End:
        while True:
            await asyncio.sleep(RECHECK_SECONDS)
            if (end := await self._check()) is not None:
                return end

    async def end(self, end: End | None) -> None:
        """Says how the call ended, unless the client has gone, and closes the socket: whether that is read or not."""
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(CLOSE_SECONDS):
                if end is not None:
                    await self._socket.send_str(end.json())
                await self._socket.close()


def end_of(error: grpc.aio.AioRpcError) -> End:
    """Returns the end of a call that failed."""
    metadata = error.trailing_metadata() or ()
    details = [value for key, value in metadata if key == "grpc-status-details-bin" and isinstance(value, bytes)]
    return End(error.code().value[0], error.details() or "", details[0] if details else b"")
