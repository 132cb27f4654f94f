"""Whole passes on small problems whose answer is known."""

from __future__ import annotations

import copy
from dataclasses import fields, replace

import numpy as np
import pytest

from retinue.manager.domain.scheduling.policy import Policy, PolicyError
from retinue.manager.scheduling.columns import UNPLACED, Verdict
from retinue.manager.scheduling.scheduling_pass import run_pass
from tests.vectors.scene import Scene

FIFO = Policy("fifo", "concentrated")
DRF = Policy("drf", "concentrated")


def verdicts(scene: Scene, policy: Policy) -> dict[str, Verdict]:
    outcome = scene.run(policy)
    return {name: Verdict(outcome.decisions.verdicts[row]) for name, row in outcome.rows.items()}


def test_the_example_of_the_paper_in_one_pass() -> None:
    """9 CPU and 18 GB; tasks of A take 1 CPU and 4 GB, those of B 3 CPU and 1 GB: three of A and two of B."""
    scene = Scene()
    scene.add_agent("node", {"cpu": 9, "mem": 18})
    for number in range(6):
        scene.add_session(f"A{number}", "A", [{"cpu": 1, "mem": 4}])
    for number in range(6):
        scene.add_session(f"B{number}", "B", [{"cpu": 3, "mem": 1}])
    outcome = scene.run(DRF)
    assert outcome.order == ["A0", "B0", "A1", "B1", "A2"]
    assert outcome.decisions.held.tolist() == [[3, 12], [6, 2]]


def test_a_share_grows_within_the_pass_and_an_owners_sessions_stay_in_order() -> None:
    scene = Scene()
    scene.add_agent("node", {"cpu": 6})
    for number in range(6):
        scene.add_session(f"early{number}", "early", [{"cpu": 1}])
    for number in range(6):
        scene.add_session(f"late{number}", "late", [{"cpu": 1}])
    assert scene.run(DRF).order == ["early0", "late0", "early1", "late1", "early2", "late2"]


def test_in_drf_an_owners_next_session_is_tried_when_one_finds_no_room() -> None:
    scene = Scene()
    scene.add_agent("node", {"cpu": 4})
    scene.add_session("huge", "A", [{"cpu": 5}])
    scene.add_session("small", "A", [{"cpu": 1}])
    scene.add_session("other", "B", [{"cpu": 1}])
    assert scene.run(DRF).order == ["small", "other"]


def test_priority_bands_come_before_shares() -> None:
    scene = Scene()
    scene.add_agent("node", {"cpu": 2})
    scene.add_owner("rich", 1, {"cpu": 100})
    scene.add_session("low", "poor", [{"cpu": 2}])
    scene.add_session("high", "rich", [{"cpu": 2}], priority=11)
    assert scene.run(DRF).order == ["high"]


def test_weights_split_in_proportion() -> None:
    scene = Scene()
    scene.add_agent("node", {"cpu": 8})
    scene.add_owner("one", 1)
    scene.add_owner("three", 3)
    for number in range(8):
        scene.add_session(f"one{number}", "one", [{"cpu": 1}])
        scene.add_session(f"three{number}", "three", [{"cpu": 1}])
    order = scene.run(DRF).order
    assert len([name for name in order if name.startswith("three")]) == 6


def test_past_usage_counts_in_fair_share_only() -> None:
    scene = Scene()
    scene.add_agent("node", {"cpu": 6})
    for number in range(6):
        scene.add_session(f"used{number}", "used", [{"cpu": 1}])
        scene.add_session(f"fresh{number}", "fresh", [{"cpu": 1}])
    agents, owners, queue, _ = scene.columns()
    owners = replace(owners, past_usage=np.array([1.0, 0.0]))
    for strategy, expected in (("drf", [3, 3]), ("fair-share", [2, 4])):
        held = run_pass(agents, owners, queue, Policy(strategy, "concentrated")).held
        assert held[:, 0].tolist() == expected


class TestFifo:
    def scene(self) -> Scene:
        scene = Scene()
        scene.add_agent("node", {"cpu": 4})
        scene.add_session("head", "A", [{"cpu": 3}])
        scene.add_session("big", "B", [{"cpu": 2}], tries=3)
        scene.add_session("small", "C", [{"cpu": 1}])
        scene.add_session("low", "C", [{"cpu": 1}], priority=1)
        return scene

    def test_a_head_without_room_holds_up_all_behind_it(self) -> None:
        assert verdicts(self.scene(), FIFO) == {
            "head": Verdict.PLACED,
            "big": Verdict.NO_ROOM,
            "small": Verdict.BEHIND,
            "low": Verdict.BEHIND,
        }
        outcome = self.scene().run(FIFO)
        explanation = outcome.decisions.explain(outcome.rows["low"])
        assert explanation is not None
        assert explanation.message == "waits in strict order behind session big, which finds no room"

    def test_tried_too_often_it_goes_to_the_end_of_its_band_and_delays_no_other(self) -> None:
        policy = Policy("fifo", "concentrated", {"max-tries-before-skip": "3"})
        outcome = self.scene().run(policy)
        assert outcome.order == ["head", "small"]
        assert verdicts(self.scene(), policy)["low"] == Verdict.NO_ROOM
        assert self.scene().run(Policy("fifo", "concentrated", {"max-tries-before-skip": "4"})).order == ["head"]

    def test_reasons_of_their_own_delay_no_other_session(self) -> None:
        scene = Scene()
        scene.add_agent("node", {"cpu": 1})
        scene.add_session("waits", "A", [{"cpu": 1}], held_back=True)
        scene.add_session("foreign", "A", [{"cpu": 1}], architecture="riscv64")
        scene.add_session("fits", "A", [{"cpu": 1}])
        assert verdicts(scene, FIFO) == {
            "waits": Verdict.HELD_BACK,
            "foreign": Verdict.NO_AGENT,
            "fits": Verdict.PLACED,
        }

    def test_lifo_takes_the_newest_and_passes_over(self) -> None:
        assert self.scene().run(Policy("lifo", "concentrated")).order == ["small", "big", "low"]


class TestGangs:
    def test_all_or_nothing(self) -> None:
        scene = Scene()
        scene.add_agent("a", {"cpu": 2})
        scene.add_agent("b", {"cpu": 2})
        scene.add_session("gang", "A", [{"cpu": 2}, {"cpu": 2}, {"cpu": 2}])
        scene.add_session("pair", "A", [{"cpu": 2}, {"cpu": 2}])
        outcome = scene.run(DRF)
        assert outcome.order == ["pair"]
        assert outcome.agents["pair"] == ["a", "b"]
        assert outcome.decisions.kernel_agents.tolist() == [UNPLACED] * 3 + [0, 1]

    def test_multi_node_is_placed_on_one_agent_when_one_holds_it(self) -> None:
        for strategy in ("concentrated", "dispersed", "round-robin"):
            scene = Scene()
            scene.add_agent("a", {"cpu": 1})
            scene.add_agent("b", {"cpu": 1})
            scene.add_agent("c", {"cpu": 2})
            scene.add_session("gang", "A", [{"cpu": 1}, {"cpu": 1}])
            assert scene.run(Policy("drf", strategy)).agents["gang"] == ["c", "c"]

    def test_single_node_waits_for_one_agent(self) -> None:
        scene = Scene()
        scene.add_agent("a", {"cpu": 2})
        scene.add_agent("b", {"cpu": 2})
        scene.add_session("single", "A", [{"cpu": 1}, {"cpu": 2}], single_node=True)
        scene.add_session("multi", "A", [{"cpu": 1}, {"cpu": 2}])
        assert scene.run(DRF).agents == {"multi": ["a", "b"]}

    def test_an_unequal_gang_is_tried_again_when_luck_has_changed(self) -> None:
        """First the small kernel takes the only agent that holds the large one;
        once the other agent is fuller, it does not.
        """
        scene = Scene()
        scene.add_agent("a", {"cpu": 4, "mem": 10})
        scene.add_agent("b", {"cpu": 5, "mem": 2})
        gang = [{"cpu": 1, "mem": 1}, {"cpu": 4, "mem": 5}]
        scene.add_session("gang0", "A", gang)
        scene.add_session("one", "B", [{"cpu": 2, "mem": 1}], designated=["b"], strict=True)
        scene.add_session("gang1", "A", gang)
        outcome = scene.run(Policy("lifo", "concentrated"))
        assert outcome.agents == {"one": ["b"], "gang0": ["b", "a"]}

    def test_a_gang_larger_than_any_number_fits_nowhere(self) -> None:
        scene = Scene()
        scene.add_agent("a", {"mem": 2**53})
        scene.add_session("vast", "A", [{"mem": 2**53}] * 1100)
        scene.add_session("vast-single", "A", [{"mem": 2**53}] * 1100, single_node=True)
        scene.add_session("one", "A", [{"mem": 2**53}])
        assert scene.run(DRF).order == ["one"]


class TestAgents:
    def test_cpu_work_keeps_away_from_accelerators(self) -> None:
        for strategy in ("concentrated", "dispersed"):
            scene = Scene()
            scene.add_agent("gpu", {"cpu": 4, "cuda.device": 4})
            scene.add_agent("plain", {"cpu": 4, "cuda.device": 0})
            scene.add_session("cpu-work", "A", [{"cpu": 1}])
            assert scene.run(Policy("drf", strategy)).agents["cpu-work"] == ["plain"]

    def test_rotation_continues_where_it_stopped_as_sessions_come_and_go(self) -> None:
        scene = Scene()
        for name in ("d", "b", "a"):
            scene.add_agent(name, {"cpu": 9})
        for number in range(2):
            scene.add_session(str(number), "A", [{"cpu": 1}])
        outcome = scene.run(Policy("fifo", "round-robin"), round_robin_cursor="c")
        assert [outcome.agents[name] for name in outcome.order] == [["d"], ["a"]]
        assert outcome.decisions.round_robin_cursor == "a"

    def test_rotation_stays_where_it_is_when_a_gang_fails(self) -> None:
        scene = Scene()
        for name in ("a", "b"):
            scene.add_agent(name, {"cpu": 2})
        scene.add_session("gang", "A", [{"cpu": 2}] * 3)
        outcome = scene.run(Policy("fifo", "round-robin"), round_robin_cursor="a")
        assert outcome.order == []
        assert outcome.decisions.round_robin_cursor == "a"

    def test_a_limit_of_kernels_counts_running_ones_and_each_of_a_gang(self) -> None:
        scene = Scene()
        scene.add_agent("a", {"cpu": 9}, kernels=1)
        scene.add_agent("b", {"cpu": 9}, kernels=5)
        for number in range(3):
            scene.add_session(str(number), "A", [{"cpu": 1}] * 2)
        policy = Policy("fifo", "concentrated", {"max-kernels-per-agent": "4"})
        outcome = scene.run(policy)
        assert outcome.agents == {"0": ["a", "a"]}
        explanation = outcome.decisions.explain(outcome.rows["1"])
        assert explanation is not None
        assert "needs room for 1 kernel on one node; the freest has room for 0 kernels (a)" in explanation.message

    def test_wishes(self) -> None:
        def agents_of(**wishes: object) -> list[str] | None:
            scene = Scene()
            scene.add_agent("a", {"cpu": 1})
            scene.add_agent("b", {"cpu": 2})
            scene.add_agent("c", {"cpu": 3}, schedulable=False)
            scene.add_session("s", "A", [{"cpu": 1}, {"cpu": 1}], **wishes)  # type: ignore[arg-type]  # passed on
            return scene.run(DRF).agents.get("s")

        assert agents_of() == ["b", "b"]
        assert agents_of(avoided=["b"]) == ["b", "b"], "only when the others do not do"
        assert agents_of(designated=["a"]) == ["b", "b"], "preferred, but too small alone"
        assert agents_of(designated=["a"], strict=True) is None
        assert agents_of(designated=["c"], strict=True) is None
        assert agents_of(designated=["b"], avoided=["b"], strict=True) == ["b", "b"]

    def test_agents_on_which_a_session_failed_come_last_though_it_prefers_them(self) -> None:
        def agent_of(**wishes: object) -> list[str] | None:
            scene = Scene()
            for name in ("a", "b", "c"):
                scene.add_agent(name, {"cpu": 1})
            scene.add_session("s", "A", [{"cpu": 1}], **wishes)  # type: ignore[arg-type]  # passed on
            return scene.run(DRF).agents.get("s")

        assert agent_of(designated=["b"]) == ["b"]
        assert agent_of(designated=["b"], avoided=["b"]) == ["a"]
        assert agent_of(designated=["b", "c"], avoided=["b"]) == ["c"]
        assert agent_of(designated=["b", "c"], avoided=["b"], strict=True) == ["c"]
        assert agent_of(designated=["b"], avoided=["a", "b", "c"]) == ["b"]

    def test_more_in_use_than_there_is_takes_nothing_and_breaks_nothing(self) -> None:
        scene = Scene()
        scene.add_agent("shrunk", {"cpu": 1, "mem": 9}, {"cpu": 4})
        scene.add_session("cpu", "A", [{"cpu": 1, "mem": 1}])
        scene.add_session("mem", "A", [{"mem": 1}])
        assert scene.run(DRF).order == ["mem"]


@pytest.mark.parametrize("session_strategy", ["fifo", "lifo", "drf", "fair-share"])
@pytest.mark.parametrize("agent_strategy", ["concentrated", "dispersed", "round-robin"])
def test_nothing_to_do(session_strategy: str, agent_strategy: str) -> None:
    policy = Policy(session_strategy, agent_strategy)
    assert Scene().run(policy).order == []
    alone = Scene()
    alone.add_agent("a", {"cpu": 1})
    assert alone.run(policy, round_robin_cursor="z").decisions.round_robin_cursor in ("z", "a")
    waiting = Scene()
    waiting.add_session("s", "A", [{"cpu": 1}])
    waiting.add_session("empty", "A", [])
    assert verdicts(waiting, policy) == {"s": Verdict.NO_AGENT, "empty": Verdict.NO_AGENT}


def test_inputs_stay_as_they_are() -> None:
    scene = Scene()
    scene.add_agent("b", {"cpu": 4})
    scene.add_agent("a", {"cpu": 4})
    scene.add_session("s", "A", [{"cpu": 3}] * 2)
    columns = scene.columns()[:3]
    before = copy.deepcopy(columns)
    assert len(run_pass(*columns, DRF).sessions) == 1
    for now, then in zip(columns, before, strict=True):
        for column in fields(now):  # type: ignore[arg-type]  # all three are dataclasses
            assert np.array_equal(getattr(now, column.name), getattr(then, column.name))


def test_columns_that_do_not_match_are_refused() -> None:
    scene = Scene()
    scene.add_agent("a", {"cpu": 4})
    scene.add_session("s", "A", [{"cpu": 3}])
    agents, owners, queue, _ = scene.columns()
    with pytest.raises(ValueError, match=r"queue\.tries has shape"):
        run_pass(agents, owners, replace(queue, tries=np.zeros(2, np.int64)), DRF)
    twice = Scene()
    twice.add_agent("a", {"cpu": 4})
    twice.add_agent("a", {"cpu": 4})
    with pytest.raises(ValueError, match="must be named once"):
        run_pass(*twice.columns()[:3], DRF)
    with pytest.raises(ValueError, match="weights"):
        run_pass(agents, replace(owners, weights=np.zeros(1, np.int64)), queue, DRF)
    with pytest.raises(PolicyError):
        run_pass(agents, owners, queue, Policy("best", "concentrated"))
