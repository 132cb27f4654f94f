"""Vectors about shares and the order of owners (drf.json)."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest

from retinue.manager.domain.scheduling.policy import Policy
from retinue.manager.scheduling.columns import UNPLACED
from retinue.manager.scheduling.fair_share import factor, normalised_usage
from retinue.manager.scheduling.shares import ShareKeys
from retinue.manager.scheduling.strategies import FIFO, MAX_TRIES_BEFORE_SKIP, SLOT_PRIORITY
from tests.support.decayed_usage import decayed_usage
from tests.vectors.records import Record, overlaid
from tests.vectors.scene import Amounts, Outcome, Scene, exact
from tests.vectors.sorter import orders

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Vector = dict[str, Any]
# Divisible tasks are cut into so many pieces.
PIECES = 600


def dominant_share(held: Sequence[int], capacity: Sequence[int], weight: int = 1) -> Fraction:
    """Returns the largest part held of any slot that has capacity, divided by the weight."""
    parts = [Fraction(amount, total) for amount, total in zip(held, capacity, strict=True) if total > 0]
    return max(parts, default=Fraction(0)) / weight


def share(held: Amounts, capacity: Amounts, weight: str | float = 1) -> Fraction:
    """An owner's weighted dominant share, computed by both of our ways, which must agree."""
    slots = sorted(capacity)
    weighted = exact(weight)
    parts = [(exact(held.get(slot, 0)), exact(capacity[slot])) for slot in slots]
    scale = math.lcm(*(amount.denominator for pair in parts for amount in pair))
    amounts = [int(amount * scale) for amount, _ in parts]
    totals = [int(total * scale) for _, total in parts]
    by_fraction = dominant_share(amounts, totals) / weighted
    keys = ShareKeys(totals, [1])
    whole = max((factor * total for factor, total in zip(keys.factors, totals, strict=True)), default=0) or 1
    assert Fraction(keys.unweighted(amounts), whole) / weighted == by_fraction
    return by_fraction


def whole_weights(weights: Sequence[str | float]) -> list[int]:
    """Weights of the same proportions in whole numbers."""
    fractions = [exact(weight) for weight in weights]
    scale = 1
    for fraction in fractions:
        scale *= fraction.denominator
    return [int(fraction * scale) for fraction in fractions]


def fill(vector: Mapping[str, Any], pieces: int = 1) -> tuple[list[str], dict[str, int], Outcome]:
    """Progressive filling of one pool: the owners in order of pick, their tasks, and the pass.
    `pieces` enlarges the pool.
    """
    scene = Scene()
    capacity = {slot: exact(amount) * pieces for slot, amount in vector["capacity"].items()}
    users = {user["name"]: user for user in vector["users"]}
    initial = {name: user.get("initial", {}) for name, user in users.items()}
    used = {slot: sum((exact(held.get(slot, 0)) for held in initial.values()), Fraction(0)) for slot in capacity}
    scene.add_agent("pool", capacity, used)
    ties = vector.get("tie_order") or list(users)
    weights = dict(zip(ties, whole_weights([users[name].get("weight", 1) for name in ties]), strict=True))
    for name in ties:
        scene.add_owner(name, weights[name], initial[name])
    for name in ties:
        demand = users[name]["demand"]
        # One that asks for nothing gets everything it asks for; it must say how much that is.
        limits = [
            int(capacity.get(slot, Fraction(0)) / exact(amount)) for slot, amount in demand.items() if exact(amount) > 0
        ]
        most = min(limits) + 1 if limits else users[name]["max_tasks"]
        wanted = users[name].get("max_tasks")
        for number in range(most if wanted is None else min(most, wanted)):
            scene.add_session(f"{name}/{number}", name, [demand])
    outcome = scene.run(Policy("drf", "concentrated"))
    picks = [name.rsplit("/", 1)[0] for name in outcome.order]
    if vector.get("on_no_fit", "stop") == "stop":
        picks = picks[: steps_until_a_misfit(vector, picks, ties, capacity)]
    return picks, {name: picks.count(name) for name in users}, outcome


def steps_until_a_misfit(
    vector: Mapping[str, Any], picks: list[str], ties: list[str], capacity: dict[str, Fraction]
) -> int:
    """How many picks there were when first the owner with the lowest share was passed over,
    for its task did not fit.
    """
    users = {user["name"]: user for user in vector["users"]}
    held = {name: {slot: exact(users[name].get("initial", {}).get(slot, 0)) for slot in capacity} for name in ties}
    tasks = dict.fromkeys(ties, 0)
    wanted = {name: users[name].get("max_tasks") for name in ties}
    most = {name: len(picks) + 1 if tasks is None else tasks for name, tasks in wanted.items()}
    for step, picked in enumerate(picks):
        wanting = [name for name in ties if tasks[name] < most[name]]
        if picked != min(wanting, key=lambda name: share(held[name], capacity, users[name].get("weight", 1))):
            return step
        tasks[picked] += 1
        for slot, amount in users[picked]["demand"].items():
            held[picked][slot] = held[picked].get(slot, Fraction(0)) + exact(amount)
    return len(picks)


def progressive_fill(vector: Vector) -> None:
    picks, tasks, _ = fill(vector)
    expected = vector["expected"]
    assert tasks == expected["tasks"]
    if "pick_order" in expected:
        assert picks == expected["pick_order"]
    for user in vector["users"]:
        held = {
            slot: exact(user.get("initial", {}).get(slot, 0)) + tasks[user["name"]] * exact(user["demand"].get(slot, 0))
            for slot in vector["capacity"]
        }
        if "dominant_share" in expected:
            assert share(held, vector["capacity"]) == exact(expected["dominant_share"][user["name"]])
        if "weighted_share" in expected:
            assert share(held, vector["capacity"], user.get("weight", 1)) == exact(
                expected["weighted_share"][user["name"]]
            )


def divisible(vector: Vector) -> None:
    """The rule for divisible tasks is the limit of ever smaller ones; each owner is within two pieces of it."""
    expected = vector["expected"]
    _, tasks, _ = fill(overlaid(vector, Record({"on_no_fit": "stop"})), PIECES)
    for name, wanted in (expected.get("tasks") or expected["drf_divisible_tasks"]).items():
        assert abs(Fraction(tasks[name], PIECES) - exact(wanted)) <= Fraction(2, PIECES)
    for user in vector["users"]:
        got = {slot: exact(amount) * tasks[user["name"]] / PIECES for slot, amount in user["demand"].items()}
        piece = share({slot: exact(amount) / PIECES for slot, amount in user["demand"].items()}, vector["capacity"])
        for named, weight in (("dominant_share", 1), ("weighted_share", user.get("weight", 1))):
            if named in expected:
                wanted = exact(expected[named][user["name"]])
                assert abs(share(got, vector["capacity"], weight) - wanted) <= 2 * piece / exact(weight)


def gang_fill(vector: Vector) -> None:
    assert vector.get("on_no_fit", "skip_session") == "skip_session"
    assert vector.get("placement", "concentrated(cpu,mem,id)") == "concentrated(cpu,mem,id)"
    scene = Scene()
    for node in vector["nodes"]:
        scene.add_agent(node["id"], {slot: amount for slot, amount in node.items() if slot != "id"})
    ties = vector.get("tie_order") or list(dict.fromkeys(session["user"] for session in vector["queue"]))
    for name, weight in zip(
        ties, whole_weights([vector.get("weights", {}).get(name, 1) for name in ties]), strict=True
    ):
        scene.add_owner(name, weight)
    for session in vector["queue"]:
        scene.add_session(session["session"], session["user"], session["containers"])
    outcome = scene.run(Policy("drf", "concentrated", {SLOT_PRIORITY: "cpu,mem"}))
    expected = vector["expected"]
    assert set(outcome.order) == set(expected["scheduled"])
    if "pick_order" in expected:
        assert outcome.order == expected["pick_order"]
    assert set(outcome.rows) - set(outcome.order) == set(expected["unscheduled"])
    placed = sum(len(agents) for agents in outcome.agents.values())
    assert (outcome.decisions.kernel_agents != UNPLACED).sum() == placed
    if "held_by_unscheduled" in expected:
        # All that is held is that of those that were placed.
        assert not any(exact(amount) for amount in expected["held_by_unscheduled"].values())
    if "placement" in expected:
        assert {name: sorted(agents) for name, agents in outcome.agents.items()} == {
            name: sorted(agents) for name, agents in expected["placement"].items()
        }


def share_value(vector: Vector) -> None:
    amounts, allocations = dict(vector["total"]), [dict(part) for part in vector["allocations"]]
    considered, multipliers = vector.get("considered") or list(amounts), vector.get("multiplier") or {}
    multiplier = {slot: exact(multipliers.get(slot, 1)) for slot in considered}
    # A slot that counts m times is as scarce as if there were an m-th of it,
    # and one that counts for nothing is not there.
    total = {slot: exact(amounts.get(slot, 0)) / times if times else 0 for slot, times in multiplier.items()}
    held = {slot: sum((exact(part.get(slot, 0)) for part in allocations), Fraction(0)) for slot in considered}
    assert share(held, total, vector.get("weight", 1)) == exact(vector["expected_share"])


def in_order(
    capacity: Amounts, held: dict[str, Amounts], pending: list[tuple[str, str]], weights: dict[str, int] | None = None
) -> list[str]:
    """The order in which `drf` takes pending (session, owner) pairs that ask for nothing,
    so that shares stay as they are.
    """
    scene = Scene()
    scene.add_agent("pool", capacity)
    for owner in dict.fromkeys(owner for _, owner in pending):
        scene.add_owner(owner, (weights or {}).get(owner, 1), held.get(owner))
    for session, owner in pending:
        scene.add_session(session, owner, [{}])
    return scene.run(Policy("drf", "concentrated")).order


def compare(vector: Vector) -> None:
    sides: dict[str, Amounts] = {
        side: {slot: amount for slot, amount in vector[side].items() if slot != "weight"}
        for side in ("first", "second")
    }
    weights = dict(zip(sides, whole_weights([vector[side].get("weight", 1) for side in sides]), strict=True))
    order = in_order(vector["total"], sides, [(f"{side}_goes_first", side) for side in sides], weights)
    assert order[0] == vector["expected"]


def session_sequence(vector: Vector) -> None:
    pending = [(session["session"], session["user"]) for session in vector["pending"]]
    assert in_order(vector["capacity"], vector["occupancy"], pending) == vector["expected_order"]


def session_pick(vector: Vector) -> None:
    pending = [(session["session"], session["user"]) for session in vector["pending"]]
    order = in_order(vector["capacity"], vector["occupancy"], pending)
    assert (order[0] if order else None) == vector["expected_pick"]


def equal_agents(vector: Vector) -> None:
    """Whole agents go to roles: tasks as large as an agent."""
    for case in vector["cases"]:
        scene = Scene()
        for number in range(vector["agents"]):
            scene.add_agent(f"agent-{number}", vector["agent"])
        roles = sorted(case["weights"])
        for role, weight in zip(roles, whole_weights([case["weights"][role] for role in roles]), strict=True):
            scene.add_owner(role, weight)
            for number in range(vector["agents"]):
                scene.add_session(f"{role}/{number}", role, [vector["agent"]])
        got = [name.split("/")[0] for name in scene.run(Policy("drf", "concentrated")).order]
        assert {role: got.count(role) for role in case["weights"]} == case["agents_each"]


def fifo_hol_pick(vector: Vector) -> None:
    scene = Scene()
    scene.add_agent("pool", {"cpu": 1})
    for session, tries in vector["pending_retries"].items():
        scene.add_session(session, "owner", [{"cpu": 1}], tries=tries)
    policy = Policy(FIFO, "concentrated", {MAX_TRIES_BEFORE_SKIP: str(vector["num_retries_to_skip"])})
    picked = scene.run(policy).order
    assert picked == ([] if vector["expected_pick"] is None else [vector["expected_pick"]])


def sorter_steps(vector: Vector) -> None:
    """Clients in order of their shares; names break ties."""
    for clients, expected in orders(vector["steps"]):
        assert set(expected) == clients.active
        names = sorted(clients.active)
        whole = whole_weights([str(clients.weights.get(client, 1)) for client in names])
        weights = dict(zip(names, whole, strict=True))
        pending = [(client, client) for client in names]
        assert not names or in_order(clients.total, dict(clients.held), pending, weights) == expected


def one_slot_fill(total: str | float, weights: Mapping[str, str | float], wanted: Mapping[str, int]) -> dict[str, int]:
    """How many units of one slot each owner gets that asks for so many, one by one."""
    scene = Scene()
    scene.add_agent("pool", {"units": total})
    for name, weight in zip(weights, whole_weights(list(weights.values())), strict=True):
        scene.add_owner(name, weight)
        for number in range(wanted[name]):
            scene.add_session(f"{name}/{number}", name, [{"units": 1}])
    order = scene.run(Policy("drf", "concentrated")).order
    picks = [name.rsplit("/", 1)[0] for name in order]
    return {name: picks.count(name) for name in weights}


def max_min(vector: Vector) -> None:
    """Pools without bounds of their own, each of which wants everything."""
    total = int(vector["total"])
    pools = {str(number): pool.get("weight", 1) for number, pool in enumerate(vector["pools"])}
    got = one_slot_fill(total, pools, dict.fromkeys(pools, total))
    assert list(got.values()) == vector["expected"]


def demand_capped_share(vector: Vector) -> None:
    """Shares of what there is, by weight alone when every owner wants everything, and with what they do want."""
    capacity, queues, expected = int(vector["capacity"]), vector["queues"], vector["expected"]
    weights = {name: queue["weight"] for name, queue in queues.items()}
    demands = {name: min(int(queue["demand"]), capacity) for name, queue in queues.items()}
    for wanted, result in ((dict.fromkeys(queues, capacity), "fair_share"), (demands, "demand_capped")):
        got = one_slot_fill(capacity, weights, wanted)
        for name, part in expected[result].items():
            # Units are not divided.
            assert abs(got[name] - exact(part) * capacity) < 1, (result, name)


def decay(vector: Vector) -> None:
    for case in vector["cases"]:
        got = decayed_usage([(case["days"], case["usage"])], case["half_life"])
        assert got == pytest.approx(case["expected"], abs=vector["tolerance"])


def usage_factor(vector: Vector) -> None:
    for case in vector["cases"]:
        normalised = normalised_usage(dict(case["usage"]), dict(case["cap"]), case["days"], case["res_weights"])
        assert normalised == pytest.approx(case["n"], abs=vector["tolerance"])
        assert factor(normalised, case["weight"]) == pytest.approx(case["F"], abs=vector["tolerance"])


RUNNERS: dict[str, Callable[[Vector], None]] = {
    "progressive_fill": progressive_fill,
    "divisible": divisible,
    "contrast": divisible,
    "gang_fill": gang_fill,
    "share_value": share_value,
    "compare": compare,
    "session_sequence": session_sequence,
    "session_pick": session_pick,
    "equal_agents": equal_agents,
    "fifo_hol_pick": fifo_hol_pick,
    "sorter_steps": sorter_steps,
    "max_min": max_min,
    "demand_capped_share": demand_capped_share,
    "decay": decay,
    "factor": usage_factor,
}
