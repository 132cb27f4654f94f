"""The channels into a guest: one for its first process, and streams for all that the agent runs or connects to inside.

A guest is an adversary: nothing that it sends is used but the numbers of answers,
and what makes no sense ends the channel, not more.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import stat
from typing import TYPE_CHECKING

from retinue.agent.errors import KernelRuntimeError, NotRunningError
from retinue.agent.vm.core import guest_frames
from retinue.agent.vm.core.guest_frames import GuestFrameError
from retinue.agent.vm.core.machine import STREAMS, stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator
    from pathlib import Path

ANSWER_TIMEOUT = 30.0
"""Seconds that a guest may take to answer: without KVM, on a busy node, it is slow."""
GREETING_TIMEOUT = 2.0
"""Seconds after which a stream is tried again."""
STREAM_TIMEOUT = 30.0
STREAM_PAUSE = 0.1
"""Seconds between two tries, however fast a guest refuses."""
MAX_STALE = 64
"""Answers to former questions that are left out before one."""


class GuestError(KernelRuntimeError):
    """The guest does not do what it was asked, or does not answer; the text says what."""


class GuestRefusedError(GuestError):
    """The guest answered that it does not do what it was asked."""


@contextlib.asynccontextmanager
async def _connected(path: Path) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await _connect(path)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _connect(path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    with opened_socket(path) as there:
        return await asyncio.open_unix_connection(there)


@contextlib.contextmanager
def opened_socket(path: Path) -> Iterator[str]:
    """Yields the path at which a machine's socket can be connected to. Raises OSError when no socket is there.

    The directory is QEMU's: a link in it could lead to any socket of the node.
    """
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            raise ConnectionRefusedError(errno.ECONNREFUSED, "it is no socket", str(path))
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


async def wait_booted(path: Path) -> None:
    """Returns once the guest says that it has booted. Raises GuestError when it says something else,
    OSError when it has ended.
    """
    async with _connected(path) as (reader, _):
        kind, _ = await _receive(reader)
        if kind != guest_frames.BOOTED:
            raise GuestError("the guest answers before it has booted")


async def ask(path: Path, kind: bytes, fields: Iterable[bytes] = (), seconds: float = ANSWER_TIMEOUT) -> None:
    """Asks the first process of a guest for something, and returns when it is done. Raises GuestError, OSError."""
    number = secrets.token_bytes(4)
    try:
        await _ask(path, number, guest_frames.request(kind, number, fields), seconds)
    except GuestFrameError as error:
        raise GuestError(str(error)) from error


async def send_signal(path: Path, signal: int) -> None:
    """Sends the guest's command a signal. Raises GuestError, OSError."""
    number = secrets.token_bytes(4)
    await _ask(path, number, guest_frames.signal_request(number, signal), ANSWER_TIMEOUT)


async def _ask(path: Path, number: bytes, frame: bytes, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds), _connected(path) as (reader, writer):
            writer.write(frame)
            for _ in range(MAX_STALE):
                kind, body = await _receive(reader)
                # What another question was answered with, before this process asked, is left over.
                if kind == guest_frames.ANSWERED and (answer := guest_frames.parse_answer(body))[0] == number:
                    break
            else:
                raise GuestError("the guest answers what it was not asked")
    except TimeoutError as error:
        raise GuestError(f"the guest does not answer within {seconds:.0f} s") from error
    except GuestFrameError as error:
        raise GuestError(str(error)) from error
    if (code := answer[1]) != 0:
        raise GuestRefusedError(f"the guest says: {os.strerror(code) if code < 1 << 15 else code}")


async def _receive(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    try:
        kind, length = guest_frames.parse_header(await reader.readexactly(guest_frames.HEADER.size))
        return kind, await reader.readexactly(length)
    except asyncio.IncompleteReadError as error:
        raise ConnectionResetError("the guest has ended") from error
    except GuestFrameError as error:
        raise GuestError(str(error)) from error


class Streams:
    """The streams of one guest that are free. Methods belong on one event loop."""

    def __init__(self, sockets: Path) -> None:
        """`sockets` is the directory of the machine's sockets."""
        self._sockets = sockets
        # The one that was given back last is given out last: the guest may not be done with it.
        self._free = list(range(STREAMS))

    async def open(self) -> tuple[int, asyncio.StreamReader, asyncio.StreamWriter]:
        """Returns a stream with the helper `attach` at its other end. Raises NotRunningError, GuestError."""
        if not self._free:
            raise GuestError(f"a virtual machine has {STREAMS} connections at a time, and all are in use")
        number = self._free.pop(0)
        try:
            reader, writer = await self._greeted(number)
        except BaseException:
            self._free.append(number)
            raise
        return number, reader, writer

    async def give_back(self, number: int) -> None:
        """Returns when nothing is left of what ran at a stream that was closed, or that cannot be found out."""
        try:
            with contextlib.suppress(KernelRuntimeError):
                _, writer = await self._greeted(number)
                writer.transport.abort()
        finally:
            self._free.append(number)

    async def _greeted(self, number: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        path = self._sockets / stream(number)
        try:
            async with asyncio.timeout(STREAM_TIMEOUT):
                while True:
                    reader, writer = await _connect(path)
                    greeting = guest_frames.GREETING.pack(b"R", secrets.token_bytes(8))
                    try:
                        writer.write(greeting)
                        async with asyncio.timeout(GREETING_TIMEOUT):
                            if await reader.readexactly(len(greeting)) == greeting:
                                return reader, writer
                        writer.transport.abort()
                    except (TimeoutError, asyncio.IncompleteReadError):
                        # A former connection is not over yet in there.
                        writer.transport.abort()
                    except BaseException:
                        writer.transport.abort()
                        raise
                    await asyncio.sleep(STREAM_PAUSE)
        except TimeoutError as error:
            raise GuestError("the guest does not take a connection") from error
        except OSError as error:
            raise NotRunningError("the kernel has ended") from error
