"""Long files of tests begin first, and those that wait are for a worker of their own."""

from __future__ import annotations

import pytest

from tests.support.distribution import TIMES, Time, next_file, read_times

ROOT = TIMES.parents[1]
_TIMES = {"a": Time(30, waits=False), "b": Time(60, waits=True), "c": Time(90, waits=False), "d": Time(10, waits=True)}


@pytest.mark.parametrize(
    ("files", "waits", "found"),
    [
        ("abcd", False, "c"),
        ("abcd", True, "b"),
        ("bd", False, "b"),
        ("ac", True, "c"),
        # Short ones are not in the table, and work.
        ("xb", False, "x"),
        ("xd", True, "d"),
        ("yx", False, "y"),
    ],
)
def test_the_longest_of_a_kind_is_next(files: str, waits: bool, found: str) -> None:
    assert next_file(files, _TIMES, waits=waits) == found


def test_a_table_is_read_line_by_line() -> None:
    assert read_times("# seconds, kind, file\n\n12.5 works a\n40 waits b\n") == {
        "a": Time(12.5, waits=False),
        "b": Time(40, waits=True),
    }
    with pytest.raises(ValueError, match="a file works or waits"):
        read_times("40 sleeps b\n")


def test_the_table_has_files_that_there_are() -> None:
    times = read_times(TIMES.read_text())
    assert times
    assert [path for path in times if not (ROOT / path).is_file()] == []
