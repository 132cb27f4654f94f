"""Runs the scheduler: synchronises the cache with what has changed, and wakes the loops of the groups affected."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from retinue.manager.domain.debounce import Debounce
from retinue.manager.domain.session.ipam import POOL, VXLAN_PORT
from retinue.manager.scheduler.cache_sync import CacheSync
from retinue.manager.scheduler.external.external_strategies import ExternalStrategies
from retinue.manager.scheduler.group_loop import Committed, GroupLoop
from retinue.manager.store.postgres.writes import QUIET_SECONDS
from retinue.rpc.cancellation import cancellable

if TYPE_CHECKING:
    from ipaddress import IPv4Network

    from retinue.manager.store.postgres.database import Database

# A wake-up that was lost costs so much; groups in which time alone may change a decision have a pass so often.
_PAUSE_SECONDS = 1.0


class Scheduler:
    """Runs passes whenever something may have changed. `committed` is called with the
    agents that have something new to do.
    """

    def __init__(
        self,
        database: Database,
        term: int,
        committed: Committed,
        subnets: IPv4Network = POOL,
        vxlan_port: int = VXLAN_PORT,
    ) -> None:
        """New networks of sessions are in `subnets`, and have `vxlan_port`."""
        self._database = database
        self._term = term
        self._committed = committed
        self._changed = asyncio.Event()
        self._is_asked = True
        self._cache_sync = CacheSync(database, term, subnets, vxlan_port)
        self._strategies = ExternalStrategies()
        self._catching_up = asyncio.Lock()
        self._passes: dict[str, GroupLoop] = {}

    def wake(self) -> None:
        """Says that there may be work: sessions, capacity, quotas or policies may have changed."""
        self._is_asked = True
        self._changed.set()

    async def run(self) -> None:
        """Runs passes until cancelled. Groups do not wait for each other.
        Raises StoreUnavailable and NotLeader, alone or as a group.
        """
        self._cache_sync.invalidate()
        try:
            await self._run()
        finally:
            await self._strategies.close()

    async def _run(self) -> None:
        running: set[str] = set()
        debounce, writes = Debounce(), self._database.writes
        due: float | None = None
        async with asyncio.TaskGroup() as tasks:
            while True:
                await asyncio.sleep(debounce.begin(asyncio.get_running_loop().time()))
                self._changed.clear()
                asked, self._is_asked, seen = self._is_asked, False, writes.number
                # What nobody has asked for is looked for without writing: that would be looked for, too.
                if asked or due is not None or await self._cache_sync.is_behind():
                    await self._catch_up()
                for group, passes in self._passes.items():
                    if group not in running:
                        running.add(group)
                        tasks.create_task(cancellable(passes.run), name=f"passes of {group}")
                periodic = [passes for passes in self._passes.values() if passes.needs_periodic_pass]
                due = self._cache_sync.next_due()
                await writes.rest(
                    self._changed,
                    seen,
                    min(_PAUSE_SECONDS, due or _PAUSE_SECONDS),
                    _PAUSE_SECONDS if periodic else min(QUIET_SECONDS, due or QUIET_SECONDS),
                )
                if not self._is_asked:
                    for passes in periodic:
                        passes.notify()

    async def _catch_up(self) -> None:
        """Synchronises the cache, and notifies the groups affected."""
        async with self._catching_up:
            for group in await self._cache_sync.catch_up():
                self._of(group).notify()

    def _of(self, group: str) -> GroupLoop:
        if group not in self._passes:
            self._passes[group] = GroupLoop(
                self._database,
                self._term,
                self._cache_sync,
                group,
                self._committed,
                self.wake,
                self._catch_up,
                self._strategies,
            )
        return self._passes[group]
