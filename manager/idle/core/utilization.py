"""Computes how much of what it holds a session uses, over a window of time in which it was observed. Pure.

An agent reports counters now and then; a `Meter` turns those of one attempt into rates, a `Window` gathers what the kernels of a session use
together. Only time between two samples that belong together is observed time: what is missing is left out, and never counts as zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

CPU, MEMORY = "cpu", "mem"
# The slots whose use agents report.
MEASURED = frozenset({CPU, MEMORY})
# A window is moved on in steps of this part of it.
_STEPS = 16
_THOUSANDTHS = 1000
# Samples in a window, and the bounds of the time between two, in seconds.
_SAMPLES, _SHORTEST, _LONGEST = 20, 0.5, 30.0


def period_of(window: float) -> float:
    """Seconds between two samples for a window of so many seconds."""
    return min(_LONGEST, max(_SHORTEST, window / _SAMPLES))


@dataclass(frozen=True, slots=True)
class Sample:
    """Counters of an attempt: `clock` and `cpu` in seconds, `memory` in bytes; None is missing."""

    clock: float
    cpu: float | None
    memory: int | None


@dataclass(frozen=True, slots=True)
class Use:
    """The average use of an attempt over `seconds`: processors, and bytes."""

    seconds: float
    cpu: float
    memory: float


class Meter:
    """Gathers the samples of one attempt until they are taken."""

    __slots__ = ("_cpu", "_last", "_memory", "_seconds")

    def __init__(self) -> None:
        self._last: Sample | None = None
        self._seconds = self._cpu = self._memory = 0.0

    def add(self, sample: Sample, longest: float) -> None:
        """Takes in a sample. What is more than `longest` after the one before, or has a clock or counter that went back, starts again."""
        last = self._last
        if sample.cpu is None or sample.memory is None:
            self._last = None
            return
        if last is not None and last.cpu is not None:
            span = sample.clock - last.clock
            if 0 < span <= longest and sample.cpu >= last.cpu:
                self._seconds += span
                self._cpu += sample.cpu - last.cpu
                self._memory += sample.memory * span
        self._last = sample

    @property
    def seconds(self) -> float:
        """Returns the seconds that were observed and not taken yet."""
        return self._seconds

    def take(self) -> Use:
        """Returns what was used since the last call; only where something was observed."""
        use = Use(self._seconds, self._cpu / self._seconds, self._memory / self._seconds)
        self._seconds = self._cpu = self._memory = 0.0
        return use


def share_of(kernels: Iterable[tuple[Mapping[str, int], Use]]) -> dict[str, float]:
    """Returns what kernels use together of what they hold together, in per cent by slot; slots that none holds are left out.

    What they hold is in smallest units: thousandths of processors, bytes.
    """
    used, held = dict.fromkeys((CPU, MEMORY), 0.0), dict.fromkeys((CPU, MEMORY), 0)
    for slots, use in kernels:
        if slots.get(CPU):
            used[CPU] += use.cpu * _THOUSANDTHS
            held[CPU] += slots[CPU]
        if slots.get(MEMORY):
            used[MEMORY] += use.memory
            held[MEMORY] += slots[MEMORY]
    return {slot: 100.0 * used[slot] / held[slot] for slot in held if held[slot]}


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of a window: seconds `remaining` until use would be under the thresholds were there none from then on, `averages` in per cent by
    slot, and how many seconds were `observed`. It was true `at` a time, and for `patience` seconds after.
    """

    at: float
    patience: float
    remaining: float
    averages: Mapping[str, float]
    observed: float

    def to_json(self) -> dict[str, Any]:
        """As it is stored."""
        return {
            "at": self.at,
            "patience": self.patience,
            "remaining": self.remaining,
            "averages": dict(self.averages),
            "observed": self.observed,
        }


@dataclass(frozen=True, slots=True)
class _Mark:
    """The use (per cent times seconds, by slot) up to the moment when so many seconds had been observed."""

    observed: float
    used: Mapping[str, float]


@dataclass(slots=True)
class Window:
    """The use of a session since `start`, when it came to run, as far back as `width` seconds of observed time and no further."""

    start: float
    width: float
    _now: _Mark = field(default_factory=lambda: _Mark(0.0, {}))
    _marks: list[_Mark] = field(default_factory=lambda: [_Mark(0.0, {})])

    def add(self, seconds: float, shares: Mapping[str, float]) -> bool:
        """Takes in what was used over so many more seconds; returns whether it has moved on a step, and is worth keeping."""
        used = {
            **self._now.used,
            **{slot: self._now.used.get(slot, 0.0) + share * seconds for slot, share in shares.items()},
        }
        self._now = _Mark(self._now.observed + seconds, used)
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

    def _average(self, since: _Mark, slot: str, span: float) -> float:
        return (self._now.used[slot] - since.used.get(slot, 0.0)) / span if span > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        """As it is stored."""
        marks = [[mark.observed, dict(mark.used)] for mark in [*self._marks, self._now]]
        return {"start": self.start, "width": self.width, "marks": marks}


def stored_window(stored: Mapping[str, Any], start: float, width: float) -> Window:
    """A window as it was kept, for a session that came to run at `start`; empty when it is that of another start or width."""
    if stored.get("start") != start or stored.get("width") != width:
        return Window(start, width)
    marks = [_Mark(observed, used) for observed, used in stored["marks"]]
    return Window(start, width, marks[-1], marks[:-1])


def stored_reading(stored: Mapping[str, Any]) -> Reading | None:
    """A reading as it was kept."""
    return Reading(**stored) if stored else None
