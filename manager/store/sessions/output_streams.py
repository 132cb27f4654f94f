"""Which bytes of kept output came from standard output and which from standard error: runs of bytes of one stream."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from retinue.rpc.core.output_stream import Stream

if TYPE_CHECKING:
    from collections.abc import Iterator

_RUN = struct.Struct(">I")
_LONGEST = (1 << 30) - 1
MAX_RUNS = 16_384
"""Beyond this, where the older half came from is forgotten: an agent that is not ours may send any number."""


class StreamRuns:
    """Runs of bytes, one after the other, from the first byte of some output on."""

    def __init__(self) -> None:
        """Begins with no bytes."""
        # Lengths and streams.
        self._runs: list[tuple[int, Stream]] = []

    def add(self, length: int, stream: Stream) -> None:
        """Adds bytes at the end."""
        if self._runs and self._runs[-1][1] == stream:
            length += self._runs.pop()[0]
        if length:
            self._runs.append((length, stream))
        if len(self._runs) > MAX_RUNS:
            older, newer = self._runs[: MAX_RUNS // 2], self._runs[MAX_RUNS // 2 :]
            self._runs = [(sum(length for length, _ in older), Stream.UNSPECIFIED), *newer]

    def drop(self, length: int) -> None:
        """Removes so many bytes from the beginning."""
        for number, (run, stream) in enumerate(self._runs):
            if run > length:
                self._runs[: number + 1] = [(run - length, stream)]
                return
            length -= run
        self._runs.clear()

    def encode(self) -> bytes:
        """Returns the runs as they are kept; nothing where no stream is known."""
        if all(stream == Stream.UNSPECIFIED for _, stream in self._runs):
            return b""
        return b"".join(_RUN.pack(min(length, _LONGEST) << 2 | stream) for length, stream in self._runs)

    @classmethod
    def decode(cls, data: bytes) -> StreamRuns:
        """Returns runs as they were kept; any bytes are some."""
        runs = cls()
        for (word,) in _RUN.iter_unpack(data[: len(data) // _RUN.size * _RUN.size]):
            runs.add(word >> 2, Stream.of(word & 3))
        return runs

    def parts(self, first: int, last: int) -> Iterator[tuple[int, int, Stream]]:
        """Yields the bytes from `first` up to `last` as beginning, end and stream of parts that follow each other."""
        begin = 0
        for length, stream in self._runs:
            end = begin + length
            if max(begin, first) < min(end, last):
                yield max(begin, first), min(end, last), stream
            begin = end
        if max(begin, first) < last:
            yield max(begin, first), last, Stream.UNSPECIFIED
