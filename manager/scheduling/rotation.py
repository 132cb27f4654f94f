"""Round robin without a scan: the next agent in order of ids that fits, starting after the one chosen last.

Agents that do not fit a shape never will in the same pass, so each shape links them out of its circle: union-find along
a line, with path halving (Tarjan, van Leeuwen, JACM 1984), almost constant per pick.
A walk that grows long gives up and scans, which bounds a pick.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from retinue.manager.scheduling.columns import UNPLACED
from retinue.manager.scheduling.equivalence import Needs, Shape
from retinue.manager.scheduling.scan import scan_rotation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from retinue.manager.scheduling.free import Free

# A scan costs about so many steps of a walk.
STEPS_BEFORE_SCAN = 100
_GIVEN_UP = -2


@dataclass(slots=True)
class _Attempt:
    """The state to be restored by an undo: where the rotation stood, and the agents passed over since."""

    position: int
    passed: list[tuple[Shape, int]] = field(default_factory=list)


class RotatingPicker:
    """Picks in rotation over the ids."""

    def __init__(self, free: Free, position: int) -> None:
        """A picker over `free` that begins at agent `position`."""
        self._free = free
        self.position = position
        self._circles: dict[Needs, list[int]] = {}
        self._attempt: _Attempt | None = None

    def best(self, shape: Shape) -> int:
        """Returns the agent for a shape, or UNPLACED; the rotation continues after it."""
        circle = self._circles.get(shape.needs)
        if circle is None:
            self._free.pack_all()
            circle = self._circles[shape.needs] = self._free.takers(shape.needs).nonzero()[0].tolist()
        start = bisect_left(circle, self.position)
        position = self._next(shape, circle, start)
        if position == len(circle):
            position = self._next(shape, circle, 0)
        if position == len(circle):
            return UNPLACED
        if position == _GIVEN_UP:
            agent = scan_rotation(self._free, shape, self._free.takers(shape.needs), self.position)
            if agent == UNPLACED:
                return UNPLACED
        else:
            agent = circle[position]
        self.position = agent + 1
        return agent

    def checkpoint(self, _shapes: Iterable[Shape]) -> _Attempt:
        """Begins an attempt; `rollback` undoes it, `keep` ends it."""
        self._attempt = _Attempt(self.position)
        return self._attempt

    def rollback(self, attempt: _Attempt) -> None:
        """Forgets what picks since the checkpoint have taught."""
        for shape, position in attempt.passed:
            del shape.passed[position]
        self.position = attempt.position
        self._attempt = None

    def keep(self) -> None:
        """Ends an attempt for good."""
        self._attempt = None

    def _next(self, shape: Shape, circle: list[int], position: int) -> int:
        """Returns the first position from `position` on that fits; the length of the circle when none does,
        or that the walk was given up.
        """
        passed, fits, packed, request = shape.passed, self._free.lanes.fits, self._free.packed, shape.packed
        steps = STEPS_BEFORE_SCAN
        while position < len(circle):
            following = passed.get(position)
            if following is None:
                if fits(request, packed[circle[position]]):
                    return position
                passed[position] = following = position + 1
                if self._attempt is not None:
                    self._attempt.passed.append((shape, position))
            elif self._attempt is None:
                passed[position] = following = passed.get(following, following)
            position = following
            steps -= 1
            if not steps:
                return _GIVEN_UP
        return position
