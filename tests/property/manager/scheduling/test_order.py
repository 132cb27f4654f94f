"""Where a session waits is where a pass would look at it: with room for all, all are placed in that order."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from retinue.manager.domain.scheduling.policy import Policy
from retinue.manager.scheduling.strategies import validate_policy
from retinue.manager.scheduling.what_if import waiting_order
from tests.vectors.scene import Scene

SESSIONS = st.lists(
    st.tuples(st.sampled_from("ABC"), st.integers(1, 4), st.sampled_from([0, 10, 20]), st.integers(0, 3)),
    min_size=1,
    max_size=20,
)


def scene_of(sessions: list[tuple[str, int, int, int]]) -> Scene:
    scene = Scene()
    scene.add_agent("a", {"cpu": 1000, "mem": 1000}, {"cpu": 30, "mem": 30})
    for owner, weight in (("A", 1), ("B", 2), ("C", 1)):
        scene.add_owner(owner, weight, {"cpu": 10, "mem": 10})
    for number, (owner, cpu, priority, tries) in enumerate(sessions):
        scene.add_session(f"s{number}", owner, [{"cpu": cpu, "mem": 1}], priority=priority, tries=tries)
    return scene


@pytest.mark.parametrize("strategy", ["fifo", "lifo", "drf", "fair-share"])
@given(sessions=SESSIONS)
def test_the_order_is_that_of_a_pass(strategy: str, sessions: list[tuple[str, int, int, int]]) -> None:
    scene = scene_of(sessions)
    options = {"max-tries-before-skip": "2"} if strategy == "fifo" else {}
    policy = Policy(strategy, "concentrated", options)
    agents, owners, queue, _ = scene.columns()
    order = waiting_order(agents, owners, queue, validate_policy(policy))
    assert order is not None
    assert [queue.ids[row] for row in order] == scene.run(policy).order
    assert sorted(order) == list(range(len(sessions)))


def test_a_newest_first_queue_puts_the_newest_first() -> None:
    scene = scene_of([("A", 1, 10, 0)] * 3)
    agents, owners, queue, _ = scene.columns()
    for strategy, expected in (("fifo", [0, 1, 2]), ("lifo", [2, 1, 0])):
        assert waiting_order(agents, owners, queue, validate_policy(Policy(strategy, "concentrated"))) == expected
    others = replace(validate_policy(Policy("fifo", "concentrated")), session_strategy="external")
    assert waiting_order(agents, owners, queue, others) is None
