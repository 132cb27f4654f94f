"""What is free as some sessions see it, and how they are placed there."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from manager.scheduling.columns import Agents, Integers, Queue
from manager.scheduling.free import Free
from manager.scheduling.kinds import Kind, Shapes, find_kinds
from manager.scheduling.lanes import Lanes
from manager.scheduling.placement import Placement, Placer
from manager.scheduling.strategies import CONCENTRATED, Settings, slot_order


class View:
    """Free amounts of agents, and the kinds of the sessions in `rows` of a queue. Agents are numbered as in `Free`."""

    def __init__(self, agents: Agents, queue: Queue, rows: Integers, settings: Settings, rotation: str) -> None:
        """A rotation begins after the agent named `rotation`."""
        self.agents, self.queue, self.settings = agents, queue, settings
        self.columns = slot_order(agents.slots, settings.slot_priority)
        self.lanes = Lanes(len(self.columns) + (1 if settings.max_kernels_per_agent else 0))
        self.shapes = Shapes(self.lanes)
        every_move = settings.agent_strategy == CONCENTRATED
        self.free = Free(agents, self.columns, self.lanes, settings.max_kernels_per_agent, every_move=every_move)
        self.ids = [agents.ids[row] for row in self.free.rows.tolist()]
        self.placer = Placer(
            self.free,
            self.shapes,
            settings,
            len(self.columns),
            bisect_right(self.ids, rotation),
            replicas=queue.replicas,
        )
        self.rows = rows
        self.found, self.kind_of = find_kinds(queue, rows, self.columns, self.lanes, self.shapes)
        self.kinds: dict[int, Kind] = {
            row: self.found[kind] for row, kind in zip(rows.tolist(), self.kind_of.tolist(), strict=True)
        }

    @property
    def rotation(self) -> str:
        """The agent that a rotation chose last; empty when it has chosen none and stands at the beginning."""
        return self.ids[self.placer.position - 1] if self.placer.position else ""

    def place(self, row: int) -> Placement:
        """Places a session; UNPLACED when it finds no room."""
        kind, wishes = self.kinds[row], self.queue.wishes.get(row)
        return self.placer.place(kind) if wishes is None else self.placer.place_wished(kind, wishes)

    def agents_of(self, row: int, placement: Placement) -> Integers:
        """The rows of the agents of a placed session's kernels, by rank."""
        if isinstance(placement, int):
            placement = [placement] * len(self.kinds[row].kernels)
        return self.free.rows[np.array(placement, np.int64)]


def requests_of(queue: Queue, row: int) -> Integers:
    """What the kernels of a session ask for, by rank."""
    return queue.requests[queue.offsets[row] : queue.offsets[row + 1]]
