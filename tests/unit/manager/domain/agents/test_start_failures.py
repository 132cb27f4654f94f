"""When an agent is avoided on which starts fail, and until when."""

from __future__ import annotations

import itertools
import uuid

import pytest

from retinue.manager.domain.agents.start_failures import MAX_PAUSE, MIN_PAUSE, WAIT, WINDOW, StartFailures
from retinue.manager.domain.session.attempts import AttemptStatus
from retinue.manager.domain.session.states import Observed

SESSIONS = [uuid.UUID(int=number) for number in range(9)]
_epochs = itertools.count(1)


def status(
    session: uuid.UUID = SESSIONS[0],
    state: Observed = Observed.FAILED,
    reason: str = "START_FAILED",
    code: int | None = None,
) -> AttemptStatus:
    """The next attempt of a session's main kernel."""
    return AttemptStatus((session, next(_epochs)), state, code, reason, "no bubblewrap")


def note(failures: StartFailures, agent: str, each: AttemptStatus, now: float, owner: str = "ann") -> None:
    failures.note(agent, each.key[0], owner, each, now)


def fail(
    failures: StartFailures, session: uuid.UUID, now: float, agent: str = "n1", reason: str = "START_FAILED"
) -> None:
    note(failures, agent, status(session, reason=reason), now)


def succeed(failures: StartFailures, session: uuid.UUID, now: float, agent: str = "n2") -> None:
    note(failures, agent, status(session, Observed.HELD, ""), now)


def fail_and_start_elsewhere(
    failures: StartFailures, session: uuid.UUID, now: float, agent: str = "n1", reason: str = "START_FAILED"
) -> None:
    fail(failures, session, now, agent, reason)
    succeed(failures, session, now)


def broken(failures: StartFailures, now: float = 0.0) -> None:
    for session in SESSIONS[:3]:
        fail_and_start_elsewhere(failures, session, now)


@pytest.mark.parametrize("reason", ["START_FAILED", "GUEST_FAILED", "NODE_REFUSED", "DEVICE_MISSING"])
def test_three_sessions_have_an_agent_avoided_and_one_alone_does_not(reason: str) -> None:
    failures = StartFailures()
    for _ in range(9):
        fail_and_start_elsewhere(failures, SESSIONS[0], 0.0, reason=reason)
    fail_and_start_elsewhere(failures, SESSIONS[1], 1.0, reason=reason)
    assert failures.changes(1.0) == {}
    fail_and_start_elsewhere(failures, SESSIONS[2], 2.0, reason=reason)
    fail_and_start_elsewhere(failures, SESSIONS[3], 3.0, reason=reason)
    changes = failures.changes(3.0)
    assert list(changes) == ["n1"]
    assert str(changes["n1"]).endswith(f"it is tried again after 5 min; the last failure: {reason}: no bubblewrap")
    assert failures.changes(4.0) == {}


def test_what_starts_nowhere_says_nothing_of_the_nodes() -> None:
    failures = StartFailures()
    for number, session in enumerate(SESSIONS):
        for agent in ("n1", "n2", "n3", "n1"):
            note(failures, agent, status(session), 0.0, owner=("ann", "ben", "cem")[number % 3])
    assert failures.changes(0.0) == {}


def test_a_start_that_was_there_before_the_failure_is_no_evidence() -> None:
    failures = StartFailures()
    for session in SESSIONS:
        late = status(session)
        succeed(failures, session, 0.0)
        fail(failures, session, 1.0)
        note(failures, "n2", AttemptStatus(late.key, Observed.RUNNING, None, "", ""), 2.0)
    assert failures.changes(2.0) == {}


def test_another_kernel_of_the_session_is_no_evidence() -> None:
    failures = StartFailures()
    for session, sub in itertools.pairwise(SESSIONS):
        fail(failures, session, 0.0)
        failures.note("n2", session, "ann", status(uuid.UUID(int=sub.int + 100), Observed.HELD, ""), 1.0)
    assert failures.changes(1.0) == {}


def test_fetches_of_one_owner_alone_do_not_have_an_agent_avoided() -> None:
    failures = StartFailures()
    for session in SESSIONS[:8]:
        fail_and_start_elsewhere(failures, session, 0.0, reason="IMAGE_PULL_FAILED")
    assert failures.changes(0.0) == {}
    note(failures, "n1", status(SESSIONS[8], reason="IMAGE_PULL_FAILED"), 1.0, owner="ben")
    succeed(failures, SESSIONS[8], 1.0)
    assert list(failures.changes(1.0)) == ["n1"]


@pytest.mark.parametrize(
    "other",
    [
        (Observed.EXITED, "EXITED", 3),
        (Observed.FAILED, "IMAGE_NOT_FOUND", None),
        (Observed.FAILED, "MOUNT_REFUSED", None),
        (Observed.PULLING, "", None),
        (Observed.FAILED, "START_FAILED", 1),
    ],
)
def test_what_was_asked_for_says_nothing_of_the_node(other: tuple[Observed, str, int | None]) -> None:
    failures = StartFailures()
    for session in SESSIONS:
        note(failures, "n1", status(session, *other), 0.0)
        succeed(failures, session, 0.0)
    assert failures.changes(0.0) == {}


def test_a_start_that_succeeds_forgets_all() -> None:
    failures = StartFailures()
    for number, session in enumerate(SESSIONS):
        if number % 3 == 2:
            succeed(failures, session, 0.0, "n1")
        else:
            fail_and_start_elsewhere(failures, session, 0.0)
    assert failures.changes(0.0) == {}
    broken(failures)
    assert failures.changes(0.0)["n1"]
    note(failures, "n1", status(SESSIONS[5], Observed.RUNNING, ""), 1.0)
    assert failures.changes(1.0) == {"n1": None}
    fail_and_start_elsewhere(failures, SESSIONS[6], 2.0)
    assert failures.changes(2.0) == {}


def test_failures_long_ago_do_not_count() -> None:
    failures = StartFailures()
    for number, session in enumerate(SESSIONS):
        fail_and_start_elsewhere(failures, session, number * WINDOW * 0.6)
    assert failures.changes(0.0) == {}


def test_a_failure_waits_for_room_elsewhere_but_not_forever() -> None:
    failures = StartFailures()
    for session in SESSIONS[:6]:
        fail(failures, session, 0.0)
    assert failures.changes(WAIT) == {}
    for session in SESSIONS[:3]:
        succeed(failures, session, WAIT)
    assert failures.changes(WAIT)["n1"]
    failures = StartFailures()
    for session in SESSIONS[:3]:
        fail(failures, session, 0.0)
    assert failures.changes(WAIT + 1) == {}
    for session in SESSIONS[:3]:
        succeed(failures, session, WAIT + 1)
    assert failures.changes(WAIT + 1) == {}


def test_it_is_tried_again_after_pauses_that_grow() -> None:
    failures, now, pause = StartFailures(), 0.0, MIN_PAUSE
    broken(failures)
    assert failures.changes(now)["n1"]
    for _ in range(6):
        assert failures.changes(now + pause - 1) == {}
        now += pause
        assert failures.changes(now) == {"n1": None}
        fail_and_start_elsewhere(failures, SESSIONS[7], now)
        assert "another session failed to start" in str(failures.changes(now)["n1"])
        pause = min(2 * pause, MAX_PAUSE)
    assert pause == MAX_PAUSE


def test_agents_are_apart() -> None:
    failures = StartFailures()
    for number, session in enumerate(SESSIONS[:6]):
        fail(failures, session, 0.0, f"n{number % 3}")
        succeed(failures, session, 0.0, "n9")
    assert failures.changes(0.0) == {}
