"""A session whose nodes do not reach each other: what it says, when it starts, and where it is tried next."""

from __future__ import annotations

import datetime as dt
import uuid

import pytest

from retinue.manager.domain.session.attempts import AttemptStatus, FaultyPath
from retinue.manager.domain.session.events import Condition
from retinue.manager.domain.session.spec import kernel_plans
from retinue.manager.domain.session.state_machine import Kernel, Session, SessionMachine
from retinue.manager.domain.session.states import KernelState, Observed, SessionState, SessionType

SINCE = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def placed(size: int, *, failed_starts: int = 0) -> SessionMachine:
    """Each kernel is on a node of its own, n0 and so on."""
    session_id = uuid.UUID(int=1)
    kernels = [
        Kernel(
            plan.id,
            plan.role,
            plan.hostname,
            KernelState.SCHEDULED,
            agent_id=f"n{plan.local_rank}",
            epoch=1,
            attempt_ended=False,
        )
        for plan in kernel_plans(session_id, [("main", 1), ("sub", size - 1)])
    ]
    session = Session(session_id, SessionType.BATCH, SessionState.SCHEDULED, kernels, failed_starts=failed_starts)
    return SessionMachine(session)


def report(machine: SessionMachine, rank: int, state: Observed, *paths: FaultyPath) -> None:
    kernel = machine.session.kernels[rank]
    machine.observe(AttemptStatus((kernel.id, kernel.epoch), state, faulty_paths=paths))


def nothing(receiver: int, sender: int) -> FaultyPath:
    return FaultyPath(f"n{receiver} gets nothing from n{sender}", SINCE)


def test_a_session_waits_for_packets_and_says_whose() -> None:
    machine = placed(2)
    report(machine, 0, Observed.CREATING, nothing(0, 1))
    report(machine, 1, Observed.HELD)
    session = machine.session
    assert session.state is SessionState.PREPARING
    assert session.conditions == (Condition("PATH_BROKEN", "n0 gets nothing from n1", SINCE, "n0"),)
    assert session.message == "waits for packets between its nodes: n0 gets nothing from n1"
    report(machine, 0, Observed.HELD)
    assert (session.conditions, session.message) == ((), "")
    for rank in range(2):
        report(machine, rank, Observed.RUNNING)
    assert session.state is SessionState.RUNNING


def test_a_running_session_has_the_condition_while_packets_do_not_come() -> None:
    machine = placed(2)
    for state in (Observed.HELD, Observed.RUNNING):
        for rank in range(2):
            report(machine, rank, state)
    session = machine.session
    report(machine, 1, Observed.RUNNING, nothing(1, 0))
    report(machine, 0, Observed.RUNNING)
    assert session.state is SessionState.RUNNING
    assert [(item.type, item.agent, item.since) for item in session.conditions] == [("PATH_BROKEN", "n1", SINCE)]
    assert not session.message
    report(machine, 1, Observed.RUNNING)
    assert session.conditions == ()


def test_what_cannot_be_proved_holds_up_nothing() -> None:
    machine = placed(2)
    report(machine, 0, Observed.HELD, FaultyPath("n0 cannot prove it", None, unproved=True))
    report(machine, 1, Observed.HELD)
    assert [kernel.goal for kernel in machine.session.kernels] == ["RUNNING", "RUNNING"]
    assert [item.type for item in machine.session.conditions] == ["PATH_UNPROVED"]
    assert not machine.session.message


@pytest.mark.parametrize(
    ("size", "paths", "failed_starts", "blamed"),
    [
        # Of two, first the one that gets nothing, then the other.
        (2, [(0, 1)], 0, ["n0"]),
        (2, [(0, 1)], 1, ["n1"]),
        (2, [(0, 1), (1, 0)], 0, ["n0", "n1"]),
        # One that gets nothing from anyone, and one that nobody gets anything from.
        (3, [(0, 1), (0, 2)], 1, ["n0"]),
        (3, [(0, 1), (2, 1)], 0, ["n1"]),
    ],
)
def test_a_start_that_gets_no_packets_fails_with_that_reason_and_avoids_who_is_at_fault(
    size: int, paths: list[tuple[int, int]], failed_starts: int, blamed: list[str]
) -> None:
    machine = placed(size, failed_starts=failed_starts)
    for rank in range(size):
        found = [nothing(receiver, sender) for receiver, sender in paths if receiver == rank]
        report(machine, rank, Observed.CREATING if found else Observed.HELD, *found)
    late = machine.time_out_start()
    assert [agent for agent, _ in late] == blamed
    assert {status.reason for _, status in late} == {"START_FAILED"}
    session = machine.session
    assert (session.state, session.reason, session.failed_agents) == (SessionState.PENDING, "START_TIMEOUT", blamed)
    assert session.message.startswith("packets between its nodes did not come in time: ")
    assert f"n{paths[0][0]} gets nothing from n{paths[0][1]}" in session.message


def test_a_node_that_waits_for_another_that_is_not_ready_is_not_blamed() -> None:
    machine = placed(2)
    report(machine, 0, Observed.CREATING, nothing(0, 1))
    report(machine, 1, Observed.PULLING)
    assert [agent for agent, _ in machine.time_out_start()] == ["n1"]
    assert machine.session.failed_agents == ["n1"]
