"""When an agent is avoided on which starts fail, and until when."""

from __future__ import annotations

import uuid

import pytest

from retinue.manager.dispatch.core.start_failures import MAX_PAUSE, MIN_PAUSE, WINDOW, StartFailures
from retinue.manager.session.core.attempts import AttemptStatus
from retinue.manager.session.core.states import Observed

SESSIONS = [uuid.UUID(int=number) for number in range(9)]


def status(state: Observed = Observed.FAILED, reason: str = "START_FAILED", code: int | None = None) -> AttemptStatus:
    return AttemptStatus((uuid.UUID(int=99), 1), state, code, reason, "no bubblewrap")


def broken(failures: StartFailures, now: float = 0.0, agent: str = "n1") -> None:
    for session in SESSIONS[:3]:
        failures.note(agent, session, status(), now)


def test_three_sessions_have_an_agent_avoided_and_one_alone_does_not() -> None:
    failures = StartFailures()
    for _ in range(9):
        failures.note("n1", SESSIONS[0], status(), 0.0)
    failures.note("n1", SESSIONS[1], status(), 1.0)
    assert failures.changes(1.0) == {}
    failures.note("n1", SESSIONS[2], status(), 2.0)
    failures.note("n1", SESSIONS[3], status(), 3.0)
    changes = failures.changes(3.0)
    assert list(changes) == ["n1"]
    assert str(changes["n1"]).endswith("it is tried again after 5 min; the last one: START_FAILED: no bubblewrap")
    assert failures.changes(4.0) == {}


@pytest.mark.parametrize(
    "other",
    [
        status(Observed.EXITED, "EXITED", 3),
        status(reason="IMAGE_NOT_FOUND"),
        status(reason="MOUNT_REFUSED"),
        status(Observed.PULLING, ""),
        status(Observed.FAILED, "START_FAILED", 1),
    ],
)
def test_what_was_asked_for_says_nothing_of_the_node(other: AttemptStatus) -> None:
    failures = StartFailures()
    for session in SESSIONS:
        failures.note("n1", session, other, 0.0)
    assert failures.changes(0.0) == {}


def test_a_start_that_succeeds_forgets_all() -> None:
    failures = StartFailures()
    for number, session in enumerate(SESSIONS):
        failures.note("n1", session, status(Observed.HELD if number % 3 == 2 else Observed.FAILED), 0.0)
    assert failures.changes(0.0) == {}
    broken(failures)
    assert failures.changes(0.0)["n1"]
    failures.note("n1", SESSIONS[5], status(Observed.RUNNING, ""), 1.0)
    assert failures.changes(1.0) == {"n1": None}
    failures.note("n1", SESSIONS[6], status(), 2.0)
    assert failures.changes(2.0) == {}


def test_failures_long_ago_do_not_count() -> None:
    failures = StartFailures()
    for number, session in enumerate(SESSIONS):
        failures.note("n1", session, status(), number * WINDOW * 0.6)
    assert failures.changes(0.0) == {}


def test_it_is_tried_again_after_pauses_that_grow() -> None:
    failures, now, pause = StartFailures(), 0.0, MIN_PAUSE
    broken(failures)
    assert failures.changes(now)["n1"]
    for _ in range(6):
        assert failures.changes(now + pause - 1) == {}
        now += pause
        assert failures.changes(now) == {"n1": None}
        failures.note("n1", SESSIONS[7], status(), now)
        assert "another session could not start" in str(failures.changes(now)["n1"])
        pause = min(2 * pause, MAX_PAUSE)
    assert pause == MAX_PAUSE


def test_agents_are_apart() -> None:
    failures = StartFailures()
    for number, session in enumerate(SESSIONS[:6]):
        failures.note(f"n{number % 3}", session, status(), 0.0)
    assert failures.changes(0.0) == {}
