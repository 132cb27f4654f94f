"""Kernels of one session go to agents whose underlay addresses are of one family: no packets pass between others."""

from __future__ import annotations

import numpy as np
import pytest

from retinue.manager.domain.scheduling.policy import Policy, Tier
from retinue.manager.scheduling.columns import Explanation
from retinue.manager.scheduling.scheduling_pass import run_pass
from retinue.manager.scheduling.strategies import PREEMPTION, RESERVE_AFTER_TRIES, validate_policy
from retinue.manager.scheduling.view import Choices, View
from tests.vectors.scene import Scene

POLICY = Policy("fifo", "concentrated")
STRATEGIES = [Policy("fifo", strategy) for strategy in ("concentrated", "dispersed", "round-robin")]
GANG = [{"cpu": 2000}, {"cpu": 2000}]


def scene(**families: int) -> Scene:
    """Agents that take one kernel of the gang each, by the family of their address."""
    made = Scene()
    for name, family in families.items():
        made.add_agent(name, {"cpu": 3000}, family=family)
    return made


def why(made: Scene, policy: Policy = POLICY) -> Explanation:
    outcome = made.run(policy)
    explanation = outcome.decisions.explain(outcome.rows["s"])
    assert explanation is not None
    return explanation


@pytest.mark.parametrize("policy", STRATEGIES)
@pytest.mark.parametrize("wished", [False, True])
def test_a_gang_is_spread_over_one_family(policy: Policy, wished: bool) -> None:
    for families, expected in (
        ({"a": 4, "b": 6, "c": 4}, {"a", "c"}),
        ({"a": 4, "b": 6, "c": 6}, {"b", "c"}),
        ({"a": 6, "b": 4, "c": 6}, {"a", "c"}),
    ):
        made = scene(**families)
        made.add_session("s", "A", GANG, designated=["a", "b", "c"] if wished else ())
        outcome = made.run(policy)
        assert set(outcome.agents["s"]) == expected


@pytest.mark.parametrize("policy", STRATEGIES)
def test_gangs_fill_both_families(policy: Policy) -> None:
    made = scene(a=4, b=6, c=4, d=6, e=4)
    for name in ("r", "s"):
        made.add_session(name, "A", GANG)
    # What one kernel needs is anywhere.
    made.add_session("one", "A", [{"cpu": 2000}])
    made.add_session("t", "A", GANG)
    placed = made.run(policy).agents
    assert sorted(map(sorted, (placed["r"], placed["s"]))) in (
        [["a", "c"], ["b", "d"]],
        [["a", "e"], ["b", "d"]],
        [["b", "d"], ["c", "e"]],
    )
    assert "t" not in placed
    assert len(placed["one"]) == 1


def test_one_agent_takes_a_session_whole_whatever_its_address_is() -> None:
    made = Scene()
    made.add_agent("a", {"cpu": 1000}, family=4)
    made.add_agent("b", {"cpu": 4000}, family=6)
    made.add_session("s", "A", GANG)
    assert made.run(POLICY).agents["s"] == ["b", "b"]


def test_unequal_kernels_stay_in_one_family() -> None:
    made = Scene()
    for name, cpu, family in (("a", 4000, 4), ("b", 1000, 6), ("c", 4000, 6), ("d", 500, 4)):
        made.add_agent(name, {"cpu": cpu}, family=family)
    made.add_session("s", "A", [{"cpu": 4000}, {"cpu": 1000}])
    assert made.run(POLICY).agents["s"] == ["c", "b"]


def test_no_family_is_large_enough() -> None:
    made = scene(a=4, b=6)
    made.add_session("s", "A", GANG)
    expected = (
        "neither agents with IPv4 underlay addresses nor agents with IPv6 underlay addresses, empty, would hold it; "
        "no packets pass between these"
    )
    assert why(made) == Explanation(Tier.CONFIGURATION, "EXCEEDS_GROUP", expected)
    made = scene(a=4, b=6, c=4)
    made.add_session("s", "A", GANG, designated=["a", "b"], strict=True)
    assert (why(made).code, why(made).message) == (
        "EXCEEDS_CHOSEN_AGENTS",
        expected.replace("agents with", "chosen agents with"),
    )


def test_a_family_without_an_agent_for_a_kernel_is_none() -> None:
    made = Scene()
    made.add_agent("a", {"cpu": 3000}, family=4, architecture="aarch64")
    made.add_agent("b", {"cpu": 3000}, family=6)
    made.add_agent("c", {"cpu": 3000}, {"cpu": 3000}, family=6)
    made.add_session("s", "A", GANG, architecture="x86_64")
    assert why(made).code == "INSUFFICIENT_CAPACITY"


def test_a_family_that_is_full_is_waited_for() -> None:
    made = scene(a=4, b=6)
    made.add_agent("c", {"cpu": 3000}, {"cpu": 2000}, family=6)
    made.add_session("s", "A", GANG)
    explanation = why(made)
    assert (explanation.tier, explanation.code) == (Tier.CAPACITY, "INSUFFICIENT_CAPACITY")
    assert explanation.message == (
        "1 of 2 kernels find room together; its kernel of rank 1 needs 2 cpu on one node; the freest has 1 (b); "
        "of agents with IPv6 underlay addresses, as no packets pass between these and others"
    )
    assert {shortfall.agent for shortfall in explanation.shortfalls} <= {"b", "c"}


def test_agents_that_take_nothing_now() -> None:
    made = scene(a=4, b=6)
    made.add_agent("c", {"cpu": 3000}, family=6, schedulable=False)
    made.add_agent("d", {"cpu": 3000}, family=4, schedulable=False)
    made.add_session("s", "A", GANG)
    assert why(made).code == "INSUFFICIENT_CAPACITY"
    made = scene(a=4)
    for name in ("b", "c"):
        made.add_agent(name, {"cpu": 3000}, family=6, schedulable=False)
    made.add_session("s", "A", GANG)
    assert (why(made).tier, why(made).code) == (Tier.SYSTEM, "NO_AGENT_AVAILABLE")


def test_sessions_make_way_in_one_family() -> None:
    made = Scene()
    for name, family in (("a", 4), ("b", 6), ("c", 4)):
        made.add_agent(name, {"cpu": 2000}, {"cpu": 2000}, family=family)
        made.add_running(f"on-{name}", 1, 0, {name: {"cpu": 2000}})
    made.add_session("s", "A", GANG, priority=5)
    (preemption,) = made.run(Policy("fifo", "concentrated", {PREEMPTION: "terminate"})).decisions.preemptions
    assert sorted(preemption.victims) == [0, 2]


def test_a_reservation_is_in_one_family() -> None:
    made = Scene()
    for name, family in (("a", 4), ("b", 6), ("c", 4)):
        made.add_agent(name, {"cpu": 2000}, {"cpu": 2000}, family=family)
        made.add_running(f"on-{name}", 1, 0, {name: {"cpu": 2000}})
    made.add_session("s", "A", GANG, tries=9)
    agents, owners, queue, scale = made.columns()
    running = made._placed(agents, scale)  # noqa: SLF001  # its ends are not known else
    running.ends[:] = [10.0, 20.0, 30.0]
    decisions = run_pass(
        agents, owners, queue, Policy("fifo", "concentrated", {RESERVE_AFTER_TRIES: "1"}), running=running
    )
    explanation = decisions.explain(0)
    assert explanation is not None
    assert "has a reservation on agent a, c in 30 s" in explanation.message


def test_an_external_strategy_may_not_mix_families() -> None:
    made = scene(a=4, b=6, c=4)
    made.add_session("s", "A", GANG)
    agents, _, queue, _ = made.columns()
    for chosen, wrong in ((["a", "b"], True), (["a", "c"], False)):
        choices = Choices({"s": chosen})
        view = View(agents, queue, np.array([0]), validate_policy(POLICY), "", choices=choices)
        free = view.free.amounts().tolist()
        view.place(0)
        if wrong:
            assert "underlay addresses are of different families" in choices.refused[0]
            assert view.free.amounts().tolist() == free
        else:
            assert not choices.refused
