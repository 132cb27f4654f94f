"""The index of which bytes of an output came from which stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from retinue.agent.inside.streams import RECORD_BYTES, Span, StreamIndex, decode, encode, partition
from retinue.rpc.core.output_stream import Stream

if TYPE_CHECKING:
    from pathlib import Path

OUT, ERR, UNKNOWN = Stream.STDOUT, Stream.STDERR, Stream.UNSPECIFIED


def test_spans_are_read_as_they_were_written() -> None:
    spans = [Span(0, 3, OUT), Span(3, 4, ERR), Span(2**40, 2**40 + 2**30, OUT)]
    data = b"".join(map(encode, spans))
    assert list(decode(data)) == spans
    assert list(decode(data[:-1])) == spans[:-1], "what a crash cut off is left out"


@pytest.mark.parametrize("position", range(RECORD_BYTES))
def test_what_is_damaged_is_left_out(position: int) -> None:
    data = bytearray(b"".join(map(encode, (Span(0, 3, OUT), Span(3, 9, ERR), Span(9, 10, OUT)))))
    data[RECORD_BYTES + position] ^= 0x40
    assert list(decode(bytes(data))) == [Span(0, 3, OUT), Span(9, 10, OUT)]


@pytest.mark.parametrize(
    ("spans", "parts"),
    [
        ([], [Span(10, 20, UNKNOWN)]),
        ([Span(0, 30, OUT)], [Span(10, 20, OUT)]),
        ([Span(0, 12, OUT), Span(12, 30, ERR)], [Span(10, 12, OUT), Span(12, 20, ERR)]),
        ([Span(12, 14, ERR)], [Span(10, 12, UNKNOWN), Span(12, 14, ERR), Span(14, 20, UNKNOWN)]),
        ([Span(0, 15, OUT), Span(12, 20, ERR)], [Span(10, 12, OUT), Span(12, 20, ERR)]),
        ([Span(15, 17, OUT), Span(10, 20, ERR)], [Span(10, 20, ERR)]),
        ([Span(10, 15, OUT), Span(15, 20, OUT)], [Span(10, 20, OUT)]),
    ],
)
def test_a_part_is_divided_by_the_spans_of_which_the_later_one_counts(spans: list[Span], parts: list[Span]) -> None:
    assert partition(spans, 10, 20) == parts


def test_spans_are_found_in_a_long_index_whose_beginning_was_given_back(tmp_path: Path) -> None:
    path = tmp_path / "index"
    with StreamIndex(path) as index:
        assert index.partition(0, 2) == [Span(0, 2, UNKNOWN)], "there is none yet"
        spans = [Span(2 * number, 2 * number + 2, OUT if number % 2 else ERR) for number in range(5000)]
        data = b"".join(map(encode, spans))
        path.write_bytes(bytes(4096 * 4) + data[4096 * 4 :])
        for number in (1024, 1025, 4000, 4999):
            assert index.partition(2 * number, 2 * number + 2) == [spans[number]]
        assert index.partition(4001, 9003)[:2] == [Span(4001, 4002, spans[2000].stream), spans[2001]]
        assert index.partition(0, 100) == [Span(0, 100, UNKNOWN)]
        path.unlink()
        assert index.partition(8000, 8002) == [spans[4000]], "a reader continues after the attempt is removed"
