"""Preemption: sessions of lower priority make way for one that finds no room.

Only placed sessions that may be preempted, and only of strictly lower priority than the winner, are victims: lowest
priority first, then the newest, the oldest or those that hold the least, as the group has it. They are taken in that
order until the winner fits; then those that it can do without on the agents it found are spared again, the most
valuable first. A group may rather have the fewest sessions make way: the agents are then evaluated one by one, as long
as one of them can take the whole winner. A gang makes way whole. The room is the winner's from then on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from retinue.manager.scheduling.columns import Agents, Integers, Queue, Ratios, Running
from retinue.manager.scheduling.strategies import FEWEST_SESSIONS, OLDEST, SMALLEST_RESOURCES
from retinue.manager.scheduling.view import requests_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from retinue.manager.scheduling.capacity import CapacityView

# Winners of one pass; the next pass continues.
MAX_WINNERS = 16
# Sessions that are evaluated for it in one pass: each may cost as much as some thousand placements.
MAX_LOOKED_AT = 64
# Agents on which the fewest victims are looked for, and victims tried on each.
MAX_AGENTS, MAX_VICTIMS = 32, 16


@dataclass(frozen=True, slots=True)
class Preemption:
    """The sessions to be ended, and the session they make way for."""

    # Row of the winner in the queue, and of the agent of each of its kernels, by rank.
    winner: int
    agents: Integers
    # Rows in `Running`.
    victims: tuple[int, ...]


def preempt(
    situation: CapacityView, waiting: Integers, admits: Callable[[int], bool], kind_of: Callable[[int], object]
) -> Iterator[Preemption]:
    """Victims for the first of the rows `waiting` of the queue that found no room, by priority and arrival.

    `admits` says whether the quotas have room for a winner (and counts it), `kind_of` which sessions are alike.
    """
    queue, running = situation.queue, situation.running
    order = waiting[np.lexsort((queue.orders[waiting], -queue.priorities[waiting]))]
    by_age = running.placed if situation.settings.preemption_order == OLDEST else -running.placed
    left = np.flatnonzero(running.preemptible)
    sizes = np.zeros(len(running.ids), np.float64)
    if situation.settings.preemption_order == SMALLEST_RESOURCES:
        sizes = _sizes(situation)
    left = left[np.lexsort((left, by_age[left], sizes[left], running.priorities[left]))]
    hopeless: set[tuple[object, int]] = set()
    winners = looked_at = 0
    for row in order.tolist():
        priority = int(queue.priorities[row])
        if winners == MAX_WINNERS or looked_at == MAX_LOOKED_AT or not len(left):
            return
        lower = left[running.priorities[left] < priority]
        if (kind_of(row), priority) in hopeless or not len(lower):
            continue
        looked_at += 1
        found = _victims(situation, row, lower)
        if found is None:
            hopeless.add((kind_of(row), priority))
        elif admits(row):
            winners += 1
            hopeless.clear()
            yield found
            left = left[~np.isin(left, found.victims)]
            situation = replace(situation, agents=_with_winner(situation.without(found.victims), queue, found))


def _victims(situation: CapacityView, row: int, lower: Integers) -> Preemption | None:
    if situation.settings.preemption_order == FEWEST_SESSIONS:
        found = _fewest_victims(situation, row, lower)
        if found is not None:
            return found
    room = situation.first(row, [[session] for session in lower.tolist()])
    # With none to make way it would have been placed, or a reservation keeps it from it.
    if room is None or room.step == 0:
        return None
    victims = [session for session in lower[: room.step].tolist() if _touches(situation, session, room.agents)]
    return _spare(situation, row, victims, room.agents)


def _fewest_victims(situation: CapacityView, row: int, lower: Integers) -> Preemption | None:
    """The agent that takes the whole winner after the fewest sessions have gone;
    of several the one whose victims are of the lowest priority.
    """
    running = situation.running
    best: tuple[tuple[int, int], Preemption] | None = None
    held = [agent for session in lower.tolist() for agent in _agents_of(running, session).tolist()]
    for agent in list(dict.fromkeys(held))[:MAX_AGENTS]:
        only = np.array([agent], np.int64)
        there = [session for session in lower.tolist() if _touches(situation, session, only)][:MAX_VICTIMS]
        most = len(there) if best is None else min(len(there), best[0][0])
        for number in range(1, most + 1):
            if situation.place(row, there[:number], only=only) is not None:
                found = _spare(situation, row, there[:number], only)
                if found is not None:
                    cost = (len(found.victims), int(running.priorities[list(found.victims)].max()))
                    if best is None or cost < best[0]:
                        best = cost, found
                break
    return None if best is None else best[1]


def _spare(situation: CapacityView, row: int, victims: list[int], agents: Integers) -> Preemption | None:
    """Lets those stay that the winner can do without on these agents, the last first."""
    for session in reversed(victims.copy()):
        rest = [victim for victim in victims if victim != session]
        if situation.place(row, rest, only=agents) is not None:
            victims = rest
    found = situation.place(row, victims, only=agents)
    return None if found is None or not victims else Preemption(row, found, tuple(victims))


def _sizes(situation: CapacityView) -> Ratios:
    """Returns by running session the largest part that it holds of what the agents have of any slot."""
    running, capacity = situation.running, situation.agents.capacity.sum(axis=0, dtype=np.float64)
    held = np.zeros((len(running.ids), len(capacity)), np.float64)
    np.add.at(held, np.repeat(np.arange(len(running.ids)), np.diff(running.offsets)), running.amounts)
    parts = np.divide(held, capacity, out=np.zeros_like(held), where=capacity > 0)
    largest: Ratios = parts.max(axis=1, initial=0.0)
    return largest


def _agents_of(running: Running, session: int) -> Integers:
    return running.agents[running.offsets[session] : running.offsets[session + 1]]


def _touches(situation: CapacityView, session: int, agents: Integers) -> bool:
    return bool(np.isin(_agents_of(situation.running, session), agents).any())


def _with_winner(agents: Agents, queue: Queue, preemption: Preemption) -> Agents:
    used, kernels = agents.used.copy(), agents.kernels.copy()
    np.add.at(used, preemption.agents, requests_of(queue, preemption.winner))
    np.add.at(kernels, preemption.agents, 1)
    return replace(agents, used=used, kernels=kernels)
