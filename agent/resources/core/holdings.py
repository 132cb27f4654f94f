"""Tracks the cores and devices that each attempt holds: nothing is held twice. No I/O;
the owner of the attempt records restores it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from retinue.agent.resources.core.allocation import WHOLE, InsufficientError, choose_cores, nearest
from retinue.rpc.core.amounts import CPU

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CUDA = "cuda.device"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU: its `id` as programs and engines name it, the memory node it is next to (-1: none),
    and its memory in bytes.
    """

    id: str
    node: int = -1
    memory: int = 0


@dataclass(frozen=True, slots=True)
class Holding:
    """The exclusive holdings of an attempt: numbers of cores (none: it may use any), ids of GPUs."""

    cores: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()


@dataclass(slots=True)
class Holdings:
    """All holdings of a node. `cores` are by memory node; `gpus` are those that answer, which may change."""

    cores: Mapping[int, Sequence[int]] = field(default_factory=dict)
    gpus: Sequence[Gpu] = ()
    _held: dict[str, Holding] = field(default_factory=dict)

    def take(self, attempt_id: str, slots: Mapping[str, int]) -> Holding:
        """Takes what goes with an attempt's slots; a second time, the same.

        GPUs are always held; cores only where whole ones are asked for, and so many are free: an agent may offer more
        than it has, and limits of time hold in any case. Raises InsufficientError for GPUs.
        """
        if (known := self._held.get(attempt_id)) is not None:
            return known
        gpus = self._free_gpus(slots.get(CUDA, 0) // WHOLE)
        near = [gpu.node for gpu in self.gpus if gpu.id in gpus]
        holding = Holding(self._free_cores(slots.get(CPU, 0), near), gpus)
        self._held[attempt_id] = holding
        return holding

    def restore(self, attempt_id: str, holding: Holding) -> None:
        """Takes up what an attempt holds already."""
        self._held[attempt_id] = holding

    def gpus_of(self, attempt_id: str) -> Sequence[str]:
        """Returns the ids of the GPUs that an attempt holds."""
        held = self._held.get(attempt_id)
        return () if held is None else held.gpus

    @property
    def gpu_count(self) -> int:
        """Returns how many GPUs are offered, those that attempts hold included: a manager counts these as held,
        also when one is lost meanwhile.
        """
        held = {gpu for holding in self._held.values() for gpu in holding.gpus}
        return len(held | {gpu.id for gpu in self.gpus})

    def release(self, attempt_id: str) -> None:
        """Gives back what an attempt holds; nothing to do when that is nothing."""
        self._held.pop(attempt_id, None)

    def _free_gpus(self, count: int) -> tuple[str, ...]:
        taken = {gpu for holding in self._held.values() for gpu in holding.gpus}
        groups: dict[int, list[str]] = {}
        for gpu in self.gpus:
            if gpu.id not in taken:
                groups.setdefault(gpu.node, []).append(gpu.id)
        if count > sum(map(len, groups.values())):
            raise InsufficientError(f"{count} GPUs asked for, {sum(map(len, groups.values()))} left")
        chosen: list[str] = []
        while len(chosen) < count:
            (group, *_) = nearest(groups, [])
            chosen += group[: count - len(chosen)]
            groups = {node: left for node, left in groups.items() if left != group}
        return tuple(chosen)

    def _free_cores(self, amount: int, near: Sequence[int]) -> tuple[int, ...]:
        if amount == 0 or amount % WHOLE:
            return ()
        taken = {core for holding in self._held.values() for core in holding.cores}
        free = {node: [core for core in cores if core not in taken] for node, cores in self.cores.items()}
        return choose_cores(free, amount // WHOLE, near) or ()
