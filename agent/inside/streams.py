"""Which bytes of an output came from standard output and which from standard error: the index that the pump writes
beside the output (`agent/kernel/pump.c`).

It is a file of spans, in the order of their bytes. Where spans overlap, the later one counts. What no span says, or
one that is damaged, is unspecified: reading the index never fails for what is in it.
"""

from __future__ import annotations

import contextlib
import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.agent.inside.deferred_file import DeferredFile
from retinue.rpc.core.output_stream import Stream

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_RECORD = struct.Struct("=QII")
RECORD_BYTES = _RECORD.size
# Spans that are read at a time.
_BLOCK = 1024
_FACTOR, _MASK = 2654435761, 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Span:
    """The bytes from `start` up to `end` came from `stream`."""

    start: int
    end: int
    stream: Stream


def encode(span: Span) -> bytes:
    """Returns a span as the pump writes it."""
    length = span.end - span.start
    return _RECORD.pack(span.start, length, _mark(span.start, length, span.stream))


def decode(data: bytes) -> Iterator[Span]:
    """Yields the spans in some bytes; leaves out what is damaged."""
    for start, length, mark in _RECORD.iter_unpack(data[: len(data) // RECORD_BYTES * RECORD_BYTES]):
        stream = mark & 3
        if length and stream in (Stream.STDOUT, Stream.STDERR) and mark == _mark(start, length, stream):
            yield Span(start, start + length, Stream(stream))


def _mark(start: int, length: int, stream: int) -> int:
    check = (start ^ start >> 32 ^ length ^ stream) & _MASK
    return (check * _FACTOR & _MASK & ~3) | stream


def partition(spans: Iterable[Span], start: int, end: int) -> list[Span]:
    """Returns the bytes from `start` up to `end` as spans that follow each other, those that no span says included."""
    found: list[Span] = []
    for span in spans:
        first, last = max(span.start, start), min(span.end, end)
        if first >= last:
            continue
        while found and found[-1].start >= first:
            found.pop()
        if found and found[-1].end > first:
            found[-1] = Span(found[-1].start, first, found[-1].stream)
        found.append(Span(first, last, span.stream))
    whole: list[Span] = []
    for span in (*found, Span(end, end, Stream.UNSPECIFIED)):
        before = whole[-1].end if whole else start
        if before < span.start:
            whole.append(Span(before, span.start, Stream.UNSPECIFIED))
        if span.start < span.end:
            if whole and whole[-1].stream is span.stream:
                whole[-1] = Span(whole[-1].start, span.end, span.stream)
            else:
                whole.append(span)
    return whole


class StreamIndex:
    """The index of one output; the file may be made later, may be removed, and may never be there."""

    def __init__(self, path: Path) -> None:
        """Opens nothing yet."""
        self._file = DeferredFile(path)

    def __enter__(self) -> StreamIndex:
        """Opens the file if it is there."""
        with contextlib.suppress(OSError):
            self._file.open()
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the file."""
        self._file.close()

    def partition(self, start: int, end: int) -> list[Span]:
        """Returns the bytes from `start` up to `end` by where they came from. Blocks."""
        with contextlib.suppress(OSError), self._file.opened() as descriptor:
            if descriptor is not None:
                return partition(_spans(descriptor, start, end), start, end)
        return partition((), start, end)


def _spans(descriptor: int, start: int, end: int) -> Iterator[Span]:
    count = os.fstat(descriptor).st_size // RECORD_BYTES
    # The last span that begins at `start` or before. The space of the oldest ones was given back: they read as
    # damaged, and what is damaged counts as older.
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        span = next(_read(descriptor, middle, 1), None)
        if span is None or span.start <= start:
            low = middle + 1
        else:
            high = middle
    for number in range(max(0, low - 1), count, _BLOCK):
        for span in _read(descriptor, number, _BLOCK):
            if span.start >= end:
                return
            yield span


def _read(descriptor: int, number: int, count: int) -> Iterator[Span]:
    return decode(os.pread(descriptor, count * RECORD_BYTES, number * RECORD_BYTES))
