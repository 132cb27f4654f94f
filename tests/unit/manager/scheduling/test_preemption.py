"""The orders of preemption in which the fewest sessions have to go, and those that hold the least."""

from __future__ import annotations

from retinue.manager.domain.scheduling.policy import Policy
from retinue.manager.scheduling.strategies import PREEMPTION, PREEMPTION_ORDER
from tests.vectors.scene import Outcome, Scene

POLICY = Policy("fifo", "concentrated", {PREEMPTION: "terminate", PREEMPTION_ORDER: "fewest-sessions"})


def full(*agents: str) -> Scene:
    scene = Scene()
    for agent in agents:
        scene.add_agent(agent, {"cpu": 2}, {"cpu": 2})
    return scene


def victims(outcome: Outcome) -> list[list[int]]:
    return [sorted(preemption.victims) for preemption in outcome.decisions.preemptions]


def test_a_gang_that_no_agent_takes_whole_takes_what_it_needs_of_several() -> None:
    scene = full("a", "b")
    for agent in ("a", "b"):
        scene.add_running(f"on-{agent}", 1, 0, {agent: {"cpu": 2}})
    scene.add_session("s", "owner", [{"cpu": 2}, {"cpu": 2}], priority=5)
    assert victims(scene.run(POLICY)) == [[0, 1]]


def test_as_many_on_two_agents_the_lower_priority_goes() -> None:
    scene = full("a", "b")
    scene.add_running("dear", 3, 0, {"a": {"cpu": 2}})
    scene.add_running("cheap", 2, 0, {"b": {"cpu": 2}})
    scene.add_session("s", "owner", [{"cpu": 2}], priority=5)
    assert victims(scene.run(POLICY)) == [[1]]


def test_of_the_same_priority_those_that_hold_the_least_go() -> None:
    scene = Scene()
    scene.add_agent("a", {"cpu": 8, "mem": 100}, {"cpu": 8, "mem": 60})
    scene.add_running("much-memory", 1, 3, {"a": {"cpu": 2, "mem": 40}})
    scene.add_running("small", 1, 1, {"a": {"cpu": 2, "mem": 10}})
    scene.add_running("large", 1, 2, {"a": {"cpu": 4, "mem": 10}})
    scene.add_session("s", "owner", [{"cpu": 2}], priority=5)
    smallest = Policy("fifo", "concentrated", {PREEMPTION: "terminate", PREEMPTION_ORDER: "smallest-resources"})
    newest = Policy("fifo", "concentrated", {PREEMPTION: "terminate"})
    assert victims(scene.run(smallest)) == [[1]]
    assert victims(scene.run(newest)) == [[0]]


def test_no_session_of_the_same_priority_is_preempted() -> None:
    scene = full("a")
    scene.add_running("equal", 5, 0, {"a": {"cpu": 2}})
    scene.add_session("s", "owner", [{"cpu": 1}], priority=5)
    assert victims(scene.run(POLICY)) == []


def test_those_that_can_stay_stay() -> None:
    scene = full("a")
    scene.add_running("small", 1, 0, {"a": {"cpu": "0.5"}})
    scene.add_running("large", 2, 0, {"a": {"cpu": "1.5"}})
    scene.add_session("s", "owner", [{"cpu": "1.5"}], priority=5)
    assert victims(scene.run(POLICY)) == [[1]]


def test_one_goes_rather_than_two_however_old_it_is() -> None:
    scene = full("many", "few")
    scene.add_running("new", 1, 2, {"many": {"cpu": 1}})
    scene.add_running("newer", 1, 3, {"many": {"cpu": 1}})
    scene.add_running("old", 1, 1, {"few": {"cpu": 2}})
    scene.add_session("s", "owner", [{"cpu": 2}], priority=5)
    outcome = scene.run(POLICY)
    assert victims(outcome) == [[2]]
    assert [preemption.agents.tolist() for preemption in outcome.decisions.preemptions] == [[1]]
