"""The times at which output was printed: marks with an offset and a time, beside the output of an attempt.

A mark says that all before its offset was printed by its time. One is made each time a reader finds more, so what was printed
since a moment begins at the last mark before that moment, or earlier by what was printed between two looks: never later.
"""

from __future__ import annotations

import contextlib
import os
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_MARK = struct.Struct(">Qd")
MOST = 8192
"""At this number of marks every second one is dropped: older marks are coarser."""


class Marks:
    """The file of marks of one attempt. Methods block."""

    def __init__(self, path: Path) -> None:
        """The file need not exist."""
        self._path = path

    def add(self, offset: int, time: float) -> None:
        """Records that all before `offset` was printed at `time`, in seconds since the epoch; does nothing if that is known."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            # A mark that a crash of the node cut off is invalid.
            count = os.fstat(descriptor).st_size // _MARK.size
            last = os.pread(descriptor, _MARK.size, (count - 1) * _MARK.size) if count else b""
            if last and _MARK.unpack(last)[0] >= offset:
                return
            if count >= MOST:
                kept = _all(os.pread(descriptor, count * _MARK.size, 0))[1::2]
                os.ftruncate(descriptor, 0)
                os.write(descriptor, b"".join(_MARK.pack(*mark) for mark in kept))
            os.write(descriptor, _MARK.pack(offset, time))
        finally:
            os.close(descriptor)

    def before(self, time: float) -> int:
        """Returns the offset from which nothing printed since `time` is left out; 0 when no mark is that old."""
        with contextlib.suppress(FileNotFoundError):
            return max((offset for offset, when in _all(self._path.read_bytes()) if when <= time), default=0)
        return 0


def _all(data: bytes) -> list[tuple[int, float]]:
    return list(_MARK.iter_unpack(data[: len(data) // _MARK.size * _MARK.size]))
