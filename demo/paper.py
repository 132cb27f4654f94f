"""Computes what Dominant Resource Fairness prescribes, in exact fractions; uses nothing of the manager.

Progressive filling (Ghodsi, Zaharia, Hindman, Konwinski, Shenker, Stoica: Dominant Resource Fairness, NSDI'11,
Algorithm 1): the next task is that of the owner with the lowest dominant share, the largest part that it holds of any
resource. The algorithm ends when that task does not fit; here the owner is left out from then on,
and the others continue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

Amounts = Mapping[str, Fraction]


@dataclass(frozen=True, slots=True)
class Filling:
    """The owners whose tasks are served, in order; the owners tied for each turn; shares and tasks held at the end."""

    order: tuple[str, ...]
    ties: tuple[frozenset[str], ...]
    shares: Mapping[str, Fraction]
    tasks: Mapping[str, int]


def fill(capacity: Amounts, demands: Mapping[str, Amounts], tasks: int, preferred: Sequence[str] = ()) -> Filling:
    """Fills the capacity with up to `tasks` tasks of each owner.

    Where owners tie, the paper leaves the choice open: `preferred` has the owner to take at each place if it is among
    them; else the first by name.
    """
    free = dict(capacity)
    held = {owner: dict.fromkeys(capacity, Fraction(0)) for owner in demands}
    count = dict.fromkeys(demands, 0)
    candidates = set(demands)
    order: list[str] = []
    ties: list[frozenset[str]] = []
    while candidates:
        shares = {owner: share(held[owner], capacity) for owner in candidates}
        lowest = {owner for owner in candidates if shares[owner] == min(shares.values())}
        lowest_fitting = {owner for owner in lowest if _fits(demands[owner], free)}
        candidates -= lowest - lowest_fitting
        if not lowest_fitting:
            continue
        wish = preferred[len(order)] if len(order) < len(preferred) else ""
        owner = wish if wish in lowest_fitting else min(lowest_fitting)
        for resource, amount in demands[owner].items():
            free[resource] -= amount
            held[owner][resource] += amount
        count[owner] += 1
        order.append(owner)
        ties.append(frozenset(lowest_fitting))
        if count[owner] == tasks:
            candidates.discard(owner)
    shares = {owner: share(held[owner], capacity) for owner in demands}
    return Filling(tuple(order), tuple(ties), shares, count)


def share(held: Amounts, capacity: Amounts) -> Fraction:
    """Returns the dominant share."""
    return max(held[resource] / total for resource, total in capacity.items())


def _fits(demand: Amounts, free: Amounts) -> bool:
    return all(amount <= free[resource] for resource, amount in demand.items())
