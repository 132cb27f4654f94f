"""Two scheduling strategies: the smallest session first, and the agent whose free room is
shaped most like the request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from retinue.manager.scheduling.custom import FittingAgents, WaitingSessions


class SmallestFirst:
    """Orders sessions by what they ask for of one slot, `size-slot`: `cpu` unless the group says otherwise."""

    options = ("size-slot",)

    def __init__(self, options: Mapping[str, str]) -> None:
        self._slot = options.get("size-slot", "cpu")
        if not self._slot:
            raise ValueError("size-slot must name a slot")

    def order(self, waiting: WaitingSessions) -> Sequence[int]:
        """Rows by amount, then by arrival."""
        if self._slot not in waiting.slots:
            return range(len(waiting.ids))
        rows: list[int] = np.argsort(waiting.requests[:, waiting.slots.index(self._slot)], kind="stable").tolist()
        return rows


class Aligned:
    """Scores agents by the dot product of request and free room, each as a part of what the agent has (Grandl et al.,
    "Multi-resource packing for cluster schedulers", SIGCOMM'14).
    """

    options = ()

    def __init__(self, options: Mapping[str, str]) -> None:
        """There is nothing to choose."""

    def score(self, request: NDArray[np.int64], agents: FittingAgents) -> NDArray[np.float64]:
        """Larger is better aligned."""
        whole = np.maximum(agents.capacity, 1)
        aligned: NDArray[np.float64] = ((request / whole) * (agents.free / whole)).sum(axis=1)
        return aligned
