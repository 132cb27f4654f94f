"""The scheduler's shell: learns what has changed, and has the groups concerned plan and commit a pass each."""

from __future__ import annotations

import asyncio

from retinue.manager.scheduler.cache_sync import Keeper
from retinue.manager.scheduler.external_strategies import ExternalStrategies
from retinue.manager.scheduler.group_loop import Committed, GroupPasses
from retinue.manager.store.database import Database

# A wake-up that was lost costs so much, and groups in which time alone may change something have a pass so often.
_LONGEST_SLEEP_SECONDS = 1.0


class Scheduler:
    """Runs passes whenever something may have changed. `committed` is told which agents have something new to do."""

    def __init__(self, database: Database, term: int, committed: Committed) -> None:
        self._database = database
        self._term = term
        self._committed = committed
        self._changed = asyncio.Event()
        self._keeper = Keeper(database, term)
        self._strategies = ExternalStrategies()
        self._catching_up = asyncio.Lock()
        self._passes: dict[str, GroupPasses] = {}

    def wake(self) -> None:
        """Sessions, capacity, quotas or policies may have changed."""
        self._changed.set()

    async def run(self) -> None:
        """Passes until cancelled. Groups do not wait for each other. Raises StoreUnavailable and NotLeader, alone or as a group."""
        self._keeper.doubt()
        try:
            await self._run()
        finally:
            await self._strategies.close()

    async def run_once(self) -> bool:
        """One pass of every group that has something waiting, whole; returns whether there was any."""
        await self._catch_up(whole=True)
        queue = self._keeper.mirror.queue
        groups = [group for group in sorted(self._keeper.mirror.groups) if len(queue.rows_of(group))]
        for group in groups:
            await self._of(group).once()
        return bool(groups)

    async def _run(self) -> None:
        running: set[str] = set()
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._changed.clear()
                await self._catch_up()
                for group, passes in self._passes.items():
                    if group not in running:
                        running.add(group)
                        tasks.create_task(passes.run(), name=f"passes of {group}")
                restless = [passes for passes in self._passes.values() if passes.restless]
                due = self._keeper.next_due()
                try:
                    async with asyncio.timeout(min(_LONGEST_SLEEP_SECONDS, due or _LONGEST_SLEEP_SECONDS)):
                        await self._changed.wait()
                except TimeoutError:
                    for passes in restless:
                        passes.stir()

    async def _catch_up(self, *, whole: bool = False) -> None:
        """Has the keeper take in what is new, and stirs the groups concerned."""
        async with self._catching_up:
            for group in await self._keeper.catch_up(whole=whole):
                self._of(group).stir()

    def _of(self, group: str) -> GroupPasses:
        if group not in self._passes:
            self._passes[group] = GroupPasses(
                self._database,
                self._term,
                self._keeper,
                group,
                self._committed,
                self.wake,
                self._catch_up,
                self._strategies,
            )
        return self._passes[group]
