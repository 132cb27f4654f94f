"""Computes how much of what they hold kernels use, from the counters that agents report now and then. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.rpc.core.amounts import CPU, MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CUDA = "cuda.device"
_THOUSANDTHS = 1000


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
        """Takes in a sample. What is more than `longest` after the one before,
        or has a clock or counter that went back, starts again.
        """
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
    """Returns what kernels use together of what they hold together, in per cent by slot;
    slots that none holds are left out.

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
