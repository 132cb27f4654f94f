"""Computes how much of what it holds a session uses, over a window of time in which it was observed. Pure.

A `Window` gathers what the kernels of a session use together. Only time between two samples that belong together is
observed time: what is missing is left out, and never counts as zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from retinue.rpc.core.amounts import CPU, MEMORY

# The slots whose use ends sessions.
MEASURED = frozenset({CPU, MEMORY})
# A window is moved on in steps of this part of it.
_STEPS = 16
# A stored window has the mark at which it begins, and the one of now.
_MIN_MARKS = 2
# Samples in a window, and the bounds of the time between two, in seconds.
_SAMPLES, _SHORTEST, _LONGEST = 20, 0.5, 30.0


def period_of(window: float) -> float:
    """Seconds between two samples for a window of so many seconds."""
    return min(_LONGEST, max(_SHORTEST, window / _SAMPLES))


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of a window: seconds `remaining` until use would be under the thresholds were there none from then on,
    `averages` in per cent by slot, and how many seconds were `observed`.
    It was true `at` a time, and for `patience` seconds after.
    """

    at: float
    patience: float
    remaining: float
    averages: Mapping[str, float]
    observed: float


class Mark(NamedTuple):
    """The use (per cent times seconds, by slot) up to the moment when so many seconds had been observed."""

    observed: float
    used: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class WindowRecord:
    """A window as it is stored, the newest mark last."""

    start: float
    width: float
    marks: tuple[Mark, ...]


@dataclass(slots=True)
class Window:
    """The use of a session since `start`, when it came to run, as far back as `width`
    seconds of observed time and no further.
    """

    start: float
    width: float
    _now: Mark = field(default_factory=lambda: Mark(0.0, {}))
    _marks: list[Mark] = field(default_factory=lambda: [Mark(0.0, {})])

    def add(self, seconds: float, shares: Mapping[str, float]) -> bool:
        """Takes in what was used over so many more seconds; returns whether it has moved on a step,
        and is worth keeping.
        """
        used = {
            **self._now.used,
            **{slot: self._now.used.get(slot, 0.0) + share * seconds for slot, share in shares.items()},
        }
        self._now = Mark(self._now.observed + seconds, used)
        if self._now.observed - self._marks[-1].observed < self.width / _STEPS:
            return False
        self._marks.append(self._now)
        begin = self._now.observed - self.width
        while len(self._marks) > 1 and self._marks[1].observed <= begin:
            del self._marks[0]
        return True

    def read(self, thresholds: Mapping[str, float], *, any_slot: bool, at: float, patience: float) -> Reading | None:
        """Returns the result; None when nothing was observed, or the session holds none of the slots."""
        slots = [slot for slot in thresholds if slot in self._now.used]
        if not slots or self._now.observed <= 0:
            return None
        enough: Callable[[Iterable[bool]], bool] = any if any_slot else all
        remaining = self.width
        for mark in [*self._marks, self._now]:
            span = max(self.width, self._now.observed - mark.observed)
            left = max(0.0, self.width - (self._now.observed - mark.observed))
            if enough(self._average(mark, slot, span) < thresholds[slot] for slot in slots):
                remaining = left
                break
        first = self._marks[0]
        averages = {slot: self._average(first, slot, self._now.observed - first.observed) for slot in slots}
        return Reading(at, patience, remaining, averages, self._now.observed)

    def _average(self, since: Mark, slot: str, span: float) -> float:
        return (self._now.used[slot] - since.used.get(slot, 0.0)) / span if span > 0 else 0.0

    def record(self) -> WindowRecord:
        """Returns the window as it is stored."""
        return WindowRecord(self.start, self.width, (*self._marks, self._now))


def restored_window(stored: WindowRecord | None, start: float, width: float) -> Window:
    """Returns a window as it was stored, for a session that came to run at `start`;
    empty when it is that of another start or width.
    """
    if stored is None or (stored.start, stored.width) != (start, width) or len(stored.marks) < _MIN_MARKS:
        return Window(start, width)
    *marks, now = stored.marks
    return Window(start, width, now, marks)
