"""Long files of tests begin first, and those that wait are for a worker of their own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from xdist.remote import Producer

from tests.support.distribution import TIMES, LongestFirst, Time, next_file, read_times

if TYPE_CHECKING:
    from collections.abc import Sequence

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


class Worker:
    """Keeps the tests that it is sent, by index; shuts down at once."""

    def __init__(self, number: int) -> None:
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.sent: list[Sequence[int]] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: Sequence[int]) -> None:
        self.sent.append(list(indices))

    def shutdown(self) -> None:
        self.shutting_down = True


def test_a_worker_that_crashes_leaves_no_file_without_tests() -> None:
    tests = [f"{file}.py::test_{number}" for file in "abcdef" for number in range(2)]
    config: Any = SimpleNamespace(getvalue={"tx": ["2*popen"]}.get, option=SimpleNamespace(loadscopereorder=False))
    scheduler: Any = LongestFirst(config, Producer("", enabled=False), {}, 0)
    workers = [Worker(number) for number in range(3)]
    for worker in workers[:2]:
        scheduler.add_node(worker)
        scheduler.add_node_collection(worker, tests)
    scheduler.schedule()
    crashing, other = workers[:2]
    # It has done its first file and one test of the second.
    for index in [*crashing.sent[0], crashing.sent[1][0]]:
        scheduler.mark_test_complete(crashing, index)
    assert scheduler.remove_node(crashing) == tests[crashing.sent[1][1]]
    scheduler.add_node(workers[2])
    scheduler.add_node_collection(workers[2], tests)
    scheduler.schedule()
    done: set[int] = set()
    while any(worker.sent for worker in (other, workers[2])):
        for worker in (other, workers[2]):
            if worker.sent:
                indices = worker.sent.pop(0)
                assert indices, "nothing to do, after which no more comes"
                done.update(indices)
                for index in indices:
                    scheduler.mark_test_complete(worker, index)
    assert done == set(range(len(tests))) - {*crashing.sent[0], crashing.sent[1][0]}
