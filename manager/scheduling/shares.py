"""Dominant shares, exactly.

Dominant Resource Fairness (Ghodsi, Zaharia, Hindman, Konwinski, Shenker, Stoica, NSDI'11): an owner's share is the
largest part that it holds of any slot, s = max_r held_r / capacity_r, divided by its weight (section 4.3). Progressive
filling gives the next place to the owner with the lowest share. Slots without capacity do not count, nor do those of
NOT_IN_SHARES.

Shares are compared as integers. With L the least common multiple of the capacities and X = max_r held_r * (L /
capacity_r), the share is X / (L * weight). Two different values of X / weight differ by at least 1 / (w * w') >= 2**-k
for k twice the bits of the largest weight, so floor(X * 2**k / weight) orders shares, and equates them,
as the rational numbers do. No share is ever rounded.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from retinue.manager.domain.scheduling.policy import NOT_IN_SHARES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retinue.manager.scheduling.columns import Agents, Integers


def total_capacity(capacity: Integers) -> list[int]:
    """Returns what the agents (N x S) have together, by slot, in integers that do not overflow."""
    high = (capacity >> 32).sum(axis=0, dtype=np.int64)
    low = (capacity & 0xFFFFFFFF).sum(axis=0, dtype=np.int64)
    return [(int(upper) << 32) + int(lower) for upper, lower in zip(high, low, strict=True)]


def shared_capacity(agents: Agents, columns: Sequence[int]) -> list[int]:
    """Returns what the agents have together of the slots in `columns`; 0 of those that do not count in shares."""
    total = total_capacity(agents.capacity)
    return [0 if agents.slots[column] in NOT_IN_SHARES else total[column] for column in columns]


class ShareKeys:
    """Turns amounts held into integers that compare as weighted dominant shares do."""

    def __init__(self, capacity: Sequence[int], weights: Sequence[int]) -> None:
        """`capacity` is what exists of each slot; `weights` are those of all owners, each 1 or more."""
        multiple = math.lcm(*(total for total in capacity if total > 0))
        # By slot; 0 for a slot that does not count.
        self.factors = [multiple // total if total > 0 else 0 for total in capacity]
        self.shift = 2 * max(weights, default=1).bit_length() if any(weight != 1 for weight in weights) else 0

    def unweighted(self, held: Sequence[int]) -> int:
        """X of the module's text."""
        return max((amount * factor for amount, factor in zip(held, self.factors, strict=True)), default=0)

    def key(self, unweighted: int, weight: int) -> int:
        """Returns the integer to compare by."""
        return (unweighted << self.shift) // weight
