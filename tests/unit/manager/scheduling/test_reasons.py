"""Reasons: true, in words, with amounts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from retinue.manager.domain.scheduling.policy import Policy, Tier
from retinue.manager.scheduling.columns import Explanation, MissingAmount, Shortfall
from retinue.manager.scheduling.scheduling_pass import run_pass
from tests.vectors.scene import WAITS, Scene

POLICY = Policy("drf", "concentrated")


def reason(scene: Scene, policy: Policy = POLICY) -> Explanation:
    outcome = scene.run(policy)
    explanation = outcome.decisions.explain(outcome.rows["s"])
    assert explanation is not None
    return explanation


def test_never_fits_as_configured() -> None:
    scene = Scene()
    scene.add_agent("a", {"cpu": 2000, "mem": 64})
    scene.add_agent("b", {"cpu": 4000, "mem": 1}, {"cpu": 4000})
    scene.add_session("s", "A", [{"cpu": 8000, "mem": 1}])
    assert reason(scene) == Explanation(
        Tier.CONFIGURATION,
        "EXCEEDS_LARGEST_AGENT",
        "needs 8 cpu on one node; the largest has 4 (b)",
        (Shortfall(0, "b", (MissingAmount("cpu", 8000, 4000),)),),
    )


def test_a_slot_that_no_agent_has() -> None:
    scene = Scene()
    scene.add_agent("a", {"cpu": 2000})
    scene.add_session("s", "A", [{"cpu": 1000, "tpu": 1000}])
    explanation = reason(scene)
    assert explanation.code == "EXCEEDS_LARGEST_AGENT"
    assert explanation.shortfalls[0].lacks == (MissingAmount("tpu", 1000, 0),)


def test_the_whole_group_is_too_small() -> None:
    scene = Scene()
    scene.add_agent("a", {"cpu": 3000})
    scene.add_agent("b", {"cpu": 2000})
    scene.add_session("s", "A", [{"cpu": 2000}] * 3)
    explanation = reason(scene)
    assert (explanation.tier, explanation.code) == (Tier.CONFIGURATION, "EXCEEDS_GROUP")
    assert explanation.message == "needs 2 cpu for each of 3 kernels; the nodes, empty, would hold 2 of them"


def test_single_node_is_judged_by_the_sum() -> None:
    scene = Scene()
    scene.add_agent("a", {"cpu": 3000, "mem": 8 << 30})
    scene.add_agent("b", {"cpu": 3000, "mem": 8 << 30})
    scene.add_session("s", "A", [{"cpu": 2000, "mem": 1 << 30}] * 2, single_node=True)
    explanation = reason(scene)
    assert explanation.tier is Tier.CONFIGURATION
    assert explanation.shortfalls == (Shortfall(None, "a", (MissingAmount("cpu", 4000, 3000),)),)
    assert explanation.message == "needs 4 cpu on one node for its 2 kernels together; the largest has 3 (a)"


def test_no_agent_of_the_architecture() -> None:
    scene = Scene()
    scene.add_agent("a", {"cpu": 2000})
    scene.add_session("s", "A", [{"cpu": 1000}], architecture="riscv64")
    assert reason(scene) == Explanation(Tier.CONFIGURATION, "ARCHITECTURE_MISSING", "no agent has architecture riscv64")


def test_no_agent_takes_sessions() -> None:
    scene = Scene()
    scene.add_session("s", "A", [{"cpu": 1000}])
    assert (reason(scene).tier, reason(scene).code) == (Tier.SYSTEM, "NO_AGENT_AVAILABLE")
    scene = Scene()
    scene.add_agent("a", {"cpu": 2000}, schedulable=False)
    scene.add_session("s", "A", [{"cpu": 1000}], architecture="x86_64")
    assert (reason(scene).tier, reason(scene).code) == (Tier.SYSTEM, "NO_AGENT_AVAILABLE")


def test_what_is_short_now_after_what_the_pass_placed() -> None:
    scene = Scene()
    scene.add_agent("a", {"cpu": 4000, "mem": 4 << 30})
    scene.add_agent("b", {"cpu": 4000, "mem": 4 << 30}, {"cpu": 3500, "mem": 3 << 30})
    scene.add_session("first", "A", [{"cpu": 3000, "mem": 1 << 30}])
    scene.add_session("s", "A", [{"cpu": 2000, "mem": 3 << 30}])
    explanation = reason(scene)
    assert (explanation.tier, explanation.code) == (Tier.CAPACITY, "INSUFFICIENT_CAPACITY")
    assert explanation.message == "needs 2 cpu on one node; the freest has 1 (a)"
    assert explanation.shortfalls == (Shortfall(0, "a", (MissingAmount("cpu", 2000, 1000),)),)


def test_the_binding_slot_comes_first() -> None:
    scene = Scene()
    scene.add_agent("a", {"cpu": 4000, "mem": 100}, {"cpu": 3000, "mem": 99})
    scene.add_session("s", "A", [{"cpu": 2000, "mem": 100}])
    assert [lack.slot for lack in reason(scene).shortfalls[0].lacks] == ["mem", "cpu"]
    assert reason(scene).message == "needs 100 mem and 2 cpu on one node; the freest has 1 mem and 1 cpu (a)"


def test_kernels_that_fit_one_by_one_but_not_together() -> None:
    scene = Scene()
    scene.add_agent("a", {"cpu": 2000}, {"cpu": 1000})
    scene.add_agent("b", {"cpu": 4000}, {"cpu": 2000})
    scene.add_session("s", "A", [{"cpu": 1000}] * 4)
    for strategy in ("concentrated", "dispersed", "round-robin"):
        explanation = reason(scene, Policy("drf", strategy))
        assert explanation.message == (
            "3 of 4 kernels find room together; its kernel of rank 3 needs 1 cpu on one node; the freest has 0 (a)"
        )
        assert explanation.shortfalls == (Shortfall(3, "a", (MissingAmount("cpu", 1000, 0),)),)


def test_a_gang_of_many_equal_kernels_has_few_lines() -> None:
    scene = Scene()
    scene.add_agent("a", {"cpu": 2000}, {"cpu": 2000})
    scene.add_agent("b", {"cpu": 2_000_000}, {"cpu": 2_000_000})
    scene.add_session("s", "A", [{"cpu": 1000}] * 1000)
    assert len(reason(scene).shortfalls) == 16
    assert reason(scene).message.endswith(", and 15 more of its kernels lack room")


def test_a_reason_given_before_the_pass_is_kept() -> None:
    scene = Scene()
    scene.add_agent("a", {"cpu": 1})
    scene.add_session("s", "A", [{"cpu": 5}], held_back=True)
    assert reason(scene) is WAITS


def test_sessions_of_a_kind_share_one_reason() -> None:
    scene = Scene()
    scene.add_agent("a", {"cpu": 1}, {"cpu": 1})
    for name in ("s", "t"):
        scene.add_session(name, "A", [{"cpu": 1}])
    decisions = scene.run(POLICY).decisions
    assert decisions.explain(0) is decisions.explain(1)


def test_a_choice_that_is_too_small_is_not_the_whole_group() -> None:
    scene = Scene()
    scene.add_agent("a", {"cpu": 2000})
    scene.add_agent("b", {"cpu": 8000})
    scene.add_session("s", "A", [{"cpu": 4000}], designated=["a"], strict=True)
    assert reason(scene) == Explanation(
        Tier.CONFIGURATION,
        "EXCEEDS_CHOSEN_AGENTS",
        "needs 4 cpu on one node; the largest of those chosen has 2 (a)",
        (Shortfall(0, "a", (MissingAmount("cpu", 4000, 2000),)),),
    )
    together = Scene()
    together.add_agent("a", {"cpu": 2000})
    together.add_agent("b", {"cpu": 8000})
    together.add_session("s", "A", [{"cpu": 2000}] * 2, designated=["a"], strict=True)
    explanation = reason(together)
    assert (explanation.code, explanation.message) == (
        "EXCEEDS_CHOSEN_AGENTS",
        "needs 2 cpu for each of 2 kernels; the chosen nodes, empty, would hold 1 of them",
    )


def test_what_no_agent_could_hold_is_not_the_fault_of_a_choice() -> None:
    scene = Scene()
    scene.add_agent("a", {"cpu": 2000})
    scene.add_agent("b", {"cpu": 8000})
    scene.add_session("s", "A", [{"cpu": 9000}], designated=["a"], strict=True)
    explanation = reason(scene)
    assert explanation.code == "EXCEEDS_LARGEST_AGENT"
    assert explanation.message == "needs 9 cpu on one node; the largest has 8 (b)"


def test_strictly_designated_agents_alone_are_judged() -> None:
    scene = Scene()
    scene.add_agent("a", {"cpu": 1000}, {"cpu": 1000})
    scene.add_agent("b", {"cpu": 8000}, schedulable=False)
    scene.add_agent("c", {"cpu": 8000})
    scene.add_session("s", "A", [{"cpu": 1000}], designated=["a"], strict=True)
    scene.add_session("t", "A", [{"cpu": 1000}], designated=["b"], strict=True)
    decisions = scene.run(POLICY).decisions
    first, second = decisions.explain(0), decisions.explain(1)
    assert first is not None
    assert second is not None
    assert (first.tier, first.shortfalls[0].agent) == (Tier.CAPACITY, "a")
    assert second.tier is Tier.SYSTEM


def test_no_agent_with_the_feature() -> None:
    scene = Scene()
    scene.add_agent("a", {"cpu": 2000})
    scene.add_session("s", "A", [{"cpu": 1000}, {"cpu": 1000}])
    agents, owners, queue, _ = scene.columns()
    agents = replace(agents, features=("a backend for native processes", "a backend for images"), offers=np.array([1]))
    assert len(run_pass(agents, owners, replace(queue, needs=np.array([1, 1])), POLICY).sessions) == 1
    decisions = run_pass(agents, owners, replace(queue, needs=np.array([1, 2])), POLICY)
    assert decisions.explain(0) == Explanation(
        Tier.CONFIGURATION, "FEATURE_MISSING", "no agent has a backend for images"
    )
