"""The output of a kernel: one file per attempt, written by its pump (`pump.py`) and bounded by
giving the space of its oldest part back.

Offsets stay true for ever: a part that was given back is a hole in the file, and a reader sees the gap.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.agent.host import syscalls
from retinue.agent.inside.deferred_file import DeferredFile
from retinue.agent.inside.output_pump import INDEX, drain
from retinue.agent.inside.streams import StreamIndex
from retinue.rpc.core.output_stream import Stream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

CHUNK = 32 * 1024
"""Most bytes in one piece."""
BLOCK = 4096
MARKS = "output.marks"
RECENT = 5.0
"""Seconds after which output that has not grown needs no mark; more than there are between two looks."""
DRAIN_TIMEOUT = 5.0
"""Seconds that the last output may take to the file."""
IDLE_CHECK = 0.5
"""Seconds after which a follower looks again although nothing woke it: an end that leaves no mark in the directory."""
_MARK = struct.Struct(">Qd")
MAX_MARKS = 8192
"""At this number of marks every second one is dropped: older marks are coarser."""
_EVENTS = syscalls.IN_MODIFY | syscalls.IN_MOVED_TO | syscalls.IN_DELETE_SELF | syscalls.IN_MOVE_SELF


class Marks:
    """The times at which an attempt's output was printed: a file of marks, each an offset and a time. Methods block.

    A mark says that all before its offset was printed by its time. One is made each time a reader finds more, so what
    was printed since a moment begins at the last mark before that moment,
    or earlier by what was printed between two looks: never later.
    """

    def __init__(self, path: Path) -> None:
        """The file need not exist."""
        self._path = path

    def add(self, offset: int, time: float) -> None:
        """Records that all before `offset` was printed at `time`, in seconds since the epoch;
        does nothing if that is known.
        """
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            # A mark that a crash of the node cut off is invalid.
            count = os.fstat(descriptor).st_size // _MARK.size
            last = os.pread(descriptor, _MARK.size, (count - 1) * _MARK.size) if count else b""
            if last and _MARK.unpack(last)[0] >= offset:
                return
            if count >= MAX_MARKS:
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


class OffsetPastEndError(Exception):
    """The offset is past the end of the output; `size` is where it ends."""

    def __init__(self, size: int) -> None:
        """Keeps the size in bytes."""
        super().__init__(f"the output has {size} bytes")
        self.size = size


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of output, where they start, and where they came from as far as that was asked for and is known."""

    offset: int
    data: bytes
    stream: Stream = Stream.UNSPECIFIED


class Output:
    """The output file of one attempt. `over` says whether the attempt has ended, and with it its output."""

    def __init__(self, path: Path, over: Callable[[], bool]) -> None:
        """The file need not exist: an attempt that was never created printed nothing."""
        self._path = path
        self._over = over

    def size(self) -> int:
        """Returns the bytes printed so far, given back or not."""
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    def read(self, offset: int) -> Piece | None:
        """Returns the first bytes that are still there at or after `offset`; None when there are none. Blocks."""
        with _Reader(self._path) as reader:
            return reader.read(offset)

    def drain(self) -> None:
        """Waits, for a while, until all that an attempt of which nothing is left has printed is there. Blocks."""
        drain(self._path.parent, DRAIN_TIMEOUT)

    def tail(self, count: int) -> str:
        """Returns the last bytes as text, for a message."""
        piece = self.read(max(0, self.size() - count))
        return "" if piece is None else piece.data.decode(errors="replace").strip()

    def since(self, time: float) -> int:
        """Returns the offset from which nothing printed since `time`, in seconds since the epoch, is left out.
        Blocks.
        """
        return Marks(self._path.with_name(MARKS)).before(time)

    def last_lines(self, count: int) -> int:
        """Returns the offset of the last `count` lines, an unfinished one included, or of what remains of them.
        Blocks.
        """
        with _Reader(self._path) as reader:
            first, size = reader.read(0), self.size()
            start = size if first is None else first.offset
            end, left = size, count
            while end > start:
                begin = max(start, end - CHUNK)
                piece = reader.read(begin)
                if piece is None or piece.offset != begin:
                    # The size limit took it in this moment.
                    return end
                data = piece.data[: end - begin]
                # The end of the last line does not begin another.
                position = len(data) - (1 if end == size and data.endswith(b"\n") else 0)
                while (position := data.rfind(b"\n", 0, position)) >= 0:
                    left -= 1
                    if left <= 0:
                        return begin + position + 1
                end = begin
            return start

    def look(self, limit: int, time: float) -> None:
        """Marks how far it has come by `time`, in seconds since the epoch, and bounds it. Blocks."""
        with contextlib.suppress(FileNotFoundError):
            status = self._path.stat()
            if time - status.st_mtime < RECENT:
                Marks(self._path.with_name(MARKS)).add(status.st_size, time)
        self.bound(limit)

    def bound(self, limit: int) -> None:
        """Gives the space of the oldest part back when the file takes an eighth more than `limit` bytes. Blocks."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return
        if status.st_blocks * 512 <= limit + limit // 8:
            return
        length = (status.st_size - limit) // BLOCK * BLOCK
        if length <= 0:
            return
        descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            syscalls.punch_hole(descriptor, 0, length)
        finally:
            os.close(descriptor)

    async def stream(self, offset: int, follow: bool) -> AsyncGenerator[Piece, None]:
        """Yields pieces, each from one stream, from `offset` to the current end or, with `follow`, until the attempt
        has ended. An empty one at the end says that bytes up to its offset are lost.

        Raises OffsetPastEndError.
        """
        if offset > (size := self.size()):
            raise OffsetPastEndError(size)
        # One reader throughout: it continues to the end even if the attempt is removed meanwhile.
        with (
            _Reader(self._path) as reader,
            StreamIndex(self._path.with_name(INDEX)) as index,
            _Wakeups(self._path.parent) if follow else contextlib.nullcontext() as wakeups,
        ):
            while True:
                # In this order: what was printed before the end is then read after the end was seen.
                over, end = self._over(), await asyncio.to_thread(self.size)
                while pieces := await asyncio.to_thread(_read_parts, reader, index, offset):
                    for piece in pieces:
                        yield piece
                        offset = piece.offset + len(piece.data)
                if wakeups is None or over:
                    if offset < end:
                        # What could not be written at the end: the reader learns how much it was.
                        yield Piece(end, b"")
                    return
                await wakeups.wait(IDLE_CHECK)


class _Reader:
    """Reads an output that may be created later, and may be removed."""

    def __init__(self, path: Path) -> None:
        self._file = DeferredFile(path)

    def __enter__(self) -> _Reader:
        self._file.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, offset: int) -> Piece | None:
        """Returns the first bytes that are there at or after `offset`; None when there are none. Blocks."""
        with self._file.opened() as descriptor:
            if descriptor is None:
                return None
            try:
                start = os.lseek(descriptor, offset, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return None
                raise
            data = os.pread(descriptor, CHUNK, start)
        return Piece(start, data) if data else None


def _read_parts(reader: _Reader, index: StreamIndex, offset: int) -> list[Piece]:
    piece = reader.read(offset)
    if piece is None:
        return []
    first = piece.offset
    return [
        Piece(part.start, piece.data[part.start - first : part.end - first], part.stream)
        for part in index.partition(first, first + len(piece.data))
    ]


class _Wakeups:
    """Wakes when a file in a directory changes or is replaced."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._event = asyncio.Event()
        self._descriptor = -1

    def __enter__(self) -> _Wakeups:
        with contextlib.suppress(FileNotFoundError):
            self._descriptor = syscalls.inotify(str(self._directory), _EVENTS)
            asyncio.get_running_loop().add_reader(self._descriptor, self._ready)
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)

    def _ready(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._descriptor, 64 * 1024)
        self._event.set()

    async def wait(self, limit: float) -> None:
        """Returns at the first event since the last call, or after `limit` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await self._event.wait()
        self._event.clear()
