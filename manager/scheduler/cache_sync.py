"""Keeps the scheduler cache equal to the rows: reads everything when a term begins or the cache is invalid,
then applies changes.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING

import numpy as np

from retinue.manager.domain.session.ipam import POOL, VXLAN_PORT, SubnetPool
from retinue.manager.domain.session.quota_subjects import Account, Subject, subjects_of
from retinue.manager.domain.session.runtime_features import needed, offered
from retinue.manager.scheduler.core.cache import Cache, Holdings, Limit
from retinue.manager.scheduler.core.snapshot import PastUsage
from retinue.manager.store.placement import changes, usage

if TYPE_CHECKING:
    import uuid
    from collections.abc import Collection, Iterable
    from ipaddress import IPv4Network

    from retinue.manager.domain.scheduling.records import AgentRecord, GroupRecord, PendingSession, QuotaRecord
    from retinue.manager.scheduling.strategies import Settings
    from retinue.manager.store.placement.changes import Changes
    from retinue.manager.store.postgres.database import Database

_log = logging.getLogger(__name__)

# Sessions whose earlier placement is being cleared away are read again after this time, marked as changed or not.
USAGE_SECONDS = 10.0
_RECHECK_SECONDS = 1.0
_MAX_RECHECKED = 500


class CacheSync:
    """Synchronises the cache of one term. Only the scheduler's event loop touches it."""

    def __init__(
        self, database: Database, term: int, subnets: IPv4Network = POOL, vxlan_port: int = VXLAN_PORT
    ) -> None:
        self._database = database
        self._term = term
        self._cache: Cache | None = None
        self._invalid = True
        self._now = 0.0
        self._clock_read = 0.0
        self._rechecked = 0.0
        self._subnets = subnets
        self.vxlan_port = vxlan_port
        self.pool = SubnetPool((), subnets)
        self.round_robin_cursors: dict[str, str] = {}
        # Sessions whose placement is being committed: they are not in the queue, and are not put there.
        self._assumed: set[uuid.UUID] = set()
        # To be read again by the next sync, and those that were confirmed or forgotten while one was reading.
        self._to_reread: set[uuid.UUID] = set()
        self._settled: set[uuid.UUID] = set()
        # Unreadable rows, as they were logged.
        self._logged: dict[str, str] = {}

    @property
    def cache(self) -> Cache:
        """Returns the cache. Raises RuntimeError before the first `catch_up`."""
        if self._cache is None:
            raise RuntimeError("nothing was read yet")
        return self._cache

    @property
    def now(self) -> float:
        """Returns the time in seconds since 1970, by the database's clock."""
        return self._now + asyncio.get_running_loop().time() - self._clock_read

    def invalidate(self) -> None:
        """Has the next `catch_up` read everything again, as when the outcome of a commit is unknown."""
        self._invalid = True

    async def is_behind(self) -> bool:
        """Returns whether `catch_up` has anything to do, but for what becomes due; writes nothing.
        Raises StoreUnavailable.
        """
        if self._invalid or self._to_reread:
            return True
        async with self._database.transaction() as tx:
            return await changes.any_marks(tx)

    async def catch_up(self) -> set[str]:
        """Applies everything that was committed before. Returns the groups in which something changed or became due.

        Raises NotLeader, StoreUnavailable; both invalidate the cache.
        """
        try:
            affected = await (self._read_everything() if self._invalid else self._apply_changes())
        except BaseException:
            self.invalidate()
            raise
        self._log_unreadable()
        return affected

    def _log_unreadable(self) -> None:
        """Logs each unreadable row once."""
        unreadable = dict(self.cache.unreadable)
        for name in unreadable.keys() - self._logged.keys():
            _log.error("%s cannot be read and is left out: %s", name, unreadable[name])
        self._logged = unreadable

    def next_due(self) -> float | None:
        """Returns the seconds until a session that is held back may be tried or has to be read again;
        None when there is none.
        """
        queue = self.cache.queue
        rechecked = bool(self._to_reread) or any(row.clearing for row in queue.constrained.values())
        due = [_RECHECK_SECONDS] if rechecked else []
        rows = list(queue.constrained)
        times = np.r_[queue.next_try[rows], queue.nominated_until[rows]]
        later = times[times > self._now]
        if len(later):
            due.append(max(0.0, float(later.min()) - self.now) + 0.001)
        return min(due, default=None)

    def assume(self, ids: Collection[uuid.UUID], holdings: Holdings) -> None:
        """Counts placements as if they were committed already, and takes their sessions off the queue."""
        for session_id in ids:
            self.cache.queue.remove(session_id)
        self._assumed.update(ids)
        self.cache.count(holdings, 1)

    def confirm(self, ids: Collection[uuid.UUID]) -> None:
        """Ends the assumption of placements that were committed."""
        self._assumed.difference_update(ids)
        self._settled.update(ids)

    def forget(self, ids: Collection[uuid.UUID], holdings: Holdings) -> None:
        """Undoes placements that were not committed: frees what they held, and has their sessions read again."""
        self._assumed.difference_update(ids)
        self._settled.update(ids)
        self._to_reread.update(ids)
        self.cache.count(holdings, -1)

    def free_network(self, subnet: str, vni: int) -> None:
        """Returns a subnet and a VNI to the free ones."""
        self.cache.subnets.discard(subnet)
        self.cache.vnis.discard(vni)
        self.pool.give_back(subnet)

    async def _read_everything(self) -> set[str]:
        cache = Cache.empty(offered, needed)
        async with changes.consistent_snapshot(self._database, self._term) as tx:
            cache.groups = {row.name: row for row in await changes.read_groups(tx)}
            for row in await changes.read_agents(tx):
                cache.put_agent(row)
            for quota in await changes.read_quotas(tx):
                cache.put_quota(*_quota(quota))
            for claim in await changes.read_claims(tx):
                cache.add_claim(*claim)
            for account, number in await changes.read_placed(tx):
                cache.add_placed(account, number)
            for agent, number in await changes.read_kernels(tx):
                cache.add_kernels(agent, number)
            networks = await changes.read_networks(tx)
            for group in cache.groups:
                async for page in changes.read_all_waiting(tx, group):
                    await asyncio.to_thread(cache.put_waiting, page)
            now = await changes.read_now(tx)
        cache.subnets = {subnet for subnet, _ in networks}
        cache.vnis = {vni for _, vni in networks if vni}
        cache.widen()
        self.pool = SubnetPool(cache.subnets, self._subnets)
        self.round_robin_cursors = {name: row.round_robin_cursor for name, row in cache.groups.items()}
        self._assumed.clear()
        self._to_reread.clear()
        self._cache, self._invalid = cache, False
        self._set_clock(now)
        return set(cache.groups)

    async def _apply_changes(self) -> set[str]:
        cache = self.cache
        self._settled.clear()
        reread, self._to_reread = self._to_reread, set()
        if self.now - self._rechecked >= _RECHECK_SECONDS:
            self._rechecked = self.now
            rows = [number for number, row in cache.queue.constrained.items() if row.clearing]
            reread.update(cache.queue.ids[rows[:_MAX_RECHECKED]].tolist())
        async with self._database.transaction() as tx:
            changed = await changes.drain_changes(tx, self._term)
            asked = list(changed.sessions | reread)
            changed.sessions.clear()
            affected = set[str]()
            # Applied page by page: should the commit fail, everything is read again.
            while len(asked) > changes.PAGE:
                page, asked = asked[-changes.PAGE :], asked[: -changes.PAGE]
                affected |= self._apply_sessions(page, await changes.read_waiting(tx, page))
            read = await changes.read_rest(tx, asked, changed)
        affected |= self._apply_sessions(asked, read.waiting)
        affected |= self._apply_objects(changed, read.agents, read.groups, read.quotas)
        affected |= self._apply_sums(changed)
        before = self._now
        self._set_clock(changed.now)
        return (affected | self._due(before)) & cache.groups.keys()

    def _apply_sessions(self, asked: Collection[uuid.UUID], waiting: Collection[PendingSession]) -> set[str]:
        """Applies sessions as read. Those that are assumed, or were until this read,
        are read once more by the next sync.
        """
        queue, later = self.cache.queue, self._assumed | self._settled
        self._to_reread |= later.intersection(asked)
        affected = self.cache.put_waiting(row for row in waiting if row.id not in later)
        for session_id in set(asked) - {row.id for row in waiting}:
            if session_id not in later and (group := queue.remove(session_id)) is not None:
                affected.add(group)
        return affected

    def _apply_objects(
        self,
        changed: Changes,
        agents: Collection[AgentRecord],
        groups: Collection[GroupRecord],
        quotas: Collection[QuotaRecord],
    ) -> set[str]:
        cache, affected = self.cache, set(changed.groups)
        for agent_id in changed.agents - {row.id for row in agents}:
            affected |= cache.agents.remove(agent_id)
        for row in agents:
            affected |= cache.put_agent(row)
        for name in changed.groups - {row.name for row in groups}:
            cache.groups.pop(name, None)
        for group in groups:
            cache.groups[group.name] = group
            self.round_robin_cursors.setdefault(group.name, group.round_robin_cursor)
        limits = dict(_quota(row) for row in quotas)
        for subject in changed.quotas:
            affected |= cache.put_quota(subject, limits.get(subject))
        return affected

    def _apply_sums(self, changed: Changes) -> set[str]:
        cache, affected = self.cache, set[str]()
        accounts: set[Account] = set()
        for agent, account, slot, amount in changed.claims:
            cache.add_claim(agent, account, slot, amount)
            accounts.add(account)
        for account, number in changed.placed:
            cache.add_placed(account, number)
            accounts.add(account)
        for agent, number in changed.kernels:
            affected.add(cache.add_kernels(agent, number))
        for subnet, vni in changed.freed:
            self.free_network(subnet, vni)
        for subnet, vni in changed.taken:
            cache.subnets.add(subnet)
            cache.vnis.add(vni)
            self.pool.hold(subnet)
        # What an owner releases in one group may make room under a quota for what waits in another.
        for account in accounts:
            affected.add(account[0])
            for subject in subjects_of(account):
                if subject in cache.quotas:
                    affected |= {cache.accounts.names[row][0] for row in cache.accounts.of_subject[subject]}
        return affected

    def _set_clock(self, now: float) -> None:
        self._now, self._clock_read = now, asyncio.get_running_loop().time()

    def _due(self, before: float) -> set[str]:
        queue = self.cache.queue
        rows = np.array(list(queue.constrained), np.int64)
        times = np.column_stack((queue.next_try[rows], queue.nominated_until[rows]))
        rows = rows[((times > before) & (times <= self._now)).any(axis=1)]
        return {queue.groups[number] for number in np.unique(queue.group[rows]).tolist()}


def _quota(row: QuotaRecord) -> tuple[Subject, Limit]:
    return (row.kind, row.name), Limit.of(row)


class UsageReader:
    """Reads the past usage of the owners of one group, and keeps it: it changes slowly against half-lives of days.

    Passes in quick succession need not read all live claims of their owners again.
    """

    def __init__(self, database: Database, group: str) -> None:
        self._database = database
        self._group = group
        # As last read, when, under which settings, and of whom.
        self._usage: dict[str, dict[str, float]] = {}
        self._read = -math.inf
        self._settings = (0, 0)
        self._owners: frozenset[str] = frozenset()

    async def read(self, owners: Iterable[str], settings: Settings, now: float) -> PastUsage:
        """Returns the usage of `owners`, at most USAGE_SECONDS old at `now`, in seconds of any clock.
        Raises StoreUnavailable.
        """
        wanted, asked = frozenset(owners), (settings.half_life_days, settings.look_back_days)
        if now - self._read >= USAGE_SECONDS or asked != self._settings or not wanted <= self._owners:
            async with self._database.transaction() as tx:
                found = await usage.read_decayed(
                    tx,
                    self._group,
                    sorted(wanted),
                    half_life_days=settings.half_life_days,
                    look_back_days=settings.look_back_days,
                )
            self._usage, self._read, self._settings, self._owners = found, now, asked, wanted
        return PastUsage(self._usage, settings.look_back_days, settings.usage_weights)
