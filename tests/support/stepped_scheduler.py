"""A scheduler whose passes tests run one by one."""

from __future__ import annotations

from functools import partial

from retinue.manager.scheduler.cache_sync import UsageReader
from retinue.manager.scheduler.loop import Scheduler


class SteppedScheduler(Scheduler):
    """The parts of the scheduler, without the tasks and timers that drive them in a manager."""

    async def catch_up(self) -> None:
        """Applies everything that was committed before, and reads sessions that are being cleared away again."""
        self._cache_sync._rechecked = float("-inf")  # noqa: SLF001  # otherwise only every few seconds
        await self._catch_up()

    async def run_once(self, now: float | None = None) -> bool:
        """Runs one whole pass of every group in which sessions wait; returns whether there was any.

        Words of reasons are written each time; at a time `now`, in seconds, only when they are due then.
        """
        await self.catch_up()
        queue = self._cache_sync.cache.queue
        groups = [group for group in sorted(self._cache_sync.cache.groups) if len(queue.rows_of(group))]
        for group in groups:
            loop = self._of(group)
            loop._usage = UsageReader(self._database, group)  # noqa: SLF001  # otherwise what was read a moment ago
            if (outcome := await loop.plan()) is not None:
                await loop.commit_outcome(outcome)
            if now is None:
                queue.written_at[:] = 0.0
            else:
                loop._reasons._clock = partial(float, now)  # noqa: SLF001  # otherwise that of the machine
            while await loop._reasons.write():  # noqa: SLF001  # otherwise a task of the loop
                pass
            await loop._reasons.refresh()  # noqa: SLF001
        return bool(groups)
