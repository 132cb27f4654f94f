"""The free amounts on each agent during a pass, once as columns for vector steps and once as
packed integers for single picks.

The packed form is authoritative where it exists; columns of agents that changed are written back before the next vector
step. Packed integers are made only for agents that are evaluated one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from retinue.manager.scheduling.equivalence import ANY_AGENT, ANY_ARCHITECTURE, KERNEL, Needs, Shape
from retinue.manager.scheduling.lanes import LANE_BITS, LIMIT, Lanes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retinue.manager.scheduling.columns import Agents, Integers, Mask

_UNKNOWN = -1
# More kernels than any gang has; still far from overflow when summed over agents.
_MANY = 1 << 32


class Free:
    """Free amounts by agent; agents are numbered in order of their ids."""

    def __init__(
        self, agents: Agents, columns: Sequence[int], lanes: Lanes, max_kernels: int, *, every_move: bool
    ) -> None:
        """Lanes hold the slots in `columns`; when `max_kernels` is not 0,
        one more lane holds how many kernels an agent still takes.

        `every_move` says that any taking may better an agent's place in the order of agents;
        else only using up a slot that is watched may.
        """
        self.lanes = lanes
        self._every_move = every_move
        if agents.in_order:
            self.rows = np.arange(len(agents.ids), dtype=np.int64)
        else:
            self.rows = np.array(sorted(range(len(agents.ids)), key=agents.ids.__getitem__), np.int64)
        free = np.clip(agents.capacity - agents.used, 0, LIMIT - 1)[self.rows]
        # One row a lane: vector steps run along the agents.
        self._amounts = np.zeros((lanes.count, len(self.rows)), np.int64)
        for lane, column in enumerate(columns):
            self._amounts[lane] = free[:, column]
        if max_kernels:
            self._amounts[-1] = np.maximum(0, max_kernels - agents.kernels[self.rows]) * KERNEL
        self.schedulable = agents.schedulable[self.rows]
        self._architectures = np.asarray(agents.architectures, dtype=object)[self.rows]
        self._offers = np.zeros(len(self.rows), np.int64) if agents.offers is None else agents.offers[self.rows]
        self._masks: dict[Needs, Mask] = {ANY_AGENT: self.schedulable}
        self.packed: list[int] = [_UNKNOWN] * len(self.rows)
        self._stale: set[int] = set()
        # Agents whose place in an order may have got better, each with the number of the move; the newest is last.
        self.moved: dict[int, int] = {}
        self.moves = 0
        self._last_moved = _UNKNOWN
        # The lanes (their guards) of which some agents that take new kernels had nothing left
        # at some time of the pass, and others had.
        self.mixed = lanes.guards_of((self._amounts[:, self.schedulable] == 0).any(axis=1).tolist())
        self.watch(lanes.guards)

    def __len__(self) -> int:
        """Number of agents."""
        return len(self.rows)

    def takers(self, needs: Needs) -> Mask:
        """Returns the agents that meet needs and take new kernels."""
        mask = self._masks.get(needs)
        if mask is None:
            mask = self._masks[needs] = self.schedulable & self.meeting(needs)
        return mask

    def meeting(self, needs: Needs) -> Mask:
        """Returns the agents that meet needs, whether they take new kernels or not."""
        mask: Mask = self._offers & needs.features == needs.features
        if needs.architecture != ANY_ARCHITECTURE:
            mask = mask & (self._architectures == needs.architecture).astype(np.bool_)
        return mask

    def amounts(self) -> Integers:
        """Returns the free amounts, lanes x agents. Valid until the next change."""
        if self._stale:
            stale = list(self._stale)
            self._amounts[:, stale] = self.lanes.unpack_rows([self.packed[agent] for agent in stale]).T
            self._stale.clear()
        return self._amounts

    def pack_all(self) -> None:
        """Makes the packed form of every agent."""
        packed = self.lanes.pack_rows(self.amounts().T)
        self.packed = [new if old == _UNKNOWN else old for old, new in zip(self.packed, packed, strict=True)]

    def packed_of(self, agent: int) -> int:
        """Returns what is free on an agent, packed."""
        packed = self.packed[agent]
        return self.lanes.pack(self.amounts()[:, agent].tolist()) if packed == _UNKNOWN else packed

    def reserve(self, agent: int, request: int) -> int:
        """Takes a packed request that fits; returns what was free before, for `restore`."""
        before = self.packed[agent]
        if before == _UNKNOWN:
            before = self.packed_of(agent)
        self.packed[agent] = after = before - request
        self._stale.add(agent)
        emptied = request & self._watched and self._emptied(before, after)
        if emptied or self._every_move:
            self._log(agent)
        return before

    def lower(self, agent: int, before: int, after: int) -> None:
        """Puts what is free on an agent down, in no lane up, from what `packed_of` says."""
        self.packed[agent] = after
        self._stale.add(agent)
        emptied = self._emptied(before, after)
        if emptied or self._every_move:
            self._log(agent)

    def watch(self, slots: int) -> None:
        """Says of which lanes (their guards) it matters to the order of agents that they are used up:
        those that some shape leaves alone.
        """
        self._guarded = slots
        # All bits of those lanes.
        self._watched = (slots << 1) - (slots >> LANE_BITS - 1)

    def _emptied(self, before: int, after: int) -> int:
        """Returns the watched lanes (their guards) that are used up now and were not before."""
        ones = self.lanes.ones
        emptied = (before + ones) & ~(after + ones) & self._guarded
        if emptied:
            self.mixed |= emptied
        return emptied

    def restore(self, agent: int, before: int) -> None:
        """Undoes a `reserve`."""
        self.packed[agent] = before
        self._stale.add(agent)
        self._log(agent)

    def _log(self, agent: int) -> None:
        self.moves += 1
        # An agent that moves again and again stays where it is: at the end.
        if agent != self._last_moved:
            self.moved.pop(agent, None)
            self._last_moved = agent
        self.moved[agent] = self.moves

    def fitting(self, shape: Shape, mask: Mask) -> Integers:
        """Returns the agents of `mask` that fit a shape, in order of their ids."""
        amounts = self.amounts()
        fits = mask
        for lane, amount in shape.amounts:
            fits = fits & (amounts[lane] >= amount)
        return np.flatnonzero(fits)

    def room(self, shape: Shape, mask: Mask) -> int:
        """Returns how many of a shape the agents of `mask` hold together now."""
        return count_room(self.amounts(), shape, mask)


def count_room(amounts: Integers, shape: Shape, mask: Mask) -> int:
    """Returns how many of a shape the agents of `mask` hold together, with `amounts` (lanes x agents) for them."""
    agents = np.flatnonzero(mask)
    counts = np.full(len(agents), _MANY, np.int64)
    for lane, amount in shape.amounts:
        np.minimum(counts, amounts[lane, agents] // amount, out=counts)
    return int(counts.sum())
