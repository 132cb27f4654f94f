"""A command inside a kernel on behalf of a caller outside: the frames sent to `attach.c`, and its answers.

Nothing is read from the kernel before the reader asks for it, and no more input is sent than the command takes, so that
neither a slow reader nor a command that does not read fills memory here.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from retinue.agent.errors import KernelRuntimeError
from retinue.agent.kernel.core import frames

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from retinue.agent.kernel.core.frames import Start

BUFFER = 64 * 1024
"""Bytes read ahead from a kernel."""


MAX_EXIT_CODE = 255
FRAMES_AT_A_TIME = 256
"""Frames that are read before others have their turn: a helper may send many small ones, all of which are there."""
# Bytes of the words with which a helper refuses a command.
_MAX_REFUSAL = 1000
_NONSENSE = "what comes from the kernel makes no sense"


class AttachmentLostError(KernelRuntimeError):
    """The way into the kernel broke, or the kernel ended; nothing of the command is left, or will be in a moment."""


class Channel(Protocol):
    """Bytes to and from a helper inside a kernel."""

    async def readexactly(self, count: int) -> bytes:
        """Returns so many bytes. Raises asyncio.IncompleteReadError at the end, OSError."""
        ...

    async def send(self, data: bytes) -> None:
        """Passes bytes on, and returns when not too many wait to be taken. Raises OSError."""
        ...

    async def close(self) -> None:
        """Ends both directions, without waiting for the kernel to take anything."""
        ...


@dataclass(frozen=True, slots=True)
class ExecStream:
    """The way to a helper inside a kernel; `ended` waits for what is left of it after the wire was closed.

    `environment` and `directory` are those of the kernel's command, as far as the helper does not have them already.
    """

    channel: Channel
    ended: Callable[[], Awaitable[None]]
    environment: dict[str, str]
    directory: str = ""


@dataclass(frozen=True, slots=True)
class Started:
    """The command runs."""


@dataclass(frozen=True, slots=True)
class Printed:
    """Output of the command; `errors` says that it came on standard error."""

    data: bytes
    errors: bool


@dataclass(frozen=True, slots=True)
class Exited:
    """The command and all that it started have ended; 128 + n after signal n."""

    code: int


class Attachment:
    """One command. Close it in any case; what has not ended by then is ended."""

    def __init__(self, wire: ExecStream) -> None:
        """Takes over the wire."""
        self._wire = wire
        self._window = frames.WINDOW
        self._taken = asyncio.Event()

    async def start(self, start: Start) -> None:
        """Starts the command; once, before anything else."""
        await self._send(frames.start_frame(start))

    async def start_apart(self, start: Start, log: str) -> bool:
        """Starts a command that continues when this is closed, and prints into a file; False when it runs already.

        Instead of `start`. Raises AttachmentLostError.
        """
        await self._send(frames.apart_frame(start, log))
        kind, data = await self._receive()
        if kind not in {frames.STARTED, frames.RUNNING}:
            raise AttachmentLostError(_refusal(kind, data))
        return kind == frames.STARTED

    async def write(self, data: bytes) -> None:
        """Passes input on, and returns when all of it is under way."""
        view = memoryview(data)
        while view:
            while self._window == 0:
                self._taken.clear()
                await self._taken.wait()
            piece, view = bytes(view[: self._window]), view[self._window :]
            self._window -= len(piece)
            await self._send(frames.input_frame(piece))

    async def end_input(self) -> None:
        """Ends the input."""
        await self._send(frames.end_frame())

    async def resize(self, rows: int, columns: int) -> None:
        """Gives the terminal another size; nothing to do without one."""
        await self._send(frames.resize_frame(rows, columns))

    async def signal(self, number: int) -> None:
        """Sends a signal to the command."""
        await self._send(frames.signal_frame(number))

    async def events(self) -> AsyncGenerator[Started | Printed | Exited, None]:
        """Yields events, up to `Exited`. Raises AttachmentLostError.

        What a helper of ours does not send ends it: no frame is without an effect, so that none can be sent for ever.
        """
        started = False
        for number in itertools.count(1):
            if number % FRAMES_AT_A_TIME == 0:
                await asyncio.sleep(0)
            kind, data = await self._receive()
            if kind == frames.TAKEN:
                # At a terminal, the end of input is taken like a byte of it.
                taken = _number(data, frames.WINDOW + 1 - self._window)
                if taken == 0:
                    raise AttachmentLostError(_NONSENSE)
                self._window += taken
                self._taken.set()
            elif kind == frames.STARTED and not started:
                started = True
                yield Started()
            elif kind in {frames.OUTPUT, frames.ERRORS} and data:
                yield Printed(data, errors=kind == frames.ERRORS)
            elif kind == frames.EXITED:
                yield Exited(_number(data, MAX_EXIT_CODE))
                return
            else:
                raise AttachmentLostError(_refusal(kind, data))

    async def close(self) -> None:
        """Ends the command if it has not ended, and returns when nothing of it is left."""
        with contextlib.suppress(OSError):
            await self._wire.channel.close()
        await self._wire.ended()

    async def _send(self, data: bytes) -> None:
        try:
            await self._wire.channel.send(data)
        except OSError as error:
            raise AttachmentLostError("the kernel has ended") from error

    async def _receive(self) -> tuple[bytes, bytes]:
        try:
            kind, length = frames.HEADER.unpack(await self._wire.channel.readexactly(frames.HEADER.size))
            if length > frames.LARGEST:
                raise AttachmentLostError(_NONSENSE)
            return kind, await self._wire.channel.readexactly(length)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise AttachmentLostError("the kernel has ended") from error


def _refusal(kind: bytes, data: bytes) -> str:
    return data[:_MAX_REFUSAL].decode(errors="replace") if kind == frames.REFUSED else _NONSENSE


def _number(data: bytes, most: int) -> int:
    """Returns the number of a frame. Raises AttachmentLostError when it is none that a helper of ours sends."""
    if len(data) != frames.NUMBER.size or (number := int(frames.NUMBER.unpack(data)[0])) > most:
        raise AttachmentLostError(_NONSENSE)
    return number


class SocketChannel:
    """The socket of a helper; a Channel."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Takes over the socket."""
        self._writer = writer
        self.readexactly = reader.readexactly

    async def send(self, data: bytes) -> None:
        """Passes bytes on."""
        self._writer.write(data)
        await self._writer.drain()

    async def close(self) -> None:
        """Ends both directions."""
        # Not `close`, which would first wait for the kernel to take what is still to be sent.
        self._writer.transport.abort()
        await self._writer.wait_closed()
