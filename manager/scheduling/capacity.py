"""Computes how much of what others hold must come free before one session fits, for reservations and preemption.

Others release what they hold step by step, in an order that is given. The first step after which the session finds its
place under the group's agent strategy is searched by halves with a condition that every place needs and that, once
true, stays true (each kernel's shape has enough room, counted on all agents together, or all of them on one);
from there on, each step is tried in full.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from retinue.manager.scheduling.columns import UNPLACED, Agents, Integers, Queue, Running
from retinue.manager.scheduling.placement import Placer
from retinue.manager.scheduling.scored import Scoring
from retinue.manager.scheduling.strategies import Settings
from retinue.manager.scheduling.view import View

if TYPE_CHECKING:
    from collections.abc import Sequence

# A gang of unequal kernels may be unlucky where it might fit; so many steps are tried before it is given up.
MAX_UNLUCKY = 32


@dataclass(frozen=True, slots=True)
class Room:
    """The placement where a session fits, and after which step (0 is at once)."""

    step: int
    # Row of the agent of each kernel, by rank.
    agents: Integers


@dataclass(frozen=True, slots=True)
class CapacityView:
    """The amounts in use during a pass, and how the next session would be placed."""

    agents: Agents
    queue: Queue
    settings: Settings
    round_robin_cursor: str
    running: Running
    # Counts the kernels of endpoints.
    placer: Placer
    scoring: Scoring | None = None

    def without(self, sessions: Sequence[int]) -> Agents:
        """Returns the agents when running sessions, by row, have released what they hold."""
        if not len(sessions):
            return self.agents
        used, kernels = self.agents.used.copy(), self.agents.kernels.copy()
        for session in sessions:
            holdings = slice(self.running.offsets[session], self.running.offsets[session + 1])
            np.subtract.at(used, self.running.agents[holdings], self.running.amounts[holdings])
            np.subtract.at(kernels, self.running.agents[holdings], 1)
        return replace(self.agents, used=used, kernels=kernels)

    def place(self, row: int, sessions: Sequence[int], *, only: Integers | None = None) -> Integers | None:
        """Returns the agents of a waiting session when `sessions` have released what they hold,
        on no others than the agents `only`.
        """
        agents = self.without(sessions)
        if only is not None:
            mask = np.zeros(len(agents.ids), np.bool_)
            mask[only] = True
            agents = replace(agents, schedulable=agents.schedulable & mask)
        view = self._view(agents, row)
        placement = view.place(row)
        return None if placement == UNPLACED else view.agents_of(row, placement)

    def first(self, row: int, steps: Sequence[Sequence[int]]) -> Room | None:
        """After how many of the steps, each of running sessions that end, a waiting session fits, and where."""
        if not self._could(row, [session for step in steps for session in step]):
            return None
        low, high = 0, len(steps)
        while low < high:
            middle = (low + high) // 2
            if self._could(row, [session for step in steps[:middle] for session in step]):
                high = middle
            else:
                low = middle + 1
        for number in range(low, min(len(steps), low + MAX_UNLUCKY) + 1):
            agents = self.place(row, [session for step in steps[:number] for session in step])
            if agents is not None:
                return Room(number, agents)
        return None

    def _could(self, row: int, sessions: Sequence[int]) -> bool:
        view = self._view(self.without(sessions), row)
        kind, wishes = view.kinds[row], self.queue.wishes.get(row)
        among = np.ones(len(view.free), np.bool_)
        if wishes is not None and wishes.strict:
            among = np.isin(view.free.rows, np.array(wishes.designated, np.int64))
        if len(view.free.fitting(kind.whole, view.free.takers(kind.whole.needs) & among)):
            return True
        return not kind.single_node and any(
            all(
                view.free.room(shape, view.free.takers(shape.needs) & among) >= number
                for shape, number in spread.groups
            )
            for spread in kind.families or (kind,)
        )

    def _view(self, agents: Agents, row: int) -> View:
        view = View(
            agents, self.queue, np.array([row], np.int64), self.settings, self.round_robin_cursor, scoring=self.scoring
        )
        view.placer.copy_replicas(self.placer)
        return view
