"""The choice of an agent by a full scan: the reference that every faster way equals.

Concentrated takes the agent with the fewest unrequested capabilities (slots that the shape leaves alone and the agent
has some of left), then the least remaining of each slot in order of comparison; dispersed takes the most remaining. The
first id wins a tie. A slot that a request does not name counts as asked for with zero,
so work without accelerators keeps away from agents that have some.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from retinue.manager.scheduling.columns import UNPLACED, Integers, Mask

if TYPE_CHECKING:
    from retinue.manager.scheduling.equivalence import Shape
    from retinue.manager.scheduling.free import Free


def scan_ordered(free: Free, shape: Shape, mask: Mask, *, most: bool, compared: int) -> int:
    """Returns the agent of `mask` with the least, or with `most` the most, remaining that fits `shape`; UNPLACED when
    none does. The first `compared` lanes are compared.
    """
    agents = free.fitting(shape, mask)
    if not len(agents):
        return UNPLACED
    amounts = free.amounts()
    requested = {lane for lane, _ in shape.amounts}
    unutilised = np.zeros(len(agents), np.int64)
    for lane in range(compared):
        if lane not in requested:
            unutilised += amounts[lane, agents] > 0
    agents = agents[unutilised == unutilised.min()]
    for lane in range(compared):
        if len(agents) == 1:
            break
        left = amounts[lane, agents]
        agents = agents[left == (left.max() if most else left.min())]
    return int(agents[0])


def scan_rotation(free: Free, shape: Shape, mask: Mask, position: int) -> int:
    """Returns the first agent of `mask` from `position` on, around the circle, that fits `shape`;
    UNPLACED when none does.
    """
    agents: Integers = free.fitting(shape, mask)
    if not len(agents):
        return UNPLACED
    return int(agents[np.searchsorted(agents, position) % len(agents)])
