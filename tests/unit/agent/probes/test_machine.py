"""Cases of one attempt's probes: what is asked when, and what is said of it."""

from __future__ import annotations

from retinue.agent.attempts import Probe, ProbeKind, PublishedPort
from retinue.agent.probes.core.machine import Answer, HealthState, ProbeMachine, Role

GOOD, BAD = Answer(success=True), Answer(success=False, message="nothing listens on port 8000")
TCP = Probe(ProbeKind.TCP)


def roles(machine: ProbeMachine, now: float) -> list[Role]:
    return [role for role, _ in machine.due(now)]


def test_without_a_startup_probe_readiness_is_asked_at_once_and_each_second_until_it_succeeds() -> None:
    machine = ProbeMachine(PublishedPort(8000), 100.0)
    assert roles(machine, 100.0) == [Role.READINESS]
    assert machine.next_due() is None
    machine.answered(Role.READINESS, BAD, 100.2)
    assert (machine.state, machine.message, machine.next_due()) == (HealthState.STARTING, "", 101.0)
    assert roles(machine, 100.9) == []
    assert roles(machine, 101.0) == [Role.READINESS]
    machine.answered(Role.READINESS, GOOD, 101.1)
    assert (machine.state, machine.next_due()) == (HealthState.READY, 111.0)


def test_what_starts_says_why_after_some_failures_and_never_becomes_unready() -> None:
    machine = ProbeMachine(PublishedPort(8000), 0.0)
    for second in range(10):
        assert roles(machine, second) == [Role.READINESS]
        machine.answered(Role.READINESS, BAD, second)
        assert machine.state is HealthState.STARTING
        assert machine.message == ("" if second < 2 else f"its readiness probe failed: {BAD.message}")
    machine.due(10.0)
    machine.answered(Role.READINESS, GOOD, 10.0)
    assert (machine.state, machine.message) == (HealthState.READY, "")


def test_one_failure_says_nothing_three_in_a_row_do_and_one_success_ends_it() -> None:
    machine = ProbeMachine(PublishedPort(8000), 0.0)
    states = []
    for number, answer in enumerate([GOOD, BAD, BAD, GOOD, BAD, BAD, BAD, BAD, GOOD]):
        machine.due(number * 10.0)
        machine.answered(Role.READINESS, answer, number * 10.0)
        states.append(machine.state.name[0])
    assert "".join(states) == "RRRRRRUUR"
    assert machine.message == ""


def test_startup_comes_before_readiness_and_liveness() -> None:
    startup, liveness = Probe(ProbeKind.EXEC, command=("true",)), Probe(ProbeKind.TCP, failures=2)
    machine = ProbeMachine(PublishedPort(8000, TCP, startup, liveness), 0.0)
    assert roles(machine, 0.0) == [Role.STARTUP]
    machine.answered(Role.STARTUP, BAD, 0.0)
    assert roles(machine, 1.0) == [Role.STARTUP]
    machine.answered(Role.STARTUP, GOOD, 1.0)
    assert machine.state is HealthState.STARTING
    assert roles(machine, 1.0) == [Role.READINESS, Role.LIVENESS]
    machine.answered(Role.READINESS, GOOD, 1.0)
    machine.answered(Role.LIVENESS, BAD, 1.0)
    assert (machine.state, machine.dead) == (HealthState.READY, "")
    assert roles(machine, 2.0) == [Role.LIVENESS]
    machine.answered(Role.LIVENESS, BAD, 2.0)
    assert machine.dead == f"its liveness probe failed 2 times in a row: {BAD.message}"
    assert machine.next_due() is None
    assert not machine.due(100.0)


def test_a_slow_answer_delays_its_own_probe_only() -> None:
    machine = ProbeMachine(PublishedPort(8000, TCP, None, TCP), 0.0)
    machine.due(0.0)
    machine.answered(Role.LIVENESS, GOOD, 0.5)
    assert machine.next_due() == 10.0
    assert roles(machine, 10.0) == [Role.LIVENESS]
    machine.answered(Role.READINESS, GOOD, 12.0)
    assert roles(machine, 12.0) == [Role.READINESS]


def test_what_answers_requests_is_not_dead() -> None:
    machine = ProbeMachine(PublishedPort(8000, TCP, None, Probe(ProbeKind.TCP, failures=2)), 0.0)
    for moment in range(5):
        machine.answers(moment)
        machine.due(moment)
        machine.answered(Role.LIVENESS, BAD, moment + 0.5)
        assert machine.dead == ""
    # A period after the last answer its failures count, from the first.
    machine.due(20.0)
    machine.answered(Role.LIVENESS, BAD, 20.0)
    assert machine.dead == ""
    machine.due(30.0)
    machine.answered(Role.LIVENESS, BAD, 30.0)
    assert machine.dead
