"""The promises of dominant resource fairness with tasks that can be divided: exact, in rationals,
and the pass comes as near as tasks are small.

When every owner wants some of everything, all dominant shares are equal and the first slot to run out stops them all
(Ghodsi et al., NSDI'11, section 4.2), which is a closed form. The pass, on a node so large that a task is a thousandth
of it, ends within two of the largest tasks of each such share; the promises themselves then hold with no slack at all.
"""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.manager.scheduling.full_node import WIDE, Demand, bounded, fill, part, whole_demands

lies = st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))


def equal_share(capacity: Demand, wanted: list[Demand]) -> Fraction:
    """The dominant share that every owner ends with."""
    return min(
        1 / sum((Fraction(task[slot], total) / part(capacity, task) for task in wanted), Fraction(0))
        for slot, total in enumerate(capacity)
    )


def tasks_of(capacity: Demand, wanted: list[Demand]) -> list[Fraction]:
    """Tasks of each owner."""
    share = equal_share(capacity, wanted)
    return [share / part(capacity, task) for task in wanted]


@settings(bounded, max_examples=10)
@given(whole_demands)
def test_the_pass_tends_to_the_divisible_solution(wanted: list[Demand]) -> None:
    capacity = (3000, 3000, 3000)
    share, largest = equal_share(capacity, wanted), max(part(capacity, task) for task in wanted)
    for number, task in zip(fill(capacity, wanted), wanted, strict=True):
        assert number * part(capacity, task) >= share - 2 * largest


@bounded
@given(whole_demands, st.integers(0, 4), lies)
def test_promises_hold_exactly(wanted: list[Demand], one: int, lie: Demand) -> None:
    one %= len(wanted)
    share, tasks = equal_share(WIDE, wanted), tasks_of(WIDE, wanted)
    # Sharing incentive.
    assert share >= Fraction(1, len(wanted))
    # Envy-freeness.
    for mine, own in zip(tasks, wanted, strict=True):
        for theirs, other in zip(tasks, wanted, strict=True):
            assert min(theirs * has / need for has, need in zip(other, own, strict=True)) <= mine
    # Pareto efficiency: some slot that every owner wants is used up.
    used = [sum(n * task[slot] for n, task in zip(tasks, wanted, strict=True)) for slot in range(len(WIDE))]
    assert max(Fraction(amount, total) for amount, total in zip(used, WIDE, strict=True)) == 1
    # Strategy-proofness: what a lie gets, counted in tasks that are really needed.
    claimed = [
        tuple(a + b for a, b in zip(task, lie, strict=True)) if owner == one else task
        for owner, task in enumerate(wanted)
    ]
    got = tasks_of(WIDE, claimed)[one]
    real = min(got * has / need for has, need in zip(claimed[one], wanted[one], strict=True))
    assert real <= tasks[one]
    # Population monotonicity.
    rest = [task for owner, task in enumerate(wanted) if owner != one]
    if rest:
        kept = [number for owner, number in enumerate(tasks) if owner != one]
        assert all(after >= before for before, after in zip(kept, tasks_of(WIDE, rest), strict=True))
