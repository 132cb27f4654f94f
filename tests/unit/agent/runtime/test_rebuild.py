"""The record of a kernel that runs, from its copy and what was found: whatever the copy says,
what runs is not taken for ended.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from retinue.agent.attempts import Phase
from retinue.agent.host import processes
from retinue.agent.host.processes import Process
from retinue.agent.runtime import rebuild
from retinue.agent.runtime.attempt_records import Record
from retinue.agent.runtime.rebuild import LiveKernel, find_kernel, rebuilt, recovered
from retinue.rpc.core.reasons import AttemptReason

if TYPE_CHECKING:
    from pathlib import Path

INIT, MONITOR = Process(7, 70), Process(6, 60)
FOUND = LiveKernel(INIT, MONITOR, waiting=False, cores=(2, 3))
COPY = Record("k.1", "session", "k", "boot", networked=True, phase=Phase.RUNNING, start_time=5.0, log_size=9)


def test_without_a_copy_nothing_is_known_but_what_runs() -> None:
    for copy in (None, replace(COPY, boot_id="another")):
        record = rebuilt("k.1", "boot", copy, FOUND, 50.0)
        assert record == Record(
            "k.1",
            "",
            "k",
            "boot",
            egress=True,
            phase=Phase.RUNNING,
            attached=True,
            monitor=MONITOR,
            init=INIT,
            start_time=50.0,
            cores=(2, 3),
            rebuilt=True,
        )


@pytest.mark.parametrize("phase", [phase for phase in Phase if not phase.ended])
def test_what_runs_is_running_or_being_stopped(phase: Phase) -> None:
    record = rebuilt("k.1", "boot", replace(COPY, phase=phase, monitor=None, init=None), FOUND, 50.0)
    assert record.phase is (Phase.STOPPING if phase is Phase.STOPPING else Phase.RUNNING)
    assert (record.init, record.monitor, record.attached, record.start_time) == (INIT, MONITOR, True, 5.0)
    assert (record.session_id, record.networked, record.log_size, record.rebuilt) == ("session", True, 9, False)


@pytest.mark.parametrize("phase", [phase for phase in Phase if not phase.ended])
def test_what_waits_at_its_barrier_has_not_begun(phase: Phase) -> None:
    record = rebuilt("k.1", "boot", replace(COPY, phase=phase), replace(FOUND, waiting=True), 50.0)
    assert record.phase is (Phase.STOPPING if phase is Phase.STOPPING else Phase.CREATED)
    # The time is written before the command is released.
    assert record.start_time is None


def test_cores_of_the_copy_go_before_those_found() -> None:
    assert rebuilt("k.1", "boot", replace(COPY, cores=(1,)), FOUND, 50.0).cores == (1,)
    assert rebuilt("k.1", "boot", replace(COPY, start_time=None), FOUND, 50.0).start_time == 50.0


# Numbers that no process can have.
FIRST = 2**22 + 1


class Proc:
    """Processes as /proc shows them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        os.mkfifo(directory / "barrier")

    def add(
        self, number: int, *inner: int, parent: int = 1, name: str = "sh", state: str = "S", stdin: str = ""
    ) -> int:
        """Adds a process with its numbers in inner namespaces; returns its number here."""
        pid = FIRST + number
        entry = self.directory / str(pid)
        (entry / "fd").mkdir(parents=True)
        (entry / "task" / str(pid)).mkdir(parents=True)
        (entry / "task" / str(pid) / "children").write_text("")
        if stdin:
            (entry / "fd" / "0").symlink_to(self.directory / stdin)
        numbers = "\t".join(map(str, (pid, *inner)))
        (entry / "status").write_text(f"Name:\t{name}\nPPid:\t{FIRST + parent}\nNSpid:\t{numbers}\n")
        (entry / "stat").write_text(f"{pid} ({name}) {state} {FIRST + parent} " + "0 " * 17 + f"{number * 10} 0\n")
        if (children := self.directory / str(FIRST + parent) / "task" / str(FIRST + parent) / "children").exists():
            children.write_text(f"{children.read_text()}{pid} ")
        return pid


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Proc:
    for module in (processes, rebuild):
        monkeypatch.setattr(module, "PROC", tmp_path)
    return Proc(tmp_path)


def test_a_kernel_is_found_by_the_first_process_of_its_namespace(proc: Proc) -> None:
    monitor = proc.add(2, name="bwrap")
    command = proc.add(5, 2, parent=9)
    # The kernel may have started a namespace of its own, which is further inside, with lower numbers here or not.
    nested = [proc.add(number, 7, 1, parent=5) for number in (4, 12)]
    init = proc.add(9, 1, parent=2)
    found = find_kernel([monitor, *nested, command, init])
    assert found == LiveKernel(Process(init, 90), Process(monitor, 20), waiting=False, cores=())


def test_processes_of_the_host_and_inner_ones_are_no_kernel(proc: Proc) -> None:
    # One that is not the first of its namespace, two of the node's own, the first of all among them,
    # and one that is gone.
    assert find_kernel([proc.add(3, 2), proc.add(6), proc.add(1 - FIRST), FIRST + 77]) is None
    assert find_kernel([]) is None


def test_what_is_left_of_a_first_process_is_passed_over(proc: Proc) -> None:
    dead = proc.add(3, 1, state="Z")
    assert find_kernel([dead]) is None
    alive = proc.add(8, 4, 1)
    found = find_kernel([dead, alive])
    assert found is not None
    # Its parent is not the monitor of a sandbox.
    assert (found.init, found.monitor) == (Process(alive, 80), None)


@pytest.mark.parametrize(("stdin", "waiting"), [("barrier", True), ("other", False), ("", False)])
def test_a_command_waits_that_reads_from_its_barrier(proc: Proc, stdin: str, waiting: bool) -> None:
    os.mkfifo(proc.directory / "other")
    init = proc.add(3, 1)
    proc.add(4, 2, parent=3, stdin=stdin)
    found = find_kernel([init])
    assert found is not None
    assert found.waiting is waiting


def test_a_lost_record_is_replaced_by_what_runs_or_its_copy_and_starts_nothing_again_without() -> None:
    assert recovered("k.1", "boot", COPY, FOUND, 50.0) == rebuilt("k.1", "boot", COPY, FOUND, 50.0)
    assert recovered("k.1", "boot", COPY, None, 50.0) == COPY
    lost = recovered("k.1", "boot", None, None, 50.0)
    assert (lost.id, lost.kernel_id, lost.reason) == ("k.1", "k", AttemptReason.RECORD_LOST)
