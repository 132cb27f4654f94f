"""The frames by which files go over a direct port: messages, and content that is copied nowhere on its way.

While one piece of content is used, the next one is read.
"""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from retinue.rpc.tls_socket import TlsSocket

LARGEST = 1 << 20
"""Bytes in one frame."""
_HEADER, _CONTENT = struct.Struct(">I"), 1 << 31
Frame: TypeAlias = bytes | memoryview
"""A message as bytes, or content as a view."""


class FrameError(Exception):
    """What came is no frame."""


async def send(tls: TlsSocket, frame: Frame) -> None:
    """Sends a message, or content. Raises OSError."""
    flag = _CONTENT if isinstance(frame, memoryview) else 0
    await tls.write(_HEADER.pack(flag | len(frame)), frame)


async def received(tls: TlsSocket) -> AsyncGenerator[Frame, None]:
    """Yields what comes, until the other side ends; content is good until the next frame is asked for.
    Raises FrameError, OSError.
    """
    rooms = [memoryview(bytearray(LARGEST)), memoryview(bytearray(LARGEST))]
    reading = asyncio.ensure_future(_read(tls, rooms[0]))
    try:
        while (frame := await reading) is not None:
            rooms.reverse()
            reading = asyncio.ensure_future(_read(tls, rooms[0]))
            yield frame
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def _read(tls: TlsSocket, room: memoryview) -> Frame | None:
    header = bytearray(_HEADER.size)
    count = await tls.fill(memoryview(header))
    if not count:
        return None
    (found,) = _HEADER.unpack(header)
    size = found & ~_CONTENT
    if count < len(header) or size > LARGEST or await tls.fill(room[:size]) < size:
        raise FrameError("no frame, or a part of one, has come")
    return room[:size] if found & _CONTENT else bytes(room[:size])
