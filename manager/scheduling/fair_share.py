"""Fair share over time: owners that used much lately weigh less, and what they used fades.

Usage (amount times seconds) halves with every half-life. An owner's factor is F = 2**(-n / weight), where n is its
decayed usage as part of what the group could have given in the look-back time, averaged over slots by their weights
(the classic fair-share factor of Slurm's multifactor plugin). Strategy `fair-share` is progressive filling with each
owner's weight multiplied by its factor.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DAY_SECONDS = 86400
# Factors are used in steps of 2**-20, so that the arithmetic of shares stays exact.
_RESOLUTION = 1 << 20


def normalised_usage(
    usage: Mapping[str, float], capacity: Mapping[str, float], look_back_days: float, slot_weights: Mapping[str, float]
) -> float:
    """Usage in amount-seconds as part of what `capacity` gives in the look-back time, averaged by `slot_weights` over
    slots that have both a weight and capacity; 0 when there are none.
    """
    counted = {slot: weight for slot, weight in slot_weights.items() if weight > 0 and capacity.get(slot, 0) > 0}
    if not counted:
        return 0.0
    parts = {slot: usage.get(slot, 0.0) / (capacity[slot] * look_back_days * DAY_SECONDS) for slot in counted}
    return sum(parts[slot] * weight for slot, weight in counted.items()) / sum(counted.values())


def factor(normalised: float, weight: float = 1.0) -> float:
    """2**(-normalised / weight): 1 for no usage, one half for all of the owner's part; from 0 to 1."""
    return math.exp2(-max(0.0, normalised / weight))


def effective_weights(weights: Sequence[int], past_usage: Sequence[float]) -> list[int]:
    """Owners' weights multiplied by their factors, as integers of one scale; never 0."""
    return [
        max(1, round(weight * _RESOLUTION * factor(normalised, weight)))
        for weight, normalised in zip(weights, past_usage, strict=True)
    ]
