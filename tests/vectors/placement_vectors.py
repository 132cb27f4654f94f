"""Vectors about sequences of sessions and the choice of agents (backendai.json)."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest

from retinue.manager.domain.scheduling.policy import Policy
from retinue.manager.domain.session.states import SessionType
from retinue.manager.scheduling.columns import Verdict
from retinue.manager.scheduling.fair_share import factor, normalised_usage
from retinue.manager.scheduling.strategies import (
    MAX_TRIES_BEFORE_SKIP,
)
from tests.support.decayed_usage import decayed_usage
from tests.vectors.given import STRATEGIES, Vector, listed, policy_of, scene_with
from tests.vectors.records import names_of
from tests.vectors.scene import Amounts, Outcome, Scene, exact
from tests.vectors.share_vectors import in_order, share
from tests.vectors.shortfall_vectors import SHORTFALLS, assert_refused, shortfall_report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def assert_agent(outcome: Outcome, given: Vector, expected: Vector) -> None:
    """Session `s`, of one kernel, is where it is expected, or nowhere with the error that is."""
    got = outcome.agents.get("s", [None])
    if {"error", "failed_filter", *SHORTFALLS} & set(names_of(expected)):
        assert expected.get("agent") is None
        assert_refused(outcome, given, [given["request"]], expected)
    elif "agent_any_of" in expected:
        assert len(got) == 1
        assert got[0] in expected["agent_any_of"]
    else:
        assert got == [expected["agent"]]


def waiting(given: Vector) -> list[Vector]:
    """The waiting sessions of a vector, which go by one of three names."""
    (name,) = {"pending", "pending_queue", "sessions"} & set(names_of(given))
    return list(given[name])


def assert_still_waiting(outcome: Outcome, expected: Vector) -> None:
    """What is left of the queue, in order of arrival, is what it is expected to be, if that is said."""
    if "pending_queue" in expected:
        assert [name for name in outcome.rows if name not in outcome.agents] == expected["pending_queue"]


def add_pending(scene: Scene, session: Vector) -> None:
    """Adds a waiting session of a vector."""
    kernels = session["kernels"] if "kernels" in session else [session["request"]]
    for slot, amount in session.get("request", {}).items():
        # Beside kernels it is what they ask for together.
        assert exact(amount) == sum(exact(kernel.get(slot, 0)) for kernel in kernels)
    SessionType(session.get("type", "batch").upper())
    held_back = session.get("starts_in_seconds", 0) > 0 or any(
        (needed["status"], needed["result"]) != ("TERMINATED", "success") or needed.get("id") == session["id"]
        for needed in session.get("depends_on", [])
    )
    scene.add_session(
        session["id"],
        session.get("user", "owner"),
        kernels,
        priority=session.get("priority", 10),
        single_node=session.get("cluster_mode", "single-node") == "single-node",
        tries=session.get("scheduler_retries", 0),
        architecture=session.get("architecture", ""),
        designated=session.get("designated", ()),
        strict=session.get("designation_policy") == "strict",
        held_back=held_back,
    )


def drf_order(vector: Vector) -> None:
    given, expected = vector["input"], vector["expected"]
    held: dict[str, Amounts] = {
        user: {slot: exact(part.get("requested", 0)) + exact(part.get("used", 0)) for slot, part in slots.items()}
        for user, slots in given["holdings"].items()
    }
    order = in_order(given["capacity"], held, [(session["id"], session["user"]) for session in waiting(given)])
    assert order == expected["order"]
    for user, wanted in expected.get("dominant_share", {}).items():
        assert share(held.get(user, {}), given["capacity"]) == exact(wanted)


def add_holdings(scene: Scene, given: Vector) -> None:
    """Adds the owners of existing sessions, with what they hold together."""
    held: dict[str, dict[str, Fraction]] = {}
    for existing in given.get("existing", []):
        amounts = held.setdefault(existing["user"], {})
        for slot, amount in existing["holds"].items():
            amounts[slot] = amounts.get(slot, Fraction(0)) + exact(amount)
    for user, amounts in held.items():
        scene.add_owner(user, 1, amounts)


def pick_and_place(vector: Vector) -> None:
    given, expected = vector["input"], vector["expected"]
    scene = scene_with(given["agents"])
    add_holdings(scene, given)
    pending = waiting(given)
    for session in pending:
        add_pending(scene, session)
    outcome = scene.run(policy_of(given, given["scheduler"]))
    picked, agent = expected["picked"], expected["agent"]
    if picked is None or agent is None:
        # Nothing goes anywhere; whose turn it would be is the head of the queue.
        assert agent is None
        assert picked not in outcome.agents
        assert picked is not None or not outcome.order
        # By arrival, nothing else counts; a share depends on what there is.
        assert given["scheduler"] not in {"fifo", "lifo"} or first_with_room(given) == picked
        assert_still_waiting(outcome, expected)
        return
    assert outcome.order[0] == expected["picked"]
    # One pick at a time: the queue afterwards has all the others.
    if "pending_queue" in expected:
        assert [session["id"] for session in pending if session["id"] != picked] == expected["pending_queue"]
    agents = outcome.agents[expected["picked"]]
    assert set(agents) == {expected["agent"]}
    assert expected.get("all_kernels_on_same_agent", True)
    kernels = next(session for session in pending if session["id"] == expected["picked"]).get("kernels", [{}])
    assert len(agents) == len(kernels)


def first_with_room(given: Vector) -> str | None:
    """The session whose turn it is when there is room for all; None without any."""
    sessions = waiting(given)
    asked: dict[str, Fraction] = {}
    for session in sessions:
        for kernel in session.get("kernels", [session.get("request", {})]):
            for slot, amount in kernel.items():
                asked[slot] = asked.get(slot, Fraction(0)) + exact(amount)
    scene = scene_with([{"id": agent["id"], "capacity": asked} for agent in given["agents"]])
    for session in sessions:
        add_pending(scene, session)
    order = scene.run(Policy(given["scheduler"], "concentrated")).order
    return order[0] if order else None


def accelerator_avoidance(vector: Vector) -> None:
    """Each session by itself, for what one takes does not count for the next here."""
    given = vector["input"]
    assert given["update_occupancy"] is False
    pending = {session["id"]: session for session in waiting(given)}
    sequence = scene_with(given["agents"])
    add_holdings(sequence, given)
    for name, session in pending.items():
        sequence.add_session(name, session.get("user", "owner"), [{}])
    order = sequence.run(Policy(given["scheduler"], "concentrated")).order
    got = []
    for name in order:
        scene = scene_with(given["agents"])
        add_pending(scene, pending[name])
        agents = scene.run(policy_of(given)).agents.get(name, [None])
        assert len(set(agents)) == 1
        got.append({"picked": name, "agent": agents[0]})
    assert got == vector["expected"]["sequence"]


def fifo_hol_avoidance(vector: Vector) -> None:
    given = vector["input"]
    scene = Scene()
    scene.add_agent("pool", given["capacity"])
    request = dict(given["request_each"])
    for session in waiting(given):
        scene.add_session(session["id"], "owner", [request], tries=session.get("scheduler_retries", 0))
    options = {MAX_TRIES_BEFORE_SKIP: str(given["config"].get("num_retries_to_skip", 0))}
    order = scene.run(Policy(given["scheduler"], "concentrated", options)).order
    assert (order[0] if order else None) == vector["expected"]["picked"]


def priority_order(vector: Vector) -> None:
    given = vector["input"]
    scene = Scene()
    scene.add_agent("pool", {"cpu": 1})
    for number, priority in enumerate(given["pending_priorities_in_arrival_order"]):
        scene.add_session(str(number), "owner", [{}], priority=priority)
    order = scene.run(Policy(given["scheduler"], "concentrated")).order
    assert [int(name) for name in order] == vector["expected"]["order_by_index"]


def round_robin(vector: Vector) -> None:
    """Picks one after the other; each `then` is a later pass, after `agents` are replaced,
    or some `add`ed or `remove`d.
    """
    given, expected = vector["input"], vector["expected"]
    agents = {agent["id"]: agent for agent in map(agent_of, given["agents"])}
    round_robin_cursor, sequences = "", []
    for later in [given, *listed(given.get("then", []))]:
        if later is not given and "agents" in later:
            agents = {agent["id"]: agent for agent in map(agent_of, later["agents"])}
        agents.update((agent["id"], agent) for agent in map(agent_of, listed(later.get("add", []))))
        for name in listed(later.get("remove", [])):
            del agents[name]
        picks, request = later["picks"], later.get("request", given.get("request", {"cpu": 1}))
        # An agent without a capacity has room for all.
        roomy = {slot: exact(amount) * max(picks, 1) for slot, amount in request.items()}
        scene = scene_with([{"capacity": roomy, **agent} for agent in agents.values()])
        for number in range(picks):
            scene.add_session(str(number), "owner", [request])
        outcome = scene.run(Policy("fifo", "round-robin"), round_robin_cursor)
        round_robin_cursor = outcome.decisions.round_robin_cursor
        sequences.append([outcome.agents.get(str(number), [None])[0] for number in range(picks)])
    wanted = [expected, *listed(expected["then"])] if "then" in expected else [expected]
    if len(wanted) == 1:
        sequences = [[agent for sequence in sequences for agent in sequence]]
    for sequence, said in zip(sequences, wanted, strict=True):
        if isinstance(said, list):
            assert sequence == said
            continue
        assert {"sequence", "count_per_agent"} & set(names_of(said))
        if "sequence" in said:
            assert sequence == said["sequence"]
        if "count_per_agent" in said:
            counts = {name: sequence.count(name) for name in agents}
            each = said["count_per_agent"]
            assert counts == (each if isinstance(each, dict) else dict.fromkeys(agents, each))


def agent_of(agent: Any) -> Vector:
    """An agent that is given by its name alone, or with all that is known of it."""
    return agent if isinstance(agent, dict) else {"id": agent}


def agent_pick(vector: Vector) -> None:
    given = vector["input"]
    scene = scene_with(given["agents"])
    scene.add_session(
        "s",
        "owner",
        [given["request"]],
        architecture=given.get("architecture", ""),
        designated=given.get("designated", ()),
        strict=given.get("designation_policy") == "strict",
        avoided=given.get("failed_for_session", ()),
    )
    assert_agent(scene.run(policy_of(given)), given, vector["expected"])


def agent_pick_in_batch(vector: Vector) -> None:
    """What was placed before in the pass goes first, to the agents it went to."""
    given, expected = vector["input"], vector["expected"]
    scene = scene_with(given["agents"])
    for number, (agent, amounts) in enumerate(given["already_placed_in_pass"].items()):
        scene.add_session(f"before-{number}", "owner", [amounts], designated=[agent], strict=True)
    others = [agent["id"] for agent in given["agents"] if agent["id"] not in given.get("exclude", ())]
    scene.add_session("s", "owner", [given["request"]], designated=others, strict=True)
    outcome = scene.run(policy_of(given))
    assert outcome.agents["s"] == [expected["agent"]]
    for number, agent in enumerate(given["already_placed_in_pass"]):
        assert outcome.agents[f"before-{number}"] == [agent]
    agents, _, queue, scale = scene.columns()
    for agent, remaining in expected.get("remaining_after", {}).items():
        row = list(agents.ids).index(agent)
        taken = queue.requests[outcome.decisions.kernel_agents == row].sum(axis=0)
        left = (agents.capacity - agents.used)[row] - taken
        assert dict(zip(agents.slots, left.tolist(), strict=True)) == {
            slot: exact(amount) * scale for slot, amount in remaining.items()
        }


def failed_agent_avoidance(vector: Vector) -> None:
    given = vector["input"]
    for strategy in given.get("strategies", ["concentrated", "dispersed", "round-robin"]):
        scene = scene_with(given["agents"])
        scene.add_session(
            "s",
            "owner",
            [given["request"]],
            designated=given.get("designated", ()),
            strict=given.get("designation_policy") == "strict",
            avoided=given["failed_for_session"],
        )
        assert_agent(scene.run(Policy("fifo", STRATEGIES.get(strategy, strategy))), given, vector["expected"])


def multi_container_placement(vector: Vector) -> None:
    given, expected = vector["input"], vector["expected"]
    scene = scene_with(given["agents"])
    scene.add_session(
        "s",
        "owner",
        given["kernels"],
        single_node=given["cluster_mode"] == "single-node",
        architecture=given.get("architecture", ""),
        designated=given.get("designated", ()),
        strict=given.get("designation_policy") == "strict",
    )
    outcome = scene.run(policy_of(given))
    if "error" in expected:
        assert_refused(outcome, given, given["kernels"], expected)
    else:
        placement = outcome.agents["s"]
        assert placement == expected["placement"]
        assert len(placement) == expected.get("placed_kernels", len(placement))


def scheduling_pass(vector: Vector) -> None:
    given, expected = vector["input"], vector["expected"]
    scene = scene_with(given["agents"])
    for session in waiting(given):
        add_pending(scene, session)
    add_quotas(scene, given, dict.fromkeys(session.get("user", "owner") for session in waiting(given)))
    outcome = scene.run(policy_of(given, given["scheduler"]))
    verdicts = {name: Verdict(outcome.decisions.verdicts[row]) for name, row in outcome.rows.items()}
    failures = {Verdict.NO_ROOM, Verdict.NO_AGENT, Verdict.HELD_BACK, Verdict.OVER_QUOTA}
    assert outcome.order == expected["scheduled"]
    # Some vectors say with `pending_queue` alone what was not placed.
    assert "failed" in expected or "pending_queue" in expected, "expected has neither failed nor pending_queue"
    if "failed" in expected:
        assert {name for name, verdict in verdicts.items() if verdict in failures} == set(expected["failed"])
    assert {name for name, verdict in verdicts.items() if verdict == Verdict.BEHIND} == set(expected.get("skipped", []))
    for name, agents in expected.get("placement", {}).items():
        assert outcome.agents[name] == agents
    assert_still_waiting(outcome, expected)


def add_quotas(scene: Scene, given: Vector, users: Iterable[str]) -> None:
    """Adds each `X_quota` for what `X_holdings`, or else `holdings`, says is held: one for each of the users,
    of another X one for all.

    What is by user is an object of objects, by name; a user who is not named has no limit, or holds nothing.
    """
    for name in names_of(given):
        if not name.endswith("_quota") or given[name] is None:
            continue
        kind = name.removesuffix("_quota")
        held = given[f"{kind}_holdings"] if f"{kind}_holdings" in given else given.get("holdings", {})
        if kind == "user":
            for user in users:
                scene.add_quota(of_user(given[name], user) or {}, of_user(held, user) or {}, owner=user)
        else:
            scene.add_quota(given[name], held)


def of_user(amounts: Vector, user: str) -> Amounts | None:
    """Amounts of every owner, or by user."""
    by_user = any(isinstance(of, dict) for of in amounts.values())
    return amounts.get(user) if by_user else amounts


def fair_share_decay(vector: Vector) -> None:
    given = vector["input"]
    for case, expected in zip(given["cases"], vector["expected"]["decayed"], strict=True):
        buckets = [(bucket["age_days"], float(bucket["cpu_seconds"])) for bucket in case["buckets"]]
        assert decayed_usage(buckets, given["half_life_days"]) == pytest.approx(float(expected))


def fair_share_factor(vector: Vector) -> None:
    given, expected = vector["input"], vector["expected"]
    capacity = {slot: float(amount) for slot, amount in given["capacity"].items()}
    weights = {slot: float(weight) for slot, weight in given["resource_weights"].items()}
    for seconds, normalised, wanted in zip(
        given["usage_cpu_seconds"], expected["normalized"], expected["factor"], strict=True
    ):
        got = normalised_usage({"cpu": float(seconds)}, capacity, given["lookback_days"], weights)
        assert got == pytest.approx(float(normalised))
        assert factor(got, float(given["weight"])) == pytest.approx(float(wanted))


RUNNERS: dict[str, Callable[[Vector], None]] = {
    "drf_order": drf_order,
    "fifo_pick_and_place": pick_and_place,
    "lifo_pick_and_place": pick_and_place,
    "drf_pick_and_place": pick_and_place,
    "accelerator_avoidance": accelerator_avoidance,
    "fifo_hol_avoidance": fifo_hol_avoidance,
    "priority_order": priority_order,
    "round_robin": round_robin,
    "agent_pick": agent_pick,
    "agent_pick_in_batch": agent_pick_in_batch,
    "shortfall_report": shortfall_report,
    "failed_agent_avoidance": failed_agent_avoidance,
    "multi_container_placement": multi_container_placement,
    "scheduling_pass": scheduling_pass,
    "fair_share_decay": fair_share_decay,
    "fair_share_factor": fair_share_factor,
}
