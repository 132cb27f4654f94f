"""What dominant resource fairness promises (Ghodsi et al., NSDI'11, section 3),
on one node with owners that never run out of work.

Tasks are indivisible, so promises hold up to the size of a task; each bound below is what progressive filling with
indivisible tasks guarantees, and none is looser than it need be.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from tests.property.manager.scheduling.full_node import WIDE, Demand, bounded, fill, part, whole_demands

if TYPE_CHECKING:
    from collections.abc import Sequence

capacities = st.tuples(st.integers(60, 200), st.integers(60, 200), st.integers(60, 200))
demand = st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)).filter(any)
demands = st.lists(demand, min_size=2, max_size=5)


def runnable(allocation: Sequence[int], task: Demand) -> int:
    """How many tasks an allocation runs."""
    return min(amount // need for amount, need in zip(allocation, task, strict=True) if need)


@bounded
@given(capacities, demands)
def test_pareto_efficiency(capacity: Demand, wanted: list[Demand]) -> None:
    tasks = fill(capacity, wanted)
    left = [
        total - sum(n * task[slot] for n, task in zip(tasks, wanted, strict=True))
        for slot, total in enumerate(capacity)
    ]
    assert min(left) >= 0
    assert all(any(need > free for need, free in zip(task, left, strict=True)) for task in wanted)


@bounded
@given(capacities, demands)
def test_sharing_incentive(capacity: Demand, wanted: list[Demand]) -> None:
    """When the first owner is blocked, one slot has less than a task free, so the shares sum to 1 less that; no two
    shares of owners with work differ by more than a task. So every owner has an equal part,
    less two of the largest tasks.
    """
    tasks = fill(capacity, wanted)
    largest = max(part(capacity, task) for task in wanted)
    for number, task in zip(tasks, wanted, strict=True):
        assert number * part(capacity, task) >= Fraction(1, len(wanted)) - 2 * largest


@bounded
@given(capacities, demands)
def test_envy_freeness(capacity: Demand, wanted: list[Demand]) -> None:
    """With another's allocation an owner could run less than one task and one task of the other more."""
    tasks = fill(capacity, wanted)
    for mine, own in zip(tasks, wanted, strict=True):
        for theirs, other in zip(tasks, wanted, strict=True):
            allocation = [theirs * amount for amount in other]
            assert runnable(allocation, own) < mine + 1 + part(capacity, other) / part(capacity, own)


@bounded
@given(capacities, demands, st.lists(st.integers(1, 4), min_size=5, max_size=5))
def test_weighted_shares_stay_within_a_task(capacity: Demand, wanted: list[Demand], weights: list[int]) -> None:
    """Owners that want the same thing end with weighted shares at most one weighted task apart."""
    same = [wanted[0]] * len(wanted)
    tasks = fill(capacity, same, weights)
    keys = [Fraction(n, weight) for n, weight in zip(tasks, weights, strict=False)]
    lightest = min(weights[: len(same)])
    assert max(keys) - min(keys) <= Fraction(1, lightest)


@bounded
@given(capacities, demands, st.integers(0, 4))
def test_single_resource_and_bottleneck_fairness(capacity: Demand, wanted: list[Demand], extra: int) -> None:
    """Owners whose tasks all want most of the same slot, the same amount, run equally many tasks, give or take one."""
    total = min(capacity)
    tight = (total, 1000, 1000)
    similar = [(5, min(task[1], extra), min(task[2], extra)) for task in wanted]
    tasks = fill(tight, similar)
    assert max(tasks) - min(tasks) <= 1
    assert sum(tasks) == total // 5


@bounded
@given(whole_demands, st.integers(0, 4), st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)))
def test_strategy_proofness(wanted: list[Demand], liar: int, lie: Demand) -> None:
    """Asking for more than one needs never gives more tasks, up to the tasks that indivisibility moves:
    one for each owner.
    """
    liar %= len(wanted)
    inflated = [
        tuple(a + b for a, b in zip(task, lie, strict=True)) if o == liar else task for o, task in enumerate(wanted)
    ]
    honest, lying = fill(WIDE, wanted), fill(WIDE, inflated)
    moved = sum(part(WIDE, task) for task in inflated) / part(WIDE, wanted[liar])
    assert lying[liar] <= honest[liar] + 1 + moved


@bounded
@given(whole_demands, st.integers(0, 4))
def test_population_monotonicity(wanted: list[Demand], leaver: int) -> None:
    """When an owner leaves, no other owner gets less, up to the tasks that indivisibility moves."""
    leaver %= len(wanted)
    before = fill(WIDE, wanted)
    rest = [task for owner, task in enumerate(wanted) if owner != leaver]
    after = fill(WIDE, rest)
    kept = [number for owner, number in enumerate(before) if owner != leaver]
    for task, had, has in zip(rest, kept, after, strict=True):
        moved = sum(part(WIDE, other) for other in wanted) / part(WIDE, task)
        assert has >= had - 1 - moved
