"""Looks at what kernels use: once for all who ask at about the same time."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.agent.resources.core.usage import Usage, group_paths, usage_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
FRESH = 0.4
"""Seconds for which a look is good enough for another who asks."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What a kernel had used at a time: seconds since the epoch for display, and of the monotonic clock for rates."""

    time: float
    monotonic: float
    usage: Usage


class Sampler:
    """Samples of the kernels of one agent. Samples only on request."""

    def __init__(
        self,
        first_pid: Callable[[str], int | None],
        *,
        proc: Path = PROC,
        cgroups: Path = CGROUPS,
        monotonic: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`first_pid` gives the number of the first process of an attempt, None when it does not run."""
        self._first_pid = first_pid
        self._proc = proc
        self._cgroups = cgroups
        self._unified = (cgroups / "cgroup.controllers").exists()
        self._monotonic = monotonic
        self._clock = clock
        self._samples: dict[str, Sample] = {}
        self._looking = asyncio.Lock()

    async def sample(self, attempt_ids: Iterable[str]) -> dict[str, Sample]:
        """Samples of those of the attempts that run, not older than a moment."""
        async with self._looking:
            now = self._monotonic()
            self._samples = {key: sample for key, sample in self._samples.items() if now - sample.monotonic < FRESH}
            wanted = dict.fromkeys(attempt_ids)
            missing = {
                attempt_id: pid
                for attempt_id in wanted
                if attempt_id not in self._samples and (pid := self._first_pid(attempt_id)) is not None
            }
            if missing:
                self._samples |= await asyncio.to_thread(self._look, missing)
            return {attempt_id: self._samples[attempt_id] for attempt_id in wanted if attempt_id in self._samples}

    def _look(self, pids: dict[str, int]) -> dict[str, Sample]:
        return {attempt_id: self._look_at(pid) for attempt_id, pid in pids.items()}

    def _look_at(self, pid: int) -> Sample:
        place = self._proc / str(pid)
        paths = group_paths(_text(place / "cgroup") or "")

        def read(controller: str, name: str) -> str | None:
            path = paths.get(controller)
            # A kernel in no group of its own is not to be counted as all of the node.
            return None if path is None or path == "/" else _text(self._cgroups / controller / path.lstrip("/") / name)

        network = _text(place / "net" / "dev")
        return Sample(self._clock(), self._monotonic(), usage_of(read, self._unified, network))


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
