"""Concentrated and dispersed choice without a scan: agents kept in order,
and for each shape how far down that order nothing fits.

Agents are ordered by one integer: the number of capabilities that the shapes of a class leave alone, what remains lane
by lane, and the agent; the best is last in a sorted list. Within a pass free amounts only shrink, and two facts follow.

* An agent that does not fit a shape never will. So a shape remembers its cursor: no agent better than the cursor fits
  it. The next pick walks down from there.
* Dispersed: taking makes an agent's place worse, so an entry that is out of date stands too high; the walk meets it in
  time and puts it right. Only using up a slot entirely (the agent has one unrequested capability less), or undoing a
  gang, betters a place. Concentrated: every taking betters it. What may have bettered is logged, with the newest move
  of each agent last; before a pick, the class moves those agents, and the shape raises its
  cursor to the best of them that fits.

A slot that every agent has some of adds the same to all counts, so shapes that differ in asking for it share a list:
what is taken moves an agent once, not once for each of them. When an agent first runs out of such a slot, the classes
are made again; each slot can do that once in a pass.

A pick costs a binary search and a few steps. A walk that grows long gives up and scans, which bounds a pick; a class
that is used a few times only scans and never builds its list.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING

from retinue.manager.scheduling.columns import UNPLACED
from retinue.manager.scheduling.equivalence import NEVER, Needs, Shape, Shapes
from retinue.manager.scheduling.lanes import LANE_BITS
from retinue.manager.scheduling.scan import scan_ordered

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from retinue.manager.scheduling.free import Free

# Building a class's list costs about so many scans.
SCANS_BEFORE_ORDER = 32
# A scan costs some hundred steps of a walk. A shape that is picked again gets more of them:
# its cursor keeps what they found.
STEPS_BEFORE_SCAN = 100
REPEATED = 10
_ABSENT = -1

Checkpoint = tuple[int, list[tuple[Shape, int, int]]]


class OrderedPicker:
    """Picks by remaining amounts: the least, or with `most` the most. The first `compared` lanes are compared."""

    def __init__(self, free: Free, shapes: Shapes, *, most: bool, compared: int) -> None:
        """A picker over `free`; `shapes` are all that it will be asked for."""
        self._free = free
        self._shapes = shapes
        self._most = most
        self._compared = compared
        self._classes: dict[tuple[Needs, int], _Class] = {}
        self._mixed = free.mixed

    def best(self, shape: Shape) -> int:
        """Returns the agent for a shape, or UNPLACED."""
        mixed = self._free.mixed
        if self._mixed != mixed:
            # The classes are others now.
            self._mixed = mixed
            self._classes.clear()
            for known in self._shapes.all():
                known.cursor = NEVER
        key = (shape.needs, shape.unrequested & mixed)
        found = self._classes.get(key)
        if found is None:
            alike = [other for other in self._shapes.all() if (other.needs, other.unrequested & mixed) == key]
            found = self._classes[key] = _Class(self._free, key[1], alike, most=self._most, compared=self._compared)
        return found.best(shape)

    def checkpoint(self, shapes: Iterable[Shape]) -> Checkpoint:
        """Returns what to give to `rollback` when picks of `shapes` are undone."""
        return self._mixed, [(shape, shape.cursor, shape.seen) for shape in shapes]

    def rollback(self, checkpoint: Checkpoint) -> None:
        """Forgets what picks since the checkpoint have taught."""
        mixed, shapes = checkpoint
        for shape, cursor, seen in shapes:
            shape.cursor, shape.seen = cursor if mixed == self._mixed else NEVER, seen

    def keep(self) -> None:
        """Ends an attempt for good: there is nothing to do."""


class _Class:
    """The agents in order for shapes that need the same and leave the same slots alone,
    as far as agents differ in having some of them.
    """

    def __init__(self, free: Free, unrequested: int, shapes: Sequence[Shape], *, most: bool, compared: int) -> None:
        self._free = free
        self._most = most
        self._compared = compared
        self._needs = shapes[0].needs
        self._unrequested = unrequested
        self._shapes = shapes
        self._scans = 0
        self._built = False
        lanes = free.lanes
        self._guards, self._ones = lanes.guards, lanes.ones
        self._width = compared * LANE_BITS
        self._shift = (lanes.count - compared) * LANE_BITS
        self._slots = lanes.count
        self._agent_bits = max(1, len(free).bit_length())
        self._agent_mask = (1 << self._agent_bits) - 1
        self._values: list[int] = []
        # By agent: its value in the list, and the free amounts that it was made from.
        self._entries: list[int] = []
        self._made_from: list[int] = []
        # By agent: the guards of its capabilities that the shapes leave alone, and its value there without amounts.
        self._capabilities: list[int] = []
        self._bases: list[int] = []
        self._floor = 0
        self._seen = 0

    def best(self, shape: Shape) -> int:
        if not self._built:
            self._scans += 1
            if self._scans <= SCANS_BEFORE_ORDER:
                return self._scan(shape)
            self._build()
        free, values = self._free, self._values
        moves = free.moves
        if self._seen != moves:
            self._follow_moves()
        cursor, position = shape.cursor, len(values) - 1
        steps = STEPS_BEFORE_SCAN
        if cursor != NEVER:
            steps *= REPEATED
            if shape.seen != moves:
                cursor = self._raised(shape, cursor)
            if position >= 0 and values[position] > cursor:
                position = bisect_right(values, cursor) - 1
        shape.seen = moves

        packed, made_from, entries, bases = free.packed, self._made_from, self._entries, self._bases
        agent_mask, agent_bits, shift = self._agent_mask, self._agent_bits, self._shift
        guards, floor, request = self._guards, self._floor, shape.packed
        while position >= 0:
            value = values[position]
            agent = agent_mask - (value & agent_mask)
            amounts = packed[agent]
            if made_from[agent] is not amounts:
                del values[position]
                made_from[agent] = amounts
                if ((amounts | guards) - floor) & guards == guards:
                    # Its base is still right: a slot used up would have been logged.
                    entries[agent] = value = bases[agent] + (amounts >> shift << agent_bits)
                    insort(values, value)
                else:
                    entries[agent] = _ABSENT
                    position -= 1
                continue
            if ((amounts | guards) - request) & guards == guards:
                shape.cursor = value
                return agent
            position -= 1
            steps -= 1
            if not steps:
                shape.cursor = values[position] if position >= 0 else 0
                return self._scan(shape)
        shape.cursor = 0
        return UNPLACED

    def _scan(self, shape: Shape) -> int:
        return scan_ordered(self._free, shape, self._free.takers(self._needs), most=self._most, compared=self._compared)

    def _build(self) -> None:
        free = self._free
        free.pack_all()
        self._floor = _smallest(self._shapes, free)
        self._entries = [_ABSENT] * len(free)
        self._made_from = [_ABSENT] * len(free)
        self._capabilities, self._bases = [_ABSENT] * len(free), [0] * len(free)
        for agent in free.takers(self._needs).nonzero()[0].tolist():
            self._enter(agent, free.packed[agent])
        self._values = sorted(value for value in self._entries if value != _ABSENT)
        self._seen = free.moves
        self._built = True

    def _enter(self, agent: int, amounts: int) -> int:
        """Returns what an agent that is not in the list has to have as its value there;
        _ABSENT if it does not fit the smallest shape.
        """
        self._made_from[agent] = amounts
        if ((amounts | self._guards) - self._floor) & self._guards != self._guards:
            self._entries[agent] = _ABSENT
            return _ABSENT
        capabilities = (amounts + self._ones) & self._unrequested
        if capabilities != self._capabilities[agent]:
            self._capabilities[agent] = capabilities
            count = capabilities.bit_count()
            ranked = self._slots - count if self._most else (1 << self._slots.bit_length()) - count
            self._bases[agent] = ranked << self._width + self._agent_bits | (self._agent_mask - agent)
        lanes = amounts >> self._shift << self._agent_bits
        value = self._entries[agent] = self._bases[agent] + (lanes if self._most else -lanes)
        return value

    def _follow_moves(self) -> None:
        free, moved, values = self._free, self._free.moved, self._values
        for agent, move in reversed(moved.items()):
            if move <= self._seen:
                break
            amounts = free.packed[agent]
            if self._made_from[agent] is amounts or self._made_from[agent] == _ABSENT:
                continue
            if self._entries[agent] != _ABSENT:
                del values[bisect_left(values, self._entries[agent])]
            value = self._enter(agent, amounts)
            if value != _ABSENT:
                insort(values, value)
        self._seen = free.moves

    def _raised(self, shape: Shape, cursor: int) -> int:
        packed, entries, seen = self._free.packed, self._entries, shape.seen
        guards, request = self._guards, shape.packed
        for agent, move in reversed(self._free.moved.items()):
            if move <= seen:
                break
            if entries[agent] > cursor and ((packed[agent] | guards) - request) & guards == guards:
                cursor = entries[agent]
        return cursor


def _smallest(shapes: Sequence[Shape], free: Free) -> int:
    """Returns the packed smallest amount of each lane."""
    wanted = [dict(shape.amounts) for shape in shapes]
    return free.lanes.pack(min(amounts.get(lane, 0) for amounts in wanted) for lane in range(free.lanes.count))
