"""Concentrated and dispersed choice without a scan: agents kept in order, and for each shape how far down that order nothing fits.

Agents are ordered by one integer: the number of capabilities that the shapes of a class leave alone, what remains lane by lane, and the
agent; the best is last in a sorted list. Within a pass free amounts only shrink, and two facts follow.

* An agent that does not fit a shape never will. So a shape remembers its cursor: no agent better than the cursor fits it. The next pick
  walks down from there.
* Dispersed: taking makes an agent's place worse, so an entry that is out of date stands too high; the walk meets it in time and puts it
  right. Only using up a slot entirely (the agent has one unrequested capability less), or undoing a gang, betters a place. Concentrated:
  every taking betters it. What may have bettered is logged, with the newest move of each agent last; before a pick, the class moves those
  agents, and the shape raises its cursor to the best of them that fits.

A pick costs a binary search and a few steps. A walk that grows long gives up and scans, which bounds a pick; a class that is used a few
times only scans and never builds its list.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence

from manager.scheduling.columns import UNPLACED
from manager.scheduling.free import Free
from manager.scheduling.kinds import NEVER, Needs, Shape, Shapes
from manager.scheduling.lanes import LANE_BITS
from manager.scheduling.scan import scan_ordered

# Building a class's list costs about so many scans.
SCANS_BEFORE_ORDER = 32
# A scan costs some hundred steps of a walk. A shape that is picked again gets more of them: its cursor keeps what they found.
STEPS_BEFORE_SCAN = 100
REPEATED = 10
_ABSENT = -1

Checkpoint = list[tuple[Shape, int, int]]


class OrderedPicker:
    """Picks by remaining amounts: the least, or with `most` the most. The first `compared` lanes are compared."""

    def __init__(self, free: Free, shapes: Shapes, *, most: bool, compared: int) -> None:
        """A picker over `free`; `shapes` are all that it will be asked for."""
        self._free = free
        self._shapes = shapes
        self._most = most
        self._compared = compared
        self._classes: dict[tuple[Needs, int], _Class] = {}

    def best(self, shape: Shape) -> int:
        """The agent for a shape, or UNPLACED."""
        key = (shape.needs, shape.unrequested)
        found = self._classes.get(key)
        if found is None:
            found = self._classes[key] = _Class(
                self._free, shape, self._shapes, most=self._most, compared=self._compared
            )
        return found.best(shape)

    def checkpoint(self, shapes: Iterable[Shape]) -> Checkpoint:
        """What to give to `rollback` when picks of `shapes` are undone."""
        return [(shape, shape.cursor, shape.seen) for shape in shapes]

    def rollback(self, checkpoint: Checkpoint) -> None:
        """Forgets what picks since the checkpoint have taught."""
        for shape, cursor, seen in checkpoint:
            shape.cursor, shape.seen = cursor, seen

    def keep(self) -> None:
        """Ends an attempt for good: there is nothing to do."""


class _Class:
    """The agents in order for the shapes of the same needs that leave the same slots alone."""

    def __init__(self, free: Free, shape: Shape, shapes: Shapes, *, most: bool, compared: int) -> None:
        self._free = free
        self._most = most
        self._compared = compared
        self._needs = shape.needs
        self._unrequested = shape.unrequested
        self._shapes = shapes
        self._scans = 0
        self._built = False
        lanes = free.lanes
        self._guards, self._ones = lanes.guards, lanes.ones
        self._width = compared * LANE_BITS
        self._shift = (lanes.count - compared) * LANE_BITS
        self._slots = lanes.count
        # What a value is taken from, so that the best is the largest.
        count_bits = lanes.count.bit_length()
        self._complement = 0 if most else (1 << (count_bits + self._width)) - 1
        self._agent_bits = max(1, len(free).bit_length())
        self._agent_mask = (1 << self._agent_bits) - 1
        self._values: list[int] = []
        # By agent: its value in the list, and the free amounts that it was made from.
        self._entries: list[int] = []
        self._made_from: list[int] = []
        self._floor = 0
        self._seen = 0

    def best(self, shape: Shape) -> int:
        if not self._built:
            self._scans += 1
            if self._scans <= SCANS_BEFORE_ORDER:
                return self._scan(shape)
            self._build()
        free = self._free
        if self._seen != free.moves:
            self._follow_moves()
        values = self._values
        cursor = shape.cursor
        if cursor == NEVER:
            place = len(values) - 1
            steps = STEPS_BEFORE_SCAN
        else:
            if shape.seen != free.moves:
                cursor = self._raised(shape, cursor)
            place = bisect_right(values, cursor) - 1
            steps = REPEATED * STEPS_BEFORE_SCAN
        shape.seen = free.moves

        packed, made_from, guards, request, agent_mask = (
            free.packed,
            self._made_from,
            self._guards,
            shape.packed,
            self._agent_mask,
        )
        while place >= 0:
            value = values[place]
            agent = agent_mask - (value & agent_mask)
            amounts = packed[agent]
            if made_from[agent] is not amounts:
                del values[place]
                if not self._enter(agent, amounts):
                    place -= 1
                continue
            if ((amounts | guards) - request) & guards == guards:
                shape.cursor = value
                return agent
            place -= 1
            steps -= 1
            if not steps:
                shape.cursor = values[place] if place >= 0 else 0
                return self._scan(shape)
        shape.cursor = 0
        return UNPLACED

    def _scan(self, shape: Shape) -> int:
        return scan_ordered(self._free, shape, self._free.takers(self._needs), most=self._most, compared=self._compared)

    def _build(self) -> None:
        free = self._free
        free.pack_all()
        self._floor = _smallest(
            [
                shape
                for shape in self._shapes.all()
                if shape.unrequested == self._unrequested and shape.needs == self._needs
            ],
            free,
        )
        self._entries = [_ABSENT] * len(free)
        self._made_from = [_ABSENT] * len(free)
        for agent in free.takers(self._needs).nonzero()[0].tolist():
            self._enter(agent, free.packed[agent], insert=False)
        self._values = sorted(value for value in self._entries if value != _ABSENT)
        self._seen = free.moves
        self._built = True

    def _enter(self, agent: int, amounts: int, *, insert: bool = True) -> bool:
        """Gives an agent that is not in the list its place, if it fits the smallest shape; returns whether it does."""
        self._made_from[agent] = amounts
        if ((amounts | self._guards) - self._floor) & self._guards != self._guards:
            self._entries[agent] = _ABSENT
            return False
        unutilised = ((amounts + self._ones) & self._unrequested).bit_count()
        if self._most:
            value = (self._slots - unutilised) << self._width | amounts >> self._shift
        else:
            value = self._complement ^ (unutilised << self._width | amounts >> self._shift)
        value = value << self._agent_bits | (self._agent_mask - agent)
        self._entries[agent] = value
        if insert:
            insort(self._values, value)
        return True

    def _follow_moves(self) -> None:
        free, moved, values = self._free, self._free.moved, self._values
        for agent in reversed(moved):
            if moved[agent] <= self._seen:
                break
            amounts = free.packed[agent]
            if self._made_from[agent] is amounts or (self._made_from[agent] == _ABSENT):
                continue
            if self._entries[agent] != _ABSENT:
                del values[bisect_left(values, self._entries[agent])]
            self._enter(agent, amounts)
        self._seen = free.moves

    def _raised(self, shape: Shape, cursor: int) -> int:
        free, moved, entries = self._free, self._free.moved, self._entries
        guards, request = self._guards, shape.packed
        for agent in reversed(moved):
            if moved[agent] <= shape.seen:
                break
            if entries[agent] > cursor and ((free.packed[agent] | guards) - request) & guards == guards:
                cursor = entries[agent]
        return cursor


def _smallest(shapes: Sequence[Shape], free: Free) -> int:
    """The packed smallest amount of each lane; all shapes have the same lanes that are not 0."""
    smallest = [0] * free.lanes.count
    for position in range(len(shapes[0].amounts)):
        lane = shapes[0].amounts[position][0]
        smallest[lane] = min(shape.amounts[position][1] for shape in shapes)
    return free.lanes.pack(smallest)
