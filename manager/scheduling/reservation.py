"""Reservations for aged sessions: EASY backfill.

The first aged session, by priority and arrival, goes before all others of its priority and below. When it finds no
room, it is given the earliest that the time limits of running sessions give it: the shadow time, and the agents it will
have then. Others may go ahead of it only if they end by then, or if they leave it what it needs on those agents (Lifka,
"The ANL/IBM SP scheduling system", JSSPP'95; Skovira et al., "The EASY-LoadLeveler API project", JSSPP'96). The
reservation is computed again in each pass, so it only gets better when sessions end early.

Where time limits make no room for it, sessions count that end by themselves, those placed first before others. There is
no shadow time then: its agents take nothing that it needs there until those have ended, as a node is drained for a
large job. That holds from pass to pass, since what the agents run becomes older than all else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from retinue.manager.scheduling.columns import UNPLACED, Integers, Queue
from retinue.manager.scheduling.equivalence import KERNEL
from retinue.manager.scheduling.view import View, requests_of

if TYPE_CHECKING:
    from retinue.manager.scheduling.capacity import CapacityView
    from retinue.manager.scheduling.placement import Placement
    from retinue.manager.scheduling.strategies import Settings


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room for a session in the future."""

    # Row in the queue.
    session: int
    # Seconds from now; infinite where no time limits say when.
    after: float
    # Row of the agent of each kernel, by rank.
    agents: Integers
    # Rows of the running sessions that have ended by then.
    ended: Sequence[int]


def aged_head(queue: Queue, rows: Integers, settings: Settings) -> int | None:
    """Returns the first of the rows, by priority and arrival, that has waited or was tried
    enough to get a reservation.
    """
    aged = np.zeros(len(rows), np.bool_)
    if settings.reserve_after_tries:
        aged |= queue.tries[rows] >= settings.reserve_after_tries
    if settings.reserve_after_seconds and queue.waited is not None:
        aged |= queue.waited[rows] >= settings.reserve_after_seconds
    old = rows[aged]
    return int(old[np.lexsort((queue.orders[old], -queue.priorities[old]))[0]]) if len(old) else None


def reserve(situation: CapacityView, session: int) -> Reservation | None:
    """Returns the earliest room for a session that time limits of running sessions allow, or else the ends of those
    that end by themselves.
    """
    running = situation.running
    finite = np.flatnonzero(np.isfinite(running.ends))
    times = np.unique(running.ends[finite])
    steps: list[list[int]] = [finite[running.ends[finite] == time].tolist() for time in times.tolist()]
    room = situation.first(session, steps)
    if room is None and running.finishing is not None:
        some_time = np.flatnonzero(running.finishing & ~np.isfinite(running.ends))
        steps += [[row] for row in some_time[np.argsort(running.placed[some_time], kind="stable")].tolist()]
        room = situation.first(session, steps)
    if room is None:
        return None
    after = 0.0 if not room.step else float(times[room.step - 1]) if room.step <= len(times) else np.inf
    return Reservation(session, after, room.agents, [row for step in steps[: room.step] for row in step])


class Backfill:
    """Places sessions around a reservation.

    Those that end before it see what is free (`open`). The others see less on its agents (`closed`): no more than is
    left there when the reservation begins. Whatever one of the two places, the other takes account of.
    """

    def __init__(self, situation: CapacityView, view: View, reservation: Reservation, rows: Integers) -> None:
        """`view` is of all sessions, `rows` are those still to be placed."""
        queue, limits = situation.queue, situation.queue.limits
        self.open = view
        known = np.isfinite(reservation.after)
        long = np.array([not known or limits.get(row, np.inf) > reservation.after for row in rows.tolist()], np.bool_)
        self.closed = View(
            situation.agents,
            queue,
            rows[long],
            situation.settings,
            situation.round_robin_cursor,
            scoring=view.scoring,
            choices=view.choices,
        )
        self.closed.placer.share_replicas(view.placer)
        self.closed.placer.follow(view.placer)
        self._spare = self._left_over(situation, reservation)
        for agent in self._spare:
            self._cap(agent)

    def place(self, row: int) -> Placement:
        """Places a session; UNPLACED when it finds no room or would delay the reservation."""
        here, there = (self.closed, self.open) if row in self.closed.kinds else (self.open, self.closed)
        placement = here.place(row)
        if placement == UNPLACED:
            return UNPLACED
        kind = here.kinds[row]
        if isinstance(placement, int):
            taken = [(placement, kind.whole.packed)]
        else:
            taken = [(agent, shape.packed) for agent, shape in zip(placement, kind.kernels, strict=True)]
        for agent, amounts in taken:
            if here is self.closed:
                there.free.reserve(agent, amounts)
                if agent in self._spare:
                    spare = zip(self._spare[agent], self.open.lanes.unpack(amounts), strict=True)
                    self._spare[agent] = [left - amount for left, amount in spare]
            else:
                self._cap(agent)
        there.placer.follow(here.placer)
        return placement

    def view_of(self, row: int) -> View:
        """Returns the view that a session is placed by."""
        return self.closed if row in self.closed.kinds else self.open

    def _cap(self, agent: int) -> None:
        """Puts the closed view of an agent down to the open one, and to what the reservation leaves."""
        after = self.open.free.packed_of(agent)
        if agent in self._spare:
            lanes = self.open.lanes
            after = lanes.pack(map(min, lanes.unpack(after), self._spare[agent]))
        self.closed.free.lower(agent, self.closed.free.packed_of(agent), after)

    def _left_over(self, situation: CapacityView, reservation: Reservation) -> dict[int, list[int]]:
        """Returns by agent of the reservation, and by lane, what is free when it begins, without what it takes."""
        agents = situation.without(reservation.ended)
        left = np.maximum(agents.capacity - agents.used, 0)
        np.subtract.at(left, reservation.agents, requests_of(situation.queue, reservation.session))
        kernels = agents.kernels.copy()
        np.add.at(kernels, reservation.agents, 1)
        numbers = np.argsort(self.open.free.rows)
        spare = {}
        for row in set(reservation.agents.tolist()):
            lanes = left[row, self.open.columns].tolist()
            if most := situation.settings.max_kernels_per_agent:
                lanes.append((most - int(kernels[row])) * KERNEL)
            spare[int(numbers[row])] = lanes
        return spare
