"""Whatever is in the index of streams, reading costs the marks only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from retinue.agent.inside.streams import RECORD_BYTES, Span, StreamIndex, decode, encode, partition
from retinue.rpc.core.output_stream import Stream

if TYPE_CHECKING:
    import pytest

SPANS = st.builds(
    lambda start, length, stream: Span(start, start + length, stream),
    st.integers(0, 300),
    st.integers(1, 40),
    st.sampled_from([Stream.STDOUT, Stream.STDERR]),
)


@given(st.lists(SPANS), st.integers(0, 300), st.integers(1, 100))
def test_parts_follow_each_other_and_no_bytes_are_lost(spans: list[Span], start: int, length: int) -> None:
    parts = partition(spans, start, start + length)
    assert [part.start for part in parts] == [start, *(part.end for part in parts[:-1])]
    assert parts[-1].end == start + length
    last = spans[-1:] if spans and spans[-1].start < start + length and spans[-1].end > start else []
    for span in last:
        middle = max(span.start, start)
        assert next(part.stream for part in parts if part.start <= middle < part.end) is span.stream


@given(data=st.binary(max_size=40 * RECORD_BYTES), start=st.integers(0, 2**63), length=st.integers(1, 1000))
def test_any_bytes_are_an_index(tmp_path_factory: pytest.TempPathFactory, data: bytes, start: int, length: int) -> None:
    path = tmp_path_factory.getbasetemp() / "index"
    path.write_bytes(data)
    with StreamIndex(path) as index:
        parts = index.partition(start, start + length)
    assert sum(part.end - part.start for part in parts) == length


@given(st.lists(st.integers(1, 9), min_size=1, max_size=60), st.data())
def test_damage_takes_marks_and_makes_none(lengths: list[int], data: st.DataObject) -> None:
    spans, position = list[Span](), 0
    for number, length in enumerate(lengths):
        spans.append(Span(position, position + length, Stream.STDERR if number % 2 else Stream.STDOUT))
        position += length
    written = bytearray(b"".join(map(encode, spans)))
    damaged = data.draw(st.integers(0, len(written) - 1))
    written[damaged] ^= data.draw(st.integers(1, 255))
    left = list(decode(bytes(written)))
    assert left == [span for number, span in enumerate(spans) if number != damaged // RECORD_BYTES]
