"""When an agent that does not answer is taken for one that does nothing."""

from __future__ import annotations

import math

from retinue.manager.domain.agents.following import PATIENCE, Following

HEARTBEAT = 5.0
ENOUGH = math.ceil(PATIENCE / HEARTBEAT)


def test_time_alone_is_not_enough() -> None:
    following = Following(HEARTBEAT)
    following.sent(["a"], 0.0)
    # What is read late was sent before: a manager with a backlog knows nothing yet.
    assert [following.heartbeat(10 * PATIENCE) for _ in range(ENOUGH)] == [[]] * ENOUGH
    assert following.heartbeat(10 * PATIENCE) == ["a"]


def test_heartbeats_alone_are_not_enough() -> None:
    following = Following(HEARTBEAT)
    following.sent(["a"], 0.0)
    assert not any(following.heartbeat(PATIENCE - 0.1) for _ in range(10 * ENOUGH))
    assert following.heartbeat(PATIENCE) == ["a"]


def test_what_was_answered_is_not_expected_when_it_is_sent_again() -> None:
    following = Following(HEARTBEAT)
    following.sent(["a", "b"], 0.0)
    following.answered(["a", "made up"])
    following.sent(["a"], 1.0)
    assert [following.heartbeat(10 * PATIENCE) for _ in range(ENOUGH + 1)][-1] == ["b"]
