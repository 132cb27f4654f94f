"""Samples what kernels use: once for all callers who ask at about the same time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from retinue.agent.resources.core.usage import Usage

# Returns the usage of an attempt, None when it does not run. Blocks.
Reader: TypeAlias = Callable[[], "Usage | None"]

# Returns the use of the GPUs of attempts in percent, of those that have any. Blocks.
GpuReader: TypeAlias = Callable[["Iterable[str]"], "Mapping[str, float]"]

FRESH = 0.4
"""Seconds for which a sample is good enough for another caller."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The usage of a kernel at a time: seconds since the epoch for display, and of the monotonic clock for rates.

    `gpu` is the use of its GPUs in percent, None without any.
    """

    time: float
    monotonic: float
    usage: Usage
    gpu: float | None = None


class Sampler:
    """Samples of the kernels of one agent. Samples only on request."""

    def __init__(
        self,
        reader: Callable[[str], Reader | None],
        gpus: GpuReader = lambda _attempts: {},
        *,
        monotonic: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`reader` returns how to read the usage of an attempt; None for one that is not known.
        `gpus` reads that of GPUs.
        """
        self._reader = reader
        self._gpus = gpus
        self._monotonic = monotonic
        self._clock = clock
        self._samples: dict[str, Sample] = {}
        self._looking = asyncio.Lock()

    async def sample(self, attempt_ids: Iterable[str]) -> dict[str, Sample]:
        """Returns samples of those of the attempts that run, not older than a moment."""
        async with self._looking:
            now = self._monotonic()
            self._samples = {key: sample for key, sample in self._samples.items() if now - sample.monotonic < FRESH}
            wanted = dict.fromkeys(attempt_ids)
            missing = {key: read for key in wanted if key not in self._samples and (read := self._reader(key))}
            if missing:
                # One thread for all of them: a node has hundreds, and each read takes a fraction of a millisecond.
                self._samples |= await asyncio.to_thread(self._read, missing)
            return {attempt_id: self._samples[attempt_id] for attempt_id in wanted if attempt_id in self._samples}

    def _read(self, readers: Mapping[str, Reader]) -> dict[str, Sample]:
        gpus = self._gpus(readers)
        return {
            attempt_id: Sample(self._clock(), self._monotonic(), usage, gpus.get(attempt_id))
            for attempt_id, read in readers.items()
            if (usage := read()) is not None
        }
