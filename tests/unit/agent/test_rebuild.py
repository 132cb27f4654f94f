"""The record of a kernel that runs, from its copy and what was found: whatever the copy says, what runs is not taken for ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from retinue.agent.attempts import Phase
from retinue.agent.host.processes import Process
from retinue.agent.runtime.attempt_records import Record
from retinue.agent.runtime.rebuild import Found, rebuilt

INIT, MONITOR = Process(7, 70), Process(6, 60)
FOUND = Found(INIT, MONITOR, waiting=False, cores=(2, 3))
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
    # The time is written before the command is let go.
    assert record.start_time is None


def test_cores_of_the_copy_go_before_those_found() -> None:
    assert rebuilt("k.1", "boot", replace(COPY, cores=(1,)), FOUND, 50.0).cores == (1,)
    assert rebuilt("k.1", "boot", replace(COPY, start_time=None), FOUND, 50.0).start_time == 50.0
