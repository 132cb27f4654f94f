"""Vectors about quotas, the place of replicas and what kernels of a session ask for together (backendai.json)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from manager.scheduling.amounts import format_amount
from manager.scheduling.columns import Policy, Verdict
from manager.scheduling.strategies import MAX_KERNELS_PER_AGENT, PREEMPTION, PREEMPTION_ORDER
from tests.vectors.exceptions import case_exception
from tests.vectors.placement_vectors import assert_agent, policy_of, scene_with
from tests.vectors.scene import Amounts, Scene, exact

Vector = dict[str, Any]


def endpoint_replica_spreading(vector: Vector) -> None:
    given = vector["input"]
    scene = scene_with(given["agents"])
    scene.add_session("s", "owner", [given["request"]], beside=given["same_endpoint_kernels"], pack=False)
    assert_agent(scene.run(policy_of(given)), vector["expected"])


def session_group_placement(vector: Vector) -> None:
    """A group that is preferred to be together or apart: our endpoints do the same for their replicas."""
    given = vector["input"]
    assert given["enforcement"] == "preferred"
    scene = scene_with(given["agents"])
    pack = {"spread": False, "pack": True, "none": None}[given["direction"]]
    beside = None if pack is None else given["group_members"]
    scene.add_session("s", "owner", [given["request"]], beside=beside, pack=bool(pack))
    assert_agent(scene.run(policy_of(given)), vector["expected"])


def preemption(vector: Vector) -> None:
    """Who makes way for session `s`, which finds no room, and where it goes then."""
    given, expected = vector["input"], vector["expected"]
    scene = scene_with(given["agents"])
    for victim in given["victims"]:
        scene.add_running(victim["id"], victim["job_priority"], victim["started_year"], victim["holds"])
    scene.add_session("s", "owner", given["kernels"], priority=given["job_priority"])
    policy = policy_of(given)
    options = {**policy.options, PREEMPTION: "terminate", PREEMPTION_ORDER: given["order"]}
    outcome = scene.run(Policy(policy.session_strategy, policy.agent_strategy, options))
    found = outcome.decisions.preemptions
    if "error" in expected:
        assert expected["error"] == "no-fit"
        assert not found
        assert not outcome.agents
        return
    if not expected.get("victims", expected.get("victims_set")):
        assert not found
        assert outcome.agents["s"] == expected["placement"]
        return
    (preempted,) = found
    names = [victim["id"] for victim in given["victims"]]
    agents = [given["agents"][agent]["id"] for agent in preempted.agents.tolist()]
    wanted = (
        expected["victims_set"] if "victims_set" in expected else [name for of in expected["victims"] for name in of]
    )
    assert sorted(names[victim] for victim in preempted.victims) == sorted(set(wanted))
    assert agents == expected["placement"]


Limit = tuple[Amounts, Amounts, int | None, int]


def is_admitted(request: Amounts, quotas: list[Limit]) -> bool:
    """Whether a pass places a session for which there is room, under quotas of (limits, held, most sessions, sessions); if not, it has to
    name every slot that one of them is short of, with amounts.
    """
    scene = Scene()
    scene.add_agent("pool", {slot: exact(amount) or 1 for slot, amount in request.items()})
    scene.add_session("s", "owner", [request])
    for limits, held, most, sessions in quotas:
        scene.add_quota(limits, held, most_sessions=most, sessions=sessions)
    outcome = scene.run(Policy("fifo", "concentrated"))
    verdict = Verdict(outcome.decisions.verdicts[outcome.rows["s"]])
    assert verdict in {Verdict.PLACED, Verdict.OVER_QUOTA}
    assert (verdict == Verdict.PLACED) == ("s" in outcome.agents)
    if verdict == Verdict.OVER_QUOTA:
        why = outcome.decisions.explain(outcome.rows["s"])
        assert why is not None
        for limits, held, _, _ in quotas:
            for slot in short_of(request, limits, held):
                limit, has, asked = (
                    format_amount(slot, int(exact(amounts.get(slot, 0)) * outcome.scale))
                    for amounts in (limits, held, request)
                )
                assert f"{slot} {has} of {limit} held, {asked} asked for" in why.message
    return verdict == Verdict.PLACED


def short_of(request: Amounts, limits: Amounts, held: Amounts) -> set[str]:
    """The slots of which a request asks for more than a quota has left."""
    return {
        slot
        for slot, limit in limits.items()
        if exact(request.get(slot, 0)) > max(exact(0), exact(limit) - exact(held.get(slot, 0)))
    }


def quota(vector: Vector) -> None:
    """Each `X_quota` holds for what `X_holdings`, or else `holdings`, says is held; without a record there is no limit. `cases` replace
    parts of the input.
    """
    given, expected = vector["input"], vector["expected"]
    got = []
    short: set[str] = set()
    for case in [{**given, **case} for case in given.get("cases", [{}])]:
        assert any(name.endswith("_quota") for name in case)
        limits: list[Limit] = [
            (limit, case.get(f"{name.removesuffix('_quota')}_holdings", case.get("holdings", {})), None, 0)
            for name, limit in case.items()
            if name.endswith("_quota") and limit is not None
        ]
        got.append(is_admitted(case["request"], limits))
        for limit, held, _, _ in limits:
            short |= short_of(case["request"], limit, held)
    allowed = expected["allowed"]
    assert got == (allowed if isinstance(allowed, list) else [allowed])
    if "violations" in expected:
        # By name, as keys, or in objects that say the slot; amounts were compared above.
        named = expected["violations"]
        assert short == {one["slot"] if isinstance(one, dict) else one for one in named}


def concurrency(vector: Vector) -> None:
    """The number of sessions at a time; `cases` replace parts of the input."""
    given = vector["input"]
    cases: list[Mapping[str, Any]] = [{**given, **case} for case in given.get("cases", [{}])]
    got = [
        is_admitted(
            case.get("request", {"cpu": 1}),
            [] if case["max_concurrent"] is None else [({}, {}, case["max_concurrent"], case["current"])],
        )
        for case in cases
    ]
    allowed = vector["expected"]["allowed"]
    assert got == (allowed if isinstance(allowed, list) else [allowed])


def placement_grouping(vector: Vector) -> None:
    """Each unit is what one agent has to have: there are agents for exactly these, and one short of anything gets nothing."""
    for case, units in zip(vector["input"]["cases"], vector["expected"]["units"], strict=True):
        if case_exception(vector["category"], case) is not None:
            continue
        for missing in [None, *({slot for unit in units for slot in unit["slots"]})]:
            scene = Scene()
            for number, unit in enumerate(units):
                capacity = {slot: exact(amount) for slot, amount in unit["slots"].items()}
                if number == 0 and missing in capacity:
                    capacity[missing] -= 1
                scene.add_agent(f"agent-{number}", capacity)
            scene.add_session("s", "owner", case["kernels"], single_node=case["cluster_mode"] == "single-node")
            most = max(unit["containers"] for unit in units)
            outcome = scene.run(Policy("fifo", "concentrated", {MAX_KERNELS_PER_AGENT: str(most)}))
            if missing is not None and any(missing in unit["slots"] for unit in units[:1]):
                assert "s" not in outcome.agents
            elif missing is None:
                agents = outcome.agents["s"]
                assert sorted(agents.count(name) for name in set(agents)) == sorted(
                    unit["containers"] for unit in units
                )


RUNNERS: dict[str, Callable[[Vector], None]] = {
    "endpoint_replica_spreading": endpoint_replica_spreading,
    "session_group_placement": session_group_placement,
    "quota": quota,
    "concurrency": concurrency,
    "placement_grouping": placement_grouping,
    "preemption": preemption,
}
