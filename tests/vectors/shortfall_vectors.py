"""Vectors about what is short, which filter fails and what a refusal leaves as it was (backendai.json)."""

from __future__ import annotations

from fractions import Fraction

from retinue.manager.domain.scheduling.policy import Tier
from retinue.manager.scheduling.columns import UNPLACED, Explanation, Verdict
from retinue.manager.scheduling.equivalence import KERNEL
from retinue.manager.scheduling.reasons import ARCHITECTURE_MISSING, KERNELS
from tests.vectors.given import Vector, listed, policy_of, scene_with
from tests.vectors.records import names_of
from tests.vectors.scene import Amounts, Outcome, exact

# What an agent has to have, by the names that vectors have for it.
FILTERS = {
    "architecture": "architecture",
    "designated": "agents",
    "designated agents": "agents",
    "schedulable": "agents",
    "status": "agents",
    "resource": "slots",
    "resources": "slots",
    "container-limit": "kernels",
}


SHORTFALLS = {"missing", "missing_containers"}


def shortfall_report(vector: Vector) -> None:
    given, expected = vector["input"], vector["expected"]
    kernels = given["kernels"] if "kernels" in given else [given["request"]]
    outcome = assert_shortfall(given, kernels, expected)
    assert not outcome.order
    assert_unchanged(outcome, expected)


def assert_shortfall(given: Vector, kernels: list[Amounts], expected: Vector) -> Outcome:
    """What is short is what it is expected to be, against what is left: agents of any size,
    so that none is too small when it is empty.
    """
    more = {
        slot: sum((exact(kernel.get(slot, 0)) for kernel in kernels), Fraction(0))
        for kernel in kernels
        for slot in kernel
    }
    scene = scene_with([larger(agent, more) for agent in given["agents"]])
    scene.add_session(
        "s",
        "owner",
        kernels,
        single_node=given.get("cluster_mode") == "single-node",
        architecture=given.get("architecture", ""),
        designated=given.get("designated", ()),
        strict=given.get("designation_policy") == "strict",
    )
    outcome = scene.run(policy_of(given))
    explanation = outcome.decisions.explain(outcome.rows["s"])
    assert explanation is not None
    if "missing" in expected:
        # Of the first kernel that finds no place, or of each of them.
        missing = [
            {lack.slot: Fraction(lack.short, outcome.scale) for lack in shortfall.lacks if lack.slot != KERNELS}
            for shortfall in explanation.shortfalls
        ]
        wanted = [{slot: exact(amount) for slot, amount in of.items()} for of in listed(expected["missing"])]
        assert missing[: len(wanted)] == wanted
    lacks = [lack for shortfall in explanation.shortfalls for lack in shortfall.lacks]
    if "missing_containers" in expected:
        short = sum(lack.short for lack in lacks if lack.slot == KERNELS)
        assert short // KERNEL == int(expected["missing_containers"] or 0)
    if "failed_kernel_indices" in expected:
        failed = [shortfall.kernel for shortfall in explanation.shortfalls]
        assert failed == expected["failed_kernel_indices"]
        assert set(range(len(kernels))) - set(failed) == set(expected["placeable_kernel_indices"])
    return outcome


def larger(agent: Vector, more: Amounts) -> Vector:
    """An agent with so much more of slots, all of it in use."""
    part = {
        key: {
            slot: exact((agent.get(key) or {}).get(slot, 0)) + exact(more.get(slot, 0))
            for slot in {**(agent.get(key) or {}), **more}
        }
        for key in ("capacity", "used")
    }
    return {**agent, **part}


def assert_refused(outcome: Outcome, given: Vector, kernels: list[Amounts], expected: Vector) -> None:
    """Nothing is placed or held, and the verdict says whether free amounts could matter,
    which filter failed and what is short.
    """
    decisions = outcome.decisions
    assert not outcome.order
    assert not decisions.held.any()
    assert_unchanged(outcome, expected)
    explanation = decisions.explain(outcome.rows["s"])
    assert explanation is not None
    if "error" in expected:
        compatible = {"no-fit": True, "no-compatible-agent": False}[expected["error"]]
        assert (decisions.verdicts[outcome.rows["s"]] == Verdict.NO_ROOM) == compatible
    if "failed_filter" in expected:
        # Named with what it is in brackets, as in `designated agents (STRICT)`.
        assert failed_filter(explanation) == FILTERS[expected["failed_filter"].partition(" (")[0].lower()]
    if SHORTFALLS & set(names_of(expected)):
        assert_shortfall(given, kernels, expected)


def failed_filter(explanation: Explanation) -> str:
    """Which of the things that an agent has to have, one after the other, no agent has."""
    if explanation.code == ARCHITECTURE_MISSING:
        return "architecture"
    if explanation.tier == Tier.SYSTEM:
        return "agents"
    # The slot that is short comes before the number of kernels.
    lacking = {lack.slot for shortfall in explanation.shortfalls for lack in shortfall.lacks}
    return "kernels" if lacking == {KERNELS} else "slots"


def assert_unchanged(outcome: Outcome, expected: Vector) -> None:
    """Checks whether any owner holds more than before, if the vector says so."""
    if "accounting_unchanged" in expected:
        unchanged = (outcome.decisions.kernel_agents == UNPLACED).all() and not outcome.decisions.held.any()
        assert unchanged == expected["accounting_unchanged"]
