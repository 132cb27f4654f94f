"""Samples what kernels use: once for all callers who ask at about the same time."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from retinue.agent.resources.core.usage import Usage

FRESH = 0.4
"""Seconds for which a sample is good enough for another caller."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The usage of a kernel at a time: seconds since the epoch for display, and of the monotonic clock for rates."""

    time: float
    monotonic: float
    usage: Usage


class Sampler:
    """Samples of the kernels of one agent. Samples only on request."""

    def __init__(
        self,
        usage: Callable[[str], Awaitable[Usage | None]],
        *,
        monotonic: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`usage` reads what an attempt has used, None when it does not run."""
        self._usage = usage
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
            missing = [attempt_id for attempt_id in wanted if attempt_id not in self._samples]
            for attempt_id, sample in zip(missing, await asyncio.gather(*map(self._take, missing)), strict=True):
                if sample is not None:
                    self._samples[attempt_id] = sample
            return {attempt_id: self._samples[attempt_id] for attempt_id in wanted if attempt_id in self._samples}

    async def _take(self, attempt_id: str) -> Sample | None:
        usage = await self._usage(attempt_id)
        return None if usage is None else Sample(self._clock(), self._monotonic(), usage)
