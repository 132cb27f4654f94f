"""Vectors about quotas, the place of replicas and what kernels of a session ask for together (backendai.json)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retinue.manager.domain.scheduling.policy import Policy
from retinue.manager.domain.session.quota_subjects import Account, subjects_of
from retinue.manager.scheduling.columns import Verdict
from retinue.manager.scheduling.strategies import MAX_KERNELS_PER_AGENT, PREEMPTION, PREEMPTION_ORDER
from retinue.manager.session.admission_quota import too_many_system
from retinue.rpc.core.amounts import format_amount
from tests.vectors.exceptions import case_exception
from tests.vectors.given import policy_of, scene_with
from tests.vectors.placement_vectors import assert_agent
from tests.vectors.records import Record, names_of, overlaid, read_all
from tests.vectors.scene import Amounts, Scene, exact

if TYPE_CHECKING:
    from collections.abc import Callable

Vector = dict[str, Any]
GROUP_RESULTS = {"agent", "agent_any_of", "placement", "agents", "sequence", "distinct_agents", "count_per_agent"}


def endpoint_replica_spreading(vector: Vector) -> None:
    given = vector["input"]
    place_group(given, given["same_endpoint_kernels"], False, vector["expected"])


def session_group_placement(vector: Vector) -> None:
    """A group that is preferred to be together or apart: our endpoints do the same for their replicas."""
    given = vector["input"]
    assert given["enforcement"] == "preferred"
    members, pack = dict(given["group_members"]), {"spread": False, "pack": True, "none": None}[given["direction"]]
    place_group(given, None if pack is None else members, bool(pack), vector["expected"])


def place_group(given: Vector, members: Amounts | None, pack: bool, expected: Vector) -> None:
    """One more session of a group, or `sessions` of them in one pass, each of which the next one counts."""
    scene = scene_with(given["agents"])
    names = [f"s{number}" for number in range(given["sessions"])] if "sessions" in given else ["s"]
    beside = None if members is None else {agent: int(kernels) for agent, kernels in members.items()}
    for name in names:
        scene.add_session(name, "owner", [given["request"]], beside=beside, pack=pack, endpoint="group")
    outcome = scene.run(policy_of(given))
    if "sessions" not in given:
        assert_agent(outcome, given, expected)
        return
    agents = [outcome.agents.get(name, [None])[0] for name in names]
    assert GROUP_RESULTS & set(names_of(expected)), f"a vector of {len(names)} sessions expects one of {GROUP_RESULTS}"
    if "agent" in expected:
        assert set(agents) == {expected["agent"]}
    if "agent_any_of" in expected:
        assert set(agents) <= set(expected["agent_any_of"])
    for named in ("placement", "agents", "sequence"):
        if named in expected:
            # By session, where it is known which one has which.
            assert agents == expected[named]
    if "distinct_agents" in expected:
        assert len(set(agents) - {None}) == expected["distinct_agents"]
    if "count_per_agent" in expected:
        each = expected["count_per_agent"]
        counts = {agent["id"]: agents.count(agent["id"]) for agent in given["agents"]}
        assert counts == (each if isinstance(each, dict) else dict.fromkeys(counts, each))


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
    """Whether a pass places a session for which there is room, under quotas of (limits, held, most sessions, sessions);
    if not, it has to name every slot that one of them is short of, with amounts.
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
                holds, _, asks = why.message.partition("; this asks ")
                assert f"{has} of {limit} {slot}" in holds
                assert asked in asks
    return verdict == Verdict.PLACED


def short_of(request: Amounts, limits: Amounts, held: Amounts) -> set[str]:
    """The slots of which a request asks for more than a quota has left."""
    return {
        slot
        for slot, limit in limits.items()
        if exact(request.get(slot, 0)) > max(exact(0), exact(limit) - exact(held.get(slot, 0)))
    }


def quota(vector: Vector) -> None:
    """Each `X_quota` holds for what `X_holdings`, or else `holdings`, says is held; without a record there is no limit.
    `cases` replace parts of the input.
    """
    given, expected = vector["input"], vector["expected"]
    got = []
    short: dict[str, Amounts] = {}
    for case in [overlaid(given, case) for case in given.get("cases", [Record({})])]:
        quotas = [name for name in names_of(case) if name.endswith("_quota")]
        assert quotas
        limits: list[Limit] = []
        for name in quotas:
            of_kind = f"{name.removesuffix('_quota')}_holdings"
            held = case[of_kind] if of_kind in case else case.get("holdings", {})
            if case[name] is not None:
                limits.append((case[name], held, None, 0))
        got.append(is_admitted(case["request"], limits))
        for limit, held, _, _ in limits:
            for slot in short_of(case["request"], limit, held):
                used, requested, most = (exact(of.get(slot, 0)) for of in (held, case["request"], limit))
                short[slot] = {"used": used, "requested": requested, "limit": most, "over_by": used + requested - most}
    allowed = expected["allowed"]
    assert got == (allowed if isinstance(allowed, list) else [allowed])
    if "violations" in expected:
        # By name, as keys, or in objects that say the slot and amounts.
        named = expected["violations"]
        assert set(short) == {one["slot"] if isinstance(one, dict) else one for one in named}
        for one in named:
            for part in set(names_of(one)) - {"slot"} if isinstance(one, dict) else ():
                assert short[one["slot"]][part] == exact(one[part])


def concurrency(vector: Vector) -> None:
    """The number of sessions at a time; `cases` replace parts of the input. System sessions have a limit of their own,
    which is checked when they are submitted; in a pass, no quota is theirs.
    """
    given = vector["input"]
    got = []
    for case in [overlaid(given, case) for case in given.get("cases", [Record({})])]:
        system = case.get("session_type") == "system"
        limit, current = case["max_concurrent"], case["current"]
        has_quota = limit is not None and bool(subjects_of(Account("group", "owner", "project", system=system)))
        admitted = is_admitted(case.get("request", {"cpu": 1}), [({}, {}, limit, current)] if has_quota else [])
        refused = too_many_system("owner", [0], case["current_sftp"], case["max_sftp"]) if system else {}
        got.append(admitted and not refused)
    allowed = vector["expected"]["allowed"]
    assert got == (allowed if isinstance(allowed, list) else [allowed])


def placement_grouping(vector: Vector) -> None:
    """Each unit is what one agent has to have: there are agents for exactly these,
    and one short of anything gets nothing.
    """
    for case, units in zip(vector["input"]["cases"], vector["expected"]["units"], strict=True):
        if case_exception(vector["category"], case) is not None:
            read_all(units)
            continue
        for short in [None, *((number, slot) for number, unit in enumerate(units) for slot in unit["slots"])]:
            scene = Scene()
            for number, unit in enumerate(units):
                capacity = {slot: exact(amount) for slot, amount in unit["slots"].items()}
                if short is not None and number == short[0]:
                    capacity[short[1]] -= 1
                scene.add_agent(f"agent-{number}", capacity)
            scene.add_session("s", "owner", case["kernels"], single_node=case["cluster_mode"] == "single-node")
            most = max(unit["containers"] for unit in units)
            outcome = scene.run(Policy("fifo", "concentrated", {MAX_KERNELS_PER_AGENT: str(most)}))
            if short is not None:
                assert "s" not in outcome.agents, short
            else:
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
