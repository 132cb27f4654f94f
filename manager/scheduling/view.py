"""The free amounts in the view of some sessions, and the placement of those sessions there."""

from __future__ import annotations

from bisect import bisect_right
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import numpy as np

from retinue.manager.scheduling.columns import UNPLACED, Agents, Integers, Owners, Queue
from retinue.manager.scheduling.custom import WaitingSessions
from retinue.manager.scheduling.equivalence import EquivalenceClass, Shapes, find_kinds
from retinue.manager.scheduling.free import Free
from retinue.manager.scheduling.lanes import Lanes
from retinue.manager.scheduling.placement import Placement, Placer
from retinue.manager.scheduling.scored import ScoredPicker, Scoring
from retinue.manager.scheduling.shares import total_capacity
from retinue.manager.scheduling.strategies import CONCENTRATED, Settings, slot_order

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class View:
    """Free amounts of agents, and the kinds of the sessions in `rows` of a queue. Agents are numbered as in `Free`."""

    def __init__(
        self,
        agents: Agents,
        queue: Queue,
        rows: Integers,
        settings: Settings,
        round_robin_cursor: str,
        *,
        scoring: Scoring | None = None,
        choices: Choices | None = None,
    ) -> None:
        """A rotation begins after the agent named `round_robin_cursor`. An agent strategy of others comes as `scoring`,
        or as `choices`.
        """
        self.agents, self.queue, self.settings = agents, queue, settings
        self.columns = slot_order(agents.slots, settings.slot_priority)
        self.lanes = Lanes(len(self.columns) + (1 if settings.max_kernels_per_agent else 0))
        self.shapes = Shapes(self.lanes)
        every_move = settings.agent_strategy == CONCENTRATED
        self.free = Free(agents, self.columns, self.lanes, settings.max_kernels_per_agent, every_move=every_move)
        self.ids = agents.ids if agents.in_order else [agents.ids[row] for row in self.free.rows.tolist()]
        self.numbers = {} if choices is None else {name: number for number, name in enumerate(self.ids)}
        self.placer = Placer(
            self.free,
            self.shapes,
            settings,
            len(self.columns),
            bisect_right(self.ids, round_robin_cursor),
            replicas=queue.replicas,
            scored=None if scoring is None else ScoredPicker(self.free, agents, self.columns, settings, scoring),
        )
        self.scoring, self.choices = scoring, choices
        self.rows = rows
        self.found, self.kind_of = find_kinds(
            queue, rows, self.columns, self.lanes, self.shapes, families=agents.families
        )
        self.free.watch(reduce(or_, (shape.unrequested for shape in self.shapes.all()), 0))
        self.kinds: dict[int, EquivalenceClass] = {
            row: self.found[kind] for row, kind in zip(rows.tolist(), self.kind_of.tolist(), strict=True)
        }

    @property
    def round_robin_cursor(self) -> str:
        """Returns the agent that a rotation chose last; empty when it has chosen none and stands at the beginning."""
        return self.ids[self.placer.position - 1] if self.placer.position else ""

    def place(self, row: int) -> Placement:
        """Places a session; UNPLACED when it finds no room."""
        kind, wishes = self.kinds[row], self.queue.wishes.get(row)
        if self.choices is not None:
            return self.choices.place(self, row)
        return self.placer.place(kind) if wishes is None else self.placer.place_wished(kind, wishes)

    def agents_of(self, row: int, placement: Placement) -> Integers:
        """Returns the rows of the agents of a placed session's kernels, by rank."""
        if isinstance(placement, int):
            placement = [placement] * len(self.kinds[row].kernels)
        return self.free.rows[np.array(placement, np.int64)]


class Choices:
    """Agents that an external strategy chose for sessions, and what was refused of them."""

    def __init__(self, placements: Mapping[str, Sequence[str]]) -> None:
        self._placements = placements
        # By row, why its session was not placed.
        self.refused: dict[int, str] = {}

    def place(self, view: View, row: int) -> Placement:
        """Places a session where it was chosen to be, if that can be."""
        names = self._placements.get(view.queue.ids[row])
        if names is None:
            self.refused[row] = "the strategy gives it no agents"
            return UNPLACED
        unknown = next((name for name in names if name not in view.numbers), None)
        if unknown is not None:
            self.refused[row] = f"the strategy gives it agent {unknown[:64]!r}, which is not here"
            return UNPLACED
        agents = [view.numbers[name] for name in names]
        wrong = view.placer.place_at(view.kinds[row], agents, view.queue.wishes.get(row))
        if wrong:
            self.refused[row] = f"the strategy's choice was refused: {wrong}"
            return UNPLACED
        self.refused.pop(row, None)
        return agents


def requests_of(queue: Queue, row: int) -> Integers:
    """Returns what the kernels of a session ask for, by rank."""
    return queue.requests[queue.offsets[row] : queue.offsets[row + 1]]


def waiting_sessions(view: View, rows: Integers, owners: Owners) -> WaitingSessions:
    """Returns sessions in rows of the queue, as a session strategy of others sees them."""
    queue = view.queue
    sizes = queue.offsets[rows + 1] - queue.offsets[rows]
    requests = np.array([requests_of(queue, row).sum(axis=0) for row in rows.tolist()], np.int64)
    return WaitingSessions(
        slots=view.agents.slots,
        ids=[queue.ids[row] for row in rows.tolist()],
        owners=queue.owners[rows],
        priorities=queue.priorities[rows],
        tries=queue.tries[rows],
        waited=np.zeros(len(rows), np.int64) if queue.waited is None else queue.waited[rows],
        requests=requests.reshape(len(rows), len(view.agents.slots)),
        kernels=sizes,
        owner_names=owners.names,
        owner_weights=owners.weights,
        owner_held=owners.held,
        capacity=np.array(total_capacity(view.agents.capacity), np.int64),
    )
