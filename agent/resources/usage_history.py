"""Keeps what attempts have used over the last hour, in memory, for charts that do not begin when somebody looks.

A sample is six integers in an array: an attempt takes 48 bytes a sample and 17 kB an hour, whatever is missing.
"""

from __future__ import annotations

import asyncio
import sys
import time
from array import array
from typing import TYPE_CHECKING

from retinue.agent.resources.core.usage import Usage
from retinue.agent.resources.sampler import Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from retinue.agent.resources.sampler import Sampler

INTERVAL = 10.0
"""Seconds between two samples."""
KEPT_SECONDS = 3600.0
"""Age of the oldest sample."""
KEPT_SAMPLES = int(KEPT_SECONDS / INTERVAL)
"""Most samples of an attempt."""
KEPT_ENDED = 256
"""Most attempts that do not run any more."""
# Time, processor time, memory, bytes received and sent, use of GPUs.
_COLUMNS = 6
_MISSING = -1


class UsageHistory:
    """Samples of the attempts of one agent. Methods belong on one event loop."""

    def __init__(
        self,
        sampler: Sampler,
        attempts: Callable[[], Iterable[str]],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`attempts` returns those there are; of those that run, samples are taken."""
        self._sampler = sampler
        self._attempts = attempts
        self._clock = clock
        # Those that ended last are last.
        self._kept: dict[str, array[int]] = {}

    @property
    def sizes(self) -> Mapping[str, int]:
        """Returns the attempts that there are samples of, with the bytes that these take."""
        return {key: sys.getsizeof(rows) for key, rows in self._kept.items()}

    async def run(self) -> None:
        """Takes samples, again and again; does not return."""
        while True:
            await self.measure()
            await asyncio.sleep(INTERVAL)

    async def measure(self) -> None:
        """Takes a sample of each attempt that runs, and forgets what is too old or too much."""
        samples = await self._sampler.sample(self._attempts())
        for attempt_id, sample in samples.items():
            # To the end: the others have ended before.
            rows = self._kept.pop(attempt_id, None) or array("q")
            rows.extend(_row(sample))
            del rows[: max(0, len(rows) - KEPT_SAMPLES * _COLUMNS)]
            self._kept[attempt_id] = rows
        oldest = self._oldest()
        ended = [key for key in self._kept if key not in samples]
        outdated = (key for key in ended if self._kept[key][-_COLUMNS] < oldest)
        for key in {*outdated, *ended[: max(0, len(ended) - KEPT_ENDED)]}:
            del self._kept[key]

    def read(self, attempt_id: str, since: float | None = None, interval: float = 0.0) -> Iterator[Sample]:
        """Yields the samples of an attempt, the oldest first; none of one that is not known.

        `since` is in seconds since the epoch, `interval` in seconds: only the last sample of each is yielded.
        """
        rows = self._kept.get(attempt_id, array("q"))
        begin = max(self._oldest(), -1 if since is None else round(since * 1e3))
        length = max(1, round(interval * 1e3))
        # By interval, the last one.
        chosen = {rows[start] // length: start for start in range(0, len(rows), _COLUMNS) if rows[start] >= begin}
        for start in chosen.values():
            yield _sample(rows[start : start + _COLUMNS])

    def _oldest(self) -> int:
        return round((self._clock() - KEPT_SECONDS) * 1e3)


def _row(sample: Sample) -> tuple[int, ...]:
    usage = sample.usage
    gpu = None if sample.gpu is None else round(sample.gpu * 1e3)
    amounts = (usage.cpu, usage.memory, usage.received, usage.sent, gpu)
    return (round(sample.time * 1e3), *(_MISSING if amount is None else amount for amount in amounts))


def _sample(row: array[int]) -> Sample:
    milliseconds = row[0]
    cpu, memory, received, sent, gpu = (None if amount == _MISSING else amount for amount in row[1:])
    usage = Usage(cpu=cpu, memory=memory, received=received, sent=sent)
    return Sample(milliseconds / 1e3, 0.0, usage, None if gpu is None else gpu / 1e3)
