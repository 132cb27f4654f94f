"""Frames of HTTP/2 as they are on the wire, for clients and servers that write them by hand, right and wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 6, 7, 8, 9
END_STREAM, END_HEADERS, ACKNOWLEDGED = 1, 4, 1
# `:status: 200` and `:status: 103` in HPACK.
OK = b"\x88"
EARLY = b"\x08\x03103"
_HEAD = 9


def frame(kind: int, flags: int, stream: int, payload: bytes = b"", size: int | None = None) -> bytes:
    """One frame; `size` is what it says of its payload, if that is a lie."""
    return (len(payload) if size is None else size).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


SETTINGS = frame(4, 0, 0)


def headers(block: bytes, flags: int = END_HEADERS) -> bytes:
    """Headers of the first request, or of its answer."""
    return frame(HEADERS, flags, 1, block)


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, int, bytes]:
    """Returns kind, flags and payload of the next frame. Raises IncompleteReadError at the end."""
    head = await reader.readexactly(_HEAD)
    return head[3], head[4], await reader.readexactly(int.from_bytes(head[:3]))


async def read_request(reader: asyncio.StreamReader) -> None:
    """Reads what a client says up to the head of its first request."""
    await reader.readexactly(len(PREFACE))
    while (await read_frame(reader))[0] != HEADERS:
        pass
