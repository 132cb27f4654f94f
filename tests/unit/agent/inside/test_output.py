"""Where output begins that is wanted by lines or by time."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from retinue.agent.inside.log_file import CHUNK, MAX_MARKS, Marks, Output

if TYPE_CHECKING:
    from pathlib import Path


def output(tmp_path: Path, data: bytes) -> Output:
    (tmp_path / "output.log").write_bytes(data)
    return Output(tmp_path / "output.log", lambda: True)


@pytest.mark.parametrize(
    ("data", "count", "expected"),
    [
        (b"", 3, b""),
        (b"a", 1, b"a"),
        (b"a\n", 1, b"a\n"),
        (b"a\nb\nc\n", 1, b"c\n"),
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc", 2, b"b\nc"),
        (b"a\nb\nc\n", 3, b"a\nb\nc\n"),
        (b"a\nb\nc\n", 99, b"a\nb\nc\n"),
        (b"\n\n\n", 2, b"\n\n"),
        (b"x" * CHUNK + b"\n", 1, b"x" * CHUNK + b"\n"),
        (b"1\n" + b"x" * (CHUNK - 1) + b"\n2\n", 2, b"x" * (CHUNK - 1) + b"\n2\n"),
        (b"line\n" * CHUNK, CHUNK - 1, b"line\n" * (CHUNK - 1)),
    ],
)
def test_last_lines(tmp_path: Path, data: bytes, count: int, expected: bytes) -> None:
    assert data[output(tmp_path, data).last_lines(count) :] == expected


def test_last_lines_of_what_is_still_there(tmp_path: Path) -> None:
    made = output(tmp_path, b"line\n" * 40_000)
    made.bound(64 * 1024)
    begin = made.last_lines(100_000)
    piece = made.read(0)
    assert piece is not None
    assert 0 < begin == piece.offset
    assert made.last_lines(2) == 40_000 * 5 - 10
    assert Output(tmp_path / "missing", lambda: True).last_lines(5) == 0


def test_marks(tmp_path: Path) -> None:
    marks = Marks(tmp_path / "marks")
    assert marks.before(99.0) == 0
    for offset, time in ((10, 1.0), (10, 2.0), (30, 3.0), (35, 4.5)):
        marks.add(offset, time)
    assert [marks.before(time) for time in (0.5, 1.0, 2.9, 3.0, 4.0, 99.0)] == [0, 10, 10, 30, 30, 35]
    # Cut off by a crash.
    with (tmp_path / "marks").open("ab") as file:
        file.write(b"xyz")
    assert marks.before(99.0) == 35


def test_marks_stay_few(tmp_path: Path) -> None:
    marks = Marks(tmp_path / "marks")
    for number in range(1, 3 * MAX_MARKS):
        marks.add(number * 10, float(number))
    assert (tmp_path / "marks").stat().st_size <= (MAX_MARKS + 1) * 16
    for time in (100.0, 5000.0, 3.0 * MAX_MARKS - 2):
        assert time * 10 - 100 <= marks.before(time) <= time * 10


def test_a_look_marks_what_has_grown(tmp_path: Path) -> None:
    made = output(tmp_path, b"first")
    os.utime(tmp_path / "output.log", (1000.0, 1000.0))
    made.look(1 << 20, 1000.5)
    assert made.since(1000.6) == 5
    assert made.since(1000.4) == 0
    (tmp_path / "output.log").write_bytes(b"first second")
    os.utime(tmp_path / "output.log", (1000.0, 1000.0))
    # Long ago, at an unknown time.
    made.look(1 << 20, 2000.0)
    assert made.since(3000.0) == 5


@pytest.mark.parametrize("follow", [False, True])
async def test_what_could_not_be_written_at_the_end_is_a_gap(tmp_path: Path, follow: bool) -> None:
    made = output(tmp_path, b"line\n")
    os.truncate(tmp_path / "output.log", 1 << 20)
    pieces = [piece async for piece in made.stream(0, follow)]
    last = pieces.pop()
    assert (last.offset, last.data) == (1 << 20, b"")
    assert b"".join(piece.data for piece in pieces).rstrip(b"\0") == b"line\n"
    # For one who has it all there is nothing to say.
    assert [piece async for piece in made.stream(1 << 20, follow)] == []
