"""Shares compare as rational numbers do."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import numpy as np

from retinue.manager.scheduling.columns import Agents
from retinue.manager.scheduling.fair_share import effective_weights
from retinue.manager.scheduling.shares import ShareKeys, shared_capacity, total_capacity
from retinue.manager.store.placement.shares import dominant
from tests.vectors.share_vectors import dominant_share


def test_keys_order_and_equate_as_rationals() -> None:
    choice = random.Random(7)  # the same numbers every time
    capacity = [99_999_999_977, 0, 2**53 - 111, 36]
    owners = [
        (
            [choice.choice([0, 3, 2**40, choice.randint(0, 2**50)]) for _ in capacity],
            choice.choice([1, 2, 3, 999_983, 1_000_000]),
        )
        for _ in range(60)
    ]
    owners += [([amount * weight for amount in [3, 0, 5, 1]], weight) for weight in (1, 2, 3, 999_983)]
    keys = ShareKeys(capacity, [weight for _, weight in owners])
    for (held, weight), (other, other_weight) in itertools.product(owners, repeat=2):
        mine, theirs = dominant_share(held, capacity, weight), dominant_share(other, capacity, other_weight)
        key, other_key = keys.key(keys.unweighted(held), weight), keys.key(keys.unweighted(other), other_weight)
        assert (mine < theirs, mine == theirs) == (key < other_key, key == other_key)


def test_the_dominant_slot_counts() -> None:
    assert dominant_share([3, 4], [9, 18]) == Fraction(1, 3)
    assert dominant_share([3, 9], [9, 18], 2) == Fraction(1, 4)
    assert dominant_share([5, 1], [0, 10]) == Fraction(1, 10)
    assert dominant_share([5], [0]) == 0
    assert ShareKeys([0, 0], [1]).unweighted([5, 5]) == 0


def test_disk_counts_in_no_share() -> None:
    """Neither where the next place is given, nor where shares are kept."""
    agents = Agents(
        slots=("cpu", "disk", "mem"),
        ids=["a", "b"],
        capacity=np.array([[4000, 10, 100], [4000, 10, 100]], np.int64),
        used=np.zeros((2, 3), np.int64),
        schedulable=np.ones(2, np.bool_),
        architectures=["x", "x"],
        kernels=np.zeros(2, np.int64),
    )
    assert shared_capacity(agents, [2, 1, 0]) == [200, 0, 8000]
    capacity = {"cpu": 8000, "mem": 200, "disk": 20}
    assert dominant({"cpu": 1000, "mem": 10, "disk": 20}, capacity) == ("cpu", 1000, 8000)
    assert dominant({"disk": 20}, capacity) == ("", 0, 0)


def test_totals_do_not_overflow() -> None:
    capacity = np.full((4000, 2), 2**53, np.int64)
    assert total_capacity(capacity) == [4000 * 2**53] * 2
    assert total_capacity(np.zeros((0, 2), np.int64)) == [0, 0]


def test_past_usage_lowers_a_weight_but_never_to_nothing() -> None:
    assert effective_weights([1, 1, 2], [0.0, 1.0, 2.0]) == [1 << 20, 1 << 19, 1 << 20]
    assert effective_weights([1], [1e9]) == [1]
