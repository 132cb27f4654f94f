"""What a manager is sent, and when."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from retinue.agent.api.convert import attempt_status
from retinue.agent.api.status_diff import DEBOUNCE, START_DEBOUNCE, SentStatus, StatusDiff
from retinue.agent.attempts import ObservedAttempt, Pause, Phase
from retinue.agent.probes.prober import NOT_ROUTED
from retinue.agent.runtime.attempt_records import Record
from retinue.agent.runtime.observation import Observation

ATTEMPT = ObservedAttempt("k.1", "s", "k", networked=True, phase=Phase.CREATED)


def sent(phase: Phase, *, attached: bool = False) -> SentStatus:
    attempt = replace(ATTEMPT, phase=phase, attached=attached)
    return SentStatus(attempt, ("", ()), NOT_ROUTED, attempt_status(attempt.id, attempt))


def diff(*changed: SentStatus, removed: str = "", gone: str = "") -> StatusDiff:
    before = frozenset({"here", gone} - {""})
    return StatusDiff(
        {str(n): one for n, one in enumerate(changed)}, [], [removed] if removed else [], before - {gone}, before
    )


@pytest.mark.parametrize(
    ("what", "after"),
    [
        (diff(), math.inf),
        (diff(sent(Phase.PULLING)), DEBOUNCE),
        (diff(sent(Phase.WAITING), sent(Phase.CREATING), sent(Phase.CREATED)), START_DEBOUNCE),
        (diff(sent(Phase.CREATING), sent(Phase.PULLING)), DEBOUNCE),
        (diff(sent(Phase.CREATING), removed="l.1"), DEBOUNCE),
        (diff(sent(Phase.CREATING), gone="s"), DEBOUNCE),
        (diff(sent(Phase.STOPPING)), DEBOUNCE),
        (diff(removed="k.1"), DEBOUNCE),
        (diff(gone="s"), DEBOUNCE),
        # Others of its session may wait for it.
        (diff(sent(Phase.CREATING), sent(Phase.CREATED, attached=True)), 0.0),
        (diff(sent(Phase.RUNNING)), 0.0),
        (diff(sent(Phase.FAILED), removed="k.1"), 0.0),
        (diff(sent(Phase.EXITED)), 0.0),
    ],
)
def test_what_nothing_waits_for_waits_for_the_rest(what: StatusDiff, after: float) -> None:
    assert what.due(math.inf, 7.0) == 7.0 + after


def test_it_does_not_wait_longer_for_more_of_its_kind() -> None:
    first = diff(sent(Phase.PULLING)).due(math.inf, 7.0)
    second = diff(sent(Phase.PULLING), sent(Phase.CREATING)).due(first, 7.0 + DEBOUNCE / 2)
    assert first == second == 7.0 + DEBOUNCE
    assert diff().due(first, 7.0 + DEBOUNCE / 2) == math.inf


def test_what_waits_less_has_the_rest_with_it() -> None:
    start = diff(sent(Phase.CREATING)).due(math.inf, 7.0)
    assert diff(sent(Phase.CREATING), sent(Phase.STOPPING)).due(start, 7.5) == 7.5 + DEBOUNCE
    assert diff(sent(Phase.CREATING), sent(Phase.STOPPING)).due(start, 7.0 + START_DEBOUNCE) == start


def test_an_attempt_is_evaluated_again_only_when_it_changed() -> None:
    one, other = Record("a.1", "s", "a", "boot"), Record("b.1", "s", "b", "boot")
    observation = Observation()
    first = observation.of({"a.1": one, "b.1": other}, {}, {}, {})
    second = observation.of({"a.1": one, "b.1": replace(other, phase=Phase.RUNNING)}, {}, {}, {})
    assert second["a.1"] is first["a.1"]
    assert (first["b.1"].phase, second["b.1"].phase) == (Phase.CREATING, Phase.RUNNING)
    third = observation.of({"a.1": one}, {"a.1": 5.0}, {}, {})
    assert (third["a.1"].kill_at, first["a.1"].kill_at) == (5.0, None)
    assert third.keys() == {"a.1"}
    pause = Pause("frozen", 1.0)
    fourth = observation.of({"a.1": one}, {"a.1": 5.0}, {}, {"a.1": pause})
    assert (third["a.1"].pause, fourth["a.1"].pause) == (None, pause)
    ended = replace(one, phase=Phase.EXITED)
    assert observation.of({"a.1": ended}, {}, {}, {"a.1": pause})["a.1"].pause is None
