"""The state machine of probes under every sequence of answers, against counting."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from retinue.agent.attempts import Probe, ProbeKind, PublishedPort
from retinue.agent.probes.core.machine import Answer, HealthState, ProbeMachine, Role


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 4), st.integers(1, 4), st.floats(0.1, 20))
def test_readiness_turns_by_answers_in_a_row(answers: list[bool], failures: int, successes: int, period: float) -> None:
    probe = Probe(ProbeKind.TCP, period=period, failures=failures, successes=successes)
    machine = ProbeMachine(PublishedPort(80, probe), 0.0)
    now, state = 0.0, HealthState.STARTING
    for position, success in enumerate(answers):
        assert [role for role, _ in machine.due(now)] == [Role.READINESS]
        # It is never asked twice at a time.
        assert not machine.due(now + 1_000)
        machine.answered(Role.READINESS, Answer(success, "" if success else "no"), now)
        recent = answers[: position + 1]
        if len(recent) >= successes and all(recent[-successes:]):
            state = HealthState.READY
        elif len(recent) >= failures and not any(recent[-failures:]) and state is HealthState.READY:
            state = HealthState.UNREADY
        assert machine.state is state
        assert (machine.message == "") or state is not HealthState.READY
        pause = (machine.next_due() or 0.0) - now
        assert 0.09 < pause <= period + 1e-6
        now = machine.next_due() or 0.0


@given(st.lists(st.tuples(st.sampled_from(Role), st.booleans()), max_size=60), st.booleans(), st.booleans())
def test_any_answers_in_any_order_leave_a_machine_that_continues_or_is_dead(
    answers: list[tuple[Role, bool]], startup: bool, liveness: bool
) -> None:
    probe = Probe(ProbeKind.TCP, failures=2)
    machine = ProbeMachine(PublishedPort(80, probe, probe if startup else None, probe if liveness else None), 0.0)
    asked: set[Role] = set()
    passed_startup = not startup
    for now, (role, success) in enumerate(answers):
        asked |= {each for each, _ in machine.due(float(now))}
        assert passed_startup or asked <= {Role.STARTUP}
        machine.answered(role, Answer(success), float(now))
        passed_startup = passed_startup or (role is Role.STARTUP and success)
        assert bool(machine.dead) <= liveness
        assert machine.dead or machine.state is not HealthState.READY or passed_startup
