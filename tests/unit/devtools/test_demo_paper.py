"""The demonstration's own account of Dominant Resource Fairness, against the numbers printed in the paper."""

from __future__ import annotations

from fractions import Fraction

from demo.paper import fill


def _exact(**amounts: int) -> dict[str, Fraction]:
    return {name: Fraction(amount) for name, amount in amounts.items()}


CAPACITY = _exact(cpu=9, mem=18)


def test_the_papers_example() -> None:
    """Section 4.1, table 1: A <1 CPU, 4 GB> gets three tasks, B <3 CPU, 1 GB> two; both shares are 2/3."""
    found = fill(CAPACITY, {"A": _exact(cpu=1, mem=4), "B": _exact(cpu=3, mem=1)}, tasks=9, preferred=("B",))
    assert found.order == ("B", "A", "A", "B", "A")
    assert found.shares == {"A": Fraction(2, 3), "B": Fraction(2, 3)}
    assert found.tasks == {"A": 3, "B": 2}


def test_only_an_owner_that_ties_can_be_preferred() -> None:
    demands = {"A": _exact(cpu=1, mem=4), "B": _exact(cpu=3, mem=1)}
    wished = fill(CAPACITY, demands, tasks=9, preferred=("A", "A", "A", "A", "A"))
    assert wished.order == ("A", "B", "A", "B", "A")
    assert wished.ties[0] == {"A", "B"}
    assert wished.ties[1] == {"B"}


def test_an_owner_that_does_not_fit_is_left_out_and_the_others_continue() -> None:
    demands = {"big": _exact(cpu=8, mem=1), "small": _exact(cpu=1, mem=1)}
    found = fill(CAPACITY, demands, tasks=3)
    assert found.order == ("big", "small")
    more = fill(_exact(cpu=11, mem=18), demands, tasks=3)
    assert more.order == ("big", "small", "small", "small")
    assert more.shares == {"big": Fraction(8, 11), "small": Fraction(3, 11)}
