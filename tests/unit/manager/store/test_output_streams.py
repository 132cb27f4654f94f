"""Runs of bytes of one stream, as they are kept beside output."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from retinue.manager.store.sessions.output_streams import MAX_RUNS, StreamRuns
from retinue.rpc.core.output_stream import Stream

RUNS = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(Stream)))


@given(RUNS, st.integers(0, 30), st.integers(0, 30), st.integers(0, 40))
def test_runs_are_the_streams_of_bytes(added: list[tuple[int, Stream]], dropped: int, first: int, last: int) -> None:
    runs = StreamRuns()
    for length, stream in added:
        runs.add(length, stream)
    runs.drop(dropped)
    streams = [stream for length, stream in added for _ in range(length)][dropped:] + [Stream.UNSPECIFIED] * 80
    for kept in (runs, StreamRuns.decode(runs.encode())):
        parts = list(kept.parts(first, last))
        assert [number for begin, end, stream in parts for number in range(begin, end)] == list(range(first, last))
        assert [stream for begin, end, stream in parts for _ in range(begin, end)] == streams[first : max(first, last)]


@given(st.binary(max_size=64))
def test_any_bytes_are_runs(data: bytes) -> None:
    assert sum(end - begin for begin, end, _ in StreamRuns.decode(data).parts(0, 100)) == 100


def test_no_more_is_kept_than_a_bound() -> None:
    runs = StreamRuns()
    for number in range(3 * MAX_RUNS):
        runs.add(1, Stream(1 + number % 2))
    assert len(runs.encode()) <= 4 * MAX_RUNS
    last = 3 * MAX_RUNS
    assert [stream for _, _, stream in runs.parts(last - 2, last)] == [1, 2]
    assert next(runs.parts(0, 10)) == (0, 10, 0)


def test_nothing_is_kept_where_nothing_is_known() -> None:
    runs = StreamRuns()
    runs.add(10, Stream.UNSPECIFIED)
    assert runs.encode() == b""
