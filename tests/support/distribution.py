"""Which worker runs which file of tests: long files begin first, and one worker more runs those that mostly wait.

`tests/times` has a line for each file that takes long: its seconds on a machine of two cores, whether it mostly works
or waits, and its path. A table that is out of date costs time and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from xdist.remote import Producer
    from xdist.scheduler import Scheduling
    from xdist.workermanage import WorkerController

TIMES = Path(__file__).parents[1] / "times"


@dataclass(frozen=True, slots=True)
class Time:
    """How many seconds a file takes, and whether processors are idle for most of them."""

    seconds: float
    waits: bool


# Of files that the table does not have.
_SHORT = Time(seconds=2.0, waits=False)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--waiting-workers",
        metavar="N",
        type=int,
        default=0,
        help="of the workers of -n, the last N run files that mostly wait, which are in tests/times",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    if config.getoption("dist") != "loadfile":
        return None
    return LongestFirst(config, log, read_times(TIMES.read_text()), config.getoption("--waiting-workers"))


def read_times(text: str) -> dict[str, Time]:
    """Returns the times of a table's files. Raises ValueError."""
    times = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            seconds, kind, path = line.split()
            if kind not in ("works", "waits"):
                raise ValueError(f"{line!r}: a file works or waits")
            times[path] = Time(float(seconds), kind == "waits")
    return times


def next_file(files: Iterable[str], times: Mapping[str, Time], *, waits: bool) -> str:
    """Returns the longest of the files of a kind, or of all when there is none of it; the first of equals."""

    def order(file: str) -> tuple[bool, float]:
        time = times.get(file, _SHORT)
        return time.waits == waits, time.seconds

    return max(files, key=order)


class LongestFirst(LoadFileScheduling):  # type: ignore[misc]  # xdist publishes no types
    """Gives each worker whole files, long ones first; the last `waiting` workers get those that mostly wait, and end
    when none is left.
    """

    def __init__(self, config: pytest.Config, log: Producer, times: Mapping[str, Time], waiting: int) -> None:
        super().__init__(config, log)
        self._times = times
        self._waiting = waiting

    def remove_node(self, node: WorkerController) -> str | None:
        # A file of which all tests have run would be given to another worker, which then waits for ever: work comes to
        # a worker when it has done a test.
        workload = self.assigned_work.get(node, {})
        for file in [file for file, tests in workload.items() if all(tests.values())]:
            del workload[file]
        crashed: str | None = super().remove_node(node)
        return crashed

    def _assign_work_unit(self, node: WorkerController) -> None:
        self.workqueue.move_to_end(next_file(self.workqueue, self._times, waits=self._waits(node)), last=False)
        super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        # One worker more for files that work would only slow down the others.
        if self._waits(node) and not any(self._times.get(file, _SHORT).waits for file in self.workqueue):
            if not node.shutting_down:
                node.shutdown()
        else:
            super()._reschedule(node)

    def _waits(self, node: WorkerController) -> bool:
        # The numbers of those that stand in for one that crashed come after these.
        number = int(str(node.gateway.id).removeprefix("gw"))
        return bool(self.numnodes - self._waiting <= number < self.numnodes)
