"""A command inside a kernel on behalf of a caller outside: the frames sent to `attach.c`, and its answers.

Nothing is read from the kernel before the reader asks for it, and no more input is sent than the command takes, so that
neither a slow reader nor a command that does not read fills memory here.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from retinue.agent.errors import BackendError
from retinue.agent.kernel.core import frames

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from retinue.agent.kernel.core.frames import Start

START_TIMEOUT = 30.0
"""Seconds that the command may take to be started."""
BUFFER = 64 * 1024
"""Bytes read ahead from a kernel."""
_DOCKER_HEADER = struct.Struct(">BxxxI")
_DOCKER_OUTPUT = 1


class AttachmentLostError(BackendError):
    """The way into the kernel broke, or the kernel ended; nothing of the command is left, or will be in a moment."""


class Source(Protocol):
    """The source of frames."""

    async def readexactly(self, count: int) -> bytes:
        """Returns so many bytes. Raises asyncio.IncompleteReadError at the end."""
        ...


@dataclass(frozen=True, slots=True)
class Wire:
    """The way to a helper inside a kernel; `ended` waits for what is left of it after the wire was closed.

    `environment` and `directory` are those of the kernel's command, as far as the helper does not have them already.
    """

    source: Source
    writer: asyncio.StreamWriter
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

    def __init__(self, wire: Wire) -> None:
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
            raise AttachmentLostError(data.decode(errors="replace"))
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
        """Yields events, up to `Exited`. Raises AttachmentLostError."""
        while True:
            kind, data = await self._receive()
            if kind == frames.TAKEN:
                self._window += frames.NUMBER.unpack(data)[0]
                self._taken.set()
            elif kind == frames.STARTED:
                yield Started()
            elif kind in {frames.OUTPUT, frames.ERRORS}:
                yield Printed(data, errors=kind == frames.ERRORS)
            elif kind == frames.EXITED:
                yield Exited(frames.NUMBER.unpack(data)[0])
                return
            else:
                raise AttachmentLostError(data.decode(errors="replace"))

    async def close(self) -> None:
        """Ends the command if it has not ended, and returns when nothing of it is left."""
        # Not `close`, which would first wait for the kernel to take what is still to be sent.
        self._wire.writer.transport.abort()
        with contextlib.suppress(OSError):
            await self._wire.writer.wait_closed()
        await self._wire.ended()

    async def _send(self, data: bytes) -> None:
        try:
            self._wire.writer.write(data)
            await self._wire.writer.drain()
        except OSError as error:
            raise AttachmentLostError("the kernel has ended") from error

    async def _receive(self) -> tuple[bytes, bytes]:
        try:
            kind, length = frames.HEADER.unpack(await self._wire.source.readexactly(frames.HEADER.size))
            if length > frames.LARGEST:
                raise AttachmentLostError("what comes from the kernel makes no sense")
            return kind, await self._wire.source.readexactly(length)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise AttachmentLostError("the kernel has ended") from error


class DockerStream:
    """The bytes that a program in a container prints, out of the engine's stream of output and errors; a Source.

    Each piece is preceded by eight bytes: which stream, three zeros, and the length (Docker Engine API, "Attach to a container").
    """

    def __init__(self, reader: asyncio.StreamReader) -> None:
        """Takes over the reader."""
        self._reader = reader
        self._left = 0

    async def readexactly(self, count: int) -> bytes:
        """Returns so many bytes of output; errors of the helper itself are left out."""
        parts: list[bytes] = []
        while count > 0:
            while self._left == 0:
                stream, length = _DOCKER_HEADER.unpack(await self._reader.readexactly(_DOCKER_HEADER.size))
                if stream == _DOCKER_OUTPUT:
                    self._left = length
                else:
                    await self._reader.readexactly(length)
            part = await self._reader.readexactly(min(count, self._left))
            self._left -= len(part)
            count -= len(part)
            parts.append(part)
        return b"".join(parts)
