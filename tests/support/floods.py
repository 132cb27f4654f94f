"""What strangers flood a port of gRPC with, without an end: bytes that follow the preface of HTTP/2."""

from __future__ import annotations

import itertools
import struct
from typing import TYPE_CHECKING

from tests.support.http2_frames import (
    CONTINUATION,
    END_HEADERS,
    END_STREAM,
    PING,
    RST_STREAM,
    SETTINGS,
    frame,
    headers,
    request,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_CREATE = "/retinue.manager.v1.SessionService/CreateSession"


def _many(frames: bytes, first: bytes = b"") -> Iterator[bytes]:
    return itertools.chain([first], itertools.repeat(frames * (65_536 // len(frames))))


def _calls(*, taken_back: bool) -> Iterator[bytes]:
    """Calls without credentials, each of which is taken back at once, or not."""
    for first in itertools.count(1, 2000):
        pieces = []
        for stream in range(first, first + 2000, 2):
            pieces.append(headers(stream, request(_CREATE), END_HEADERS | END_STREAM))
            if taken_back:
                pieces.append(frame(RST_STREAM, 0, stream, struct.pack(">I", 8)))
        yield b"".join(pieces)


FLOODS: dict[str, Callable[[], Iterator[bytes]]] = {
    "settings": lambda: _many(frame(SETTINGS, 0, 0)),
    "pings": lambda: _many(frame(PING, 0, 0, bytes(8))),
    # Fields of an uncompressed letter each.
    "continuation": lambda: _many(frame(CONTINUATION, 0, 1, b"\0\1a\1b"), headers(1, request(_CREATE), 0)),
    "resets": lambda: _calls(taken_back=True),
    "calls": lambda: _calls(taken_back=False),
}
