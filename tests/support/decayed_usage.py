"""What past usage counts for, by its definition: `manager/store/placement/usage.py` has to come to the same."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def decayed_usage(buckets: Iterable[tuple[float, float]], half_life: float) -> float:
    """Returns the sum of (age, usage) pairs, each halved once per `half_life`; ages in the unit of `half_life`."""
    return sum(usage * math.exp2(-age / half_life) for age, usage in buckets)
