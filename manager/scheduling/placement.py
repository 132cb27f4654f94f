"""Gangs on agents: all kernels of a session find a place, or none holds any.

A session that fits one agent goes there whole. A single-node session that does not fit one agent waits; a multi-node
session is spread, kernel by kernel in order of rank, each by the agent strategy with what its siblings took already
counted, and undone from a list when one of them finds no place. Where agents have underlay addresses of several
families, it is spread over those of one: no packets pass between them.

Free amounts only shrink within a pass, so failures are remembered: a shape that failed fails for good, and so do larger
ones; of a gang of equal kernels, the number that could be placed bounds every later gang of them. Greedy spreading of
unequal kernels is not monotone (less free may lead to a luckier choice),
so such a gang is tried again once something else was placed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from retinue.manager.scheduling.columns import UNPLACED, AgentPreferences, Integers, Mask
from retinue.manager.scheduling.ordered import OrderedPicker
from retinue.manager.scheduling.rotation import RotatingPicker
from retinue.manager.scheduling.scan import scan_ordered, scan_rotation
from retinue.manager.scheduling.strategies import DISPERSED, ROUND_ROBIN, Settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from retinue.manager.scheduling.equivalence import EquivalenceClass, Needs, Shape, Shapes
    from retinue.manager.scheduling.free import Free
    from retinue.manager.scheduling.scored import ScoredPicker

# Smaller gangs are tried at once; before a larger one its room is counted.
COUNTED_GANG = 64
# More failed shapes than that are not compared with new ones.
MAX_COMPARED = 64

# The agents of a session: one for all its kernels, or one each; UNPLACED when it found no room.
Placement = int | list[int]


class Picker(Protocol):
    """Finds the agent for one shape after the other as the strategy wants it, learning within the pass."""

    def best(self, shape: Shape) -> int:
        """Returns the agent for a shape, or UNPLACED."""

    def checkpoint(self, shapes: Sequence[Shape]) -> Any:
        """Begins picks of `shapes` that may be undone."""

    def rollback(self, checkpoint: Any) -> None:
        """Undoes what picks since the checkpoint have taught."""

    def keep(self) -> None:
        """Ends what `checkpoint` began, for good."""


class Placer:
    """Places sessions one after the other, each time by the settings' agent strategy."""

    def __init__(
        self,
        free: Free,
        shapes: Shapes,
        settings: Settings,
        compared: int,
        position: int,
        *,
        replicas: Sequence[Mapping[int, int]] = (),
        scored: ScoredPicker | None = None,
    ) -> None:
        """The first `compared` lanes decide between agents; a rotation begins at agent `position`.
        `replicas` are those of the queue.
        """
        self._free = free
        self._settings = settings
        self._compared = compared
        self._rotation = RotatingPicker(free, position) if settings.agent_strategy == ROUND_ROBIN else None
        self._scored = scored
        self._picker: Picker = (
            scored
            or self._rotation
            or OrderedPicker(free, shapes, most=settings.agent_strategy == DISPERSED, compared=compared)
        )
        self._failed: dict[Needs, list[int]] = {}
        self._numbers = np.argsort(free.rows)
        # By endpoint, the kernels of it on each agent; those of this pass included.
        self._replicas = [self._counts(kernels) for kernels in replicas]
        self.placements = 0

    def share_replicas(self, other: Placer) -> None:
        """From now on both count the kernels of endpoints together."""
        self._replicas = other._replicas

    def copy_replicas(self, other: Placer) -> None:
        """Begins with the kernels of endpoints that another counts."""
        self._replicas = [counts.copy() for counts in other._replicas]

    def follow(self, other: Placer) -> None:
        """Takes account of a placement that another made, whose amounts this one's `Free` has taken."""
        self.placements += 1
        if self._rotation:
            self._rotation.position = other.position

    @property
    def position(self) -> int:
        """Returns where a rotation continues."""
        return self._rotation.position if self._rotation else 0

    def place(self, kind: EquivalenceClass) -> Placement:
        """Places a session of a kind; agents are numbered as in `Free`."""
        if kind.failed or kind.failed_at == self.placements:
            return UNPLACED
        whole = kind.whole
        if not whole.failed:
            if not kind.kernels:
                return []
            agent = self._pick(whole)
            if agent != UNPLACED:
                self._free.reserve(agent, whole.packed)
                self.placements += 1
                return agent
        if kind.single_node:
            kind.failed = True
            return UNPLACED
        spread = self._spread_in_family(kind) if kind.families else self._spread(kind)
        if spread is None:
            kind.failed_at = self.placements
            return UNPLACED
        self.placements += 1
        return spread

    def place_at(self, kind: EquivalenceClass, agents: Sequence[int], wishes: AgentPreferences | None) -> str:
        """Places a session where an external strategy wants it; answers what is wrong with that,
        and changes nothing then.
        """
        if len(agents) != len(kind.kernels):
            return f"{len(agents)} agents are given for {len(kind.kernels)} kernels"
        if kind.single_node and len(set(agents)) > 1:
            return "a single-node session is given several agents"
        if wishes is not None and wishes.strict and not set(agents) <= set(self._numbers[list(wishes.designated)]):
            return "an agent is given that the session did not choose"
        taken: list[tuple[int, int]] = []
        for shape, agent in zip(kind.kernels, agents, strict=True):
            fits = self._free.takers(shape.needs)[agent] and self._free.lanes.fits(
                shape.packed, self._free.packed_of(agent)
            )
            if not fits:
                self._undo(taken)
                return "an agent is given that has no room, or cannot run it"
            taken.append((agent, self._free.reserve(agent, shape.packed)))
        if len(set(agents)) > 1 and kind.families and not any(self._are_of(family, agents) for family in kind.families):
            self._undo(taken)
            return "agents are given whose nodes do not reach each other: their underlay addresses are of different families"
        self.placements += 1
        return ""

    def _are_of(self, family: EquivalenceClass, agents: Sequence[int]) -> bool:
        return all(self._free.takers(shape.needs)[agent] for shape, agent in zip(family.kernels, agents, strict=True))

    def place_wished(self, kind: EquivalenceClass, wishes: AgentPreferences) -> Placement:
        """Places a session that has wishes: with the agents it likes best, and only when they do not do, with the next
        ones too, which then come after those in each choice.
        """
        takers = self._free.schedulable
        designated, avoided = self._mask(wishes.designated), self._mask(wishes.avoided)
        pools = [takers & designated] if wishes.strict else [takers & designated, takers & ~designated]
        tiers = [pool & ~avoided for pool in pools] + [pool & avoided for pool in pools]
        tiers = [tier for tier in tiers if tier.any()]
        for number in range(1, len(tiers) + 1):
            placement = self._place_among(kind, tiers[:number], wishes)
            if placement != UNPLACED:
                self.placements += 1
                if wishes.endpoint is not None:
                    self._count(wishes.endpoint, kind, placement)
                return placement
        return UNPLACED

    def _counts(self, kernels: Mapping[int, int]) -> Integers:
        counts = np.zeros(len(self._free), np.int64)
        for row, number in kernels.items():
            counts[self._numbers[row]] = number
        return counts

    def _count(self, endpoint: int, kind: EquivalenceClass, placement: Placement) -> None:
        counts = self._replicas[endpoint]
        if isinstance(placement, int):
            counts[placement] += len(kind.kernels)
        else:
            np.add.at(counts, placement, 1)

    def _nearest(self, shape: Shape, tier: Mask, wishes: AgentPreferences) -> Mask:
        """Of the agents of a tier that fit a shape, those that are best for the replicas of an endpoint."""
        if wishes.endpoint is None:
            return tier
        fitting = self._free.fitting(shape, tier)
        if not len(fitting):
            return tier
        counts = self._replicas[wishes.endpoint][fitting]
        nearest = np.zeros(len(self._free), np.bool_)
        nearest[fitting[counts == (counts.max() if wishes.pack else counts.min())]] = True
        return nearest

    def probe(self, kind: EquivalenceClass) -> tuple[int, Shape | None, Integers]:
        """Returns how far the spreading of a kind gets now: the number of kernels placed, the shape of the next one
        (None when all are), and what would be free then, lanes x agents. Changes nothing.
        """
        checkpoint = self._picker.checkpoint([shape for shape, _ in kind.groups])
        taken, missing = self._take_all(kind.kernels)
        amounts = self._free.amounts().copy()
        self._undo(taken)
        self._picker.rollback(checkpoint)
        return len(taken), missing, amounts

    def _pick(self, shape: Shape) -> int:
        if not shape.compared:
            shape.compared = True
            shape.failed = self._larger_than_failed(shape)
        if shape.failed:
            return UNPLACED
        agent = self._picker.best(shape)
        if agent == UNPLACED:
            self._fail(shape)
        return agent

    def _larger_than_failed(self, shape: Shape) -> bool:
        fits = self._free.lanes.fits
        return any(
            fits(smaller, shape.packed)
            for needs, failed in self._failed.items()
            if needs.weaker(shape.needs)
            for smaller in failed
        )

    def _fail(self, shape: Shape) -> None:
        shape.failed = True
        shape.room = 0
        fits = self._free.lanes.fits
        failed = [other for other in self._failed.get(shape.needs, []) if not fits(shape.packed, other)]
        if len(failed) < MAX_COMPARED:
            failed.append(shape.packed)
        self._failed[shape.needs] = failed

    def _spread_in_family(self, kind: EquivalenceClass) -> list[int] | None:
        for family in kind.families:
            if not family.failed and (spread := self._spread(family)) is not None:
                return spread
        kind.failed = all(family.failed for family in kind.families)
        return None

    def _spread(self, kind: EquivalenceClass) -> list[int] | None:
        for shape, number in kind.groups:
            if number >= COUNTED_GANG and number <= shape.room:
                shape.room = self._free.room(shape, self._free.takers(shape.needs))
            if shape.failed or number > shape.room:
                kind.failed = True
                return None
        checkpoint = self._picker.checkpoint([shape for shape, _ in kind.groups])
        taken, missing = self._take_all(kind.kernels)
        if missing is None:
            self._picker.keep()
            return [agent for agent, _ in taken]
        self._undo(taken)
        self._picker.rollback(checkpoint)
        if not taken:
            self._fail(missing)
        elif len(kind.groups) == 1:
            missing.room = len(taken)
        kind.failed = not taken or len(kind.groups) == 1
        return None

    def _take_all(self, kernels: Sequence[Shape]) -> tuple[list[tuple[int, int]], Shape | None]:
        taken: list[tuple[int, int]] = []
        best, take = self._picker.best, self._free.reserve
        for shape in kernels:
            agent = best(shape)
            if agent == UNPLACED:
                return taken, shape
            taken.append((agent, take(agent, shape.packed)))
        return taken, None

    def _undo(self, taken: list[tuple[int, int]]) -> None:
        for agent, before in reversed(taken):
            self._free.restore(agent, before)

    def _mask(self, rows: Sequence[int]) -> Mask:
        mask = np.zeros(len(self._free), np.bool_)
        mask[self._numbers[list(rows)]] = True
        return mask

    def _place_among(self, kind: EquivalenceClass, tiers: list[Mask], wishes: AgentPreferences) -> Placement:
        agent = self._scan(kind.whole, tiers, wishes)
        if agent != UNPLACED:
            self._free.reserve(agent, kind.whole.packed)
            return agent
        if kind.single_node:
            return UNPLACED
        for family in kind.families or (kind,):
            if (spread := self._spread_among(family, tiers, wishes)) is not None:
                return spread
        return UNPLACED

    def _spread_among(self, kind: EquivalenceClass, tiers: list[Mask], wishes: AgentPreferences) -> list[int] | None:
        position = self.position
        taken: list[tuple[int, int]] = []
        for shape in kind.kernels:
            agent = self._scan(shape, tiers, wishes)
            if agent == UNPLACED:
                self._undo(taken)
                if self._rotation:
                    self._rotation.position = position
                return None
            taken.append((agent, self._free.reserve(agent, shape.packed)))
        return [agent for agent, _ in taken]

    def _scan(self, shape: Shape, tiers: list[Mask], wishes: AgentPreferences) -> int:
        takers = self._free.takers(shape.needs)
        for among in tiers:
            tier = self._nearest(shape, among & takers, wishes)
            if self._scored:
                agent = self._scored.pick(shape, tier)
            elif self._rotation:
                agent = scan_rotation(self._free, shape, tier, self._rotation.position)
                if agent != UNPLACED:
                    self._rotation.position = agent + 1
            else:
                most = self._settings.agent_strategy == DISPERSED
                agent = scan_ordered(self._free, shape, tier, most=most, compared=self._compared)
            if agent != UNPLACED:
                return agent
        return UNPLACED
