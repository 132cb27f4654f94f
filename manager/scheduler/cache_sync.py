"""Keeps the mirror equal to the rows: fills it when a term begins and on any doubt, and takes in what changed since."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Collection

import numpy as np

from retinue.manager.scheduler.core import snapshot
from retinue.manager.scheduler.core.cache import Holdings, Limit, Mirror
from retinue.manager.scheduler.core.pending_table import Row
from retinue.manager.session.core.ipam import SubnetPool
from retinue.manager.session.core.quota_subjects import Subject, subjects_of
from retinue.manager.store import changes
from retinue.manager.store.changes import Account, Changes
from retinue.manager.store.database import Database

_log = logging.getLogger(__name__)

# What holds sessions back is looked at again after this time, whether or not it was said to have changed.
_CLEARING_SECONDS = 1.0
_LOOKED_AT_AGAIN = 500


class Keeper:
    """The mirror of one term. Only the scheduler's event loop touches it."""

    def __init__(self, database: Database, term: int) -> None:
        self._database = database
        self._term = term
        self._mirror: Mirror | None = None
        self._doubtful = True
        self._now = 0.0
        self._heard = 0.0
        self._looked = 0.0
        self.pool = SubnetPool(())
        self.rotations: dict[str, str] = {}
        # Sessions whose placement is on its way to the database: not in the queue, and not put there.
        self._flying: set[uuid.UUID] = set()
        # To be read again the next time, and those that landed while something was being read.
        self._unsure: set[uuid.UUID] = set()
        self._landed: set[uuid.UUID] = set()
        # Rows that cannot be read, as they were logged.
        self._logged: dict[str, str] = {}

    @property
    def mirror(self) -> Mirror:
        """What is kept; `catch_up` comes first."""
        if self._mirror is None:
            raise RuntimeError("nothing was read yet")
        return self._mirror

    @property
    def now(self) -> float:
        """Seconds since 1970, by the database's clock."""
        return self._now + asyncio.get_running_loop().time() - self._heard

    def doubt(self) -> None:
        """It may not be equal to the rows any more, for instance because nobody knows whether a commit happened: it is read anew."""
        self._doubtful = True

    async def catch_up(self, *, whole: bool = False) -> set[str]:
        """Takes in everything that was committed before. Returns the groups in which something is different now, or due.

        With `whole`, what holds sessions back is looked at again in any case. Raises NotLeader, StoreUnavailable; both leave a doubt.
        """
        try:
            concerned = await (self._load() if self._doubtful else self._take(whole=whole))
        except BaseException:
            self.doubt()
            raise
        self._log_unreadable()
        return concerned

    def _log_unreadable(self) -> None:
        """Logs each row that cannot be read once."""
        unreadable = dict(self.mirror.unreadable)
        for name in unreadable.keys() - self._logged.keys():
            _log.error("%s cannot be read, and is left out: %s", name, unreadable[name])
        self._logged = unreadable

    def next_due(self) -> float | None:
        """Seconds until a session that is held back may be tried, or looked at again; None when there is none."""
        queue = self.mirror.queue
        due = [_CLEARING_SECONDS] if any(row["clearing"] for row in queue.particulars.values()) else []
        rows = list(queue.particulars)
        times = np.r_[queue.next_try[rows], queue.promise_until[rows]]
        later = times[times > self._now]
        if len(later):
            due.append(max(0.0, float(later.min()) - self.now) + 0.001)
        return min(due, default=None)

    def fly(self, ids: Collection[uuid.UUID], holdings: Holdings) -> None:
        """These sessions are being placed: they count as if they were."""
        for session_id in ids:
            self.mirror.queue.remove(session_id)
        self._flying.update(ids)
        self.mirror.count(holdings, 1)

    def land(self, ids: Collection[uuid.UUID]) -> None:
        """These placements were committed."""
        self._flying.difference_update(ids)
        self._landed.update(ids)

    def fall(self, ids: Collection[uuid.UUID], holdings: Holdings) -> None:
        """These placements were not committed: what they held is free, and the sessions are read again."""
        self._flying.difference_update(ids)
        self._landed.update(ids)
        self._unsure.update(ids)
        self.mirror.count(holdings, -1)

    def free_network(self, subnet: str, vni: int) -> None:
        """A subnet and a VNI are free again."""
        self.mirror.subnets.discard(subnet)
        self.mirror.vnis.discard(vni)
        self.pool.give_back(subnet)

    async def _load(self) -> set[str]:
        mirror = Mirror.empty(snapshot.offered, snapshot.needed)
        async with changes.stillness(self._database, self._term) as tx:
            mirror.groups = {row["name"]: row for row in await changes.read_groups(tx)}
            for row in await changes.read_agents(tx):
                mirror.put_agent(row)
            for row in await changes.read_quotas(tx):
                mirror.put_quota(*_quota(row))
            for claim in await changes.read_claims(tx):
                mirror.add_claim(*claim)
            for account, number in await changes.read_placed(tx):
                mirror.add_placed(account, number)
            for agent, number in await changes.read_kernels(tx):
                mirror.add_kernels(agent, number)
            networks = await changes.read_networks(tx)
            for group in mirror.groups:
                async for page in changes.read_all_waiting(tx, group):
                    await asyncio.to_thread(mirror.put_waiting, page)
            now = await changes.read_now(tx)
        mirror.subnets = {subnet for subnet, _ in networks}
        mirror.vnis = {vni for _, vni in networks if vni}
        mirror.widen()
        self.pool = SubnetPool(mirror.subnets)
        self.rotations = {name: row["rotation"] for name, row in mirror.groups.items()}
        self._flying.clear()
        self._unsure.clear()
        self._mirror, self._doubtful = mirror, False
        self._hear(now)
        return set(mirror.groups)

    async def _take(self, *, whole: bool) -> set[str]:
        mirror = self.mirror
        self._landed.clear()
        unsure, self._unsure = self._unsure, set()
        if whole or self.now - self._looked >= _CLEARING_SECONDS:
            self._looked = self.now
            rows = [number for number, row in mirror.queue.particulars.items() if row["clearing"]]
            unsure.update(mirror.queue.ids[rows[:_LOOKED_AT_AGAIN]].tolist())
        async with self._database.transaction() as tx:
            changed = await changes.take(tx, self._term)
            asked = list(changed.sessions | unsure)
            changed.sessions.clear()
            concerned = set[str]()
            # Taken in page by page: should the commit fail, everything is read anew.
            while len(asked) > changes.PAGE:
                page, asked = asked[-changes.PAGE :], asked[: -changes.PAGE]
                concerned |= self._take_sessions(page, await changes.read_waiting(tx, page))
            waiting, agents, groups, quotas = await changes.read_rest(tx, asked, changed)
        concerned |= self._take_sessions(asked, waiting)
        concerned |= self._take_facts(changed, agents, groups, quotas)
        concerned |= self._take_sums(changed)
        before = self._now
        self._hear(changed.now)
        return (concerned | self._due(before)) & mirror.groups.keys()

    def _take_sessions(self, asked: Collection[uuid.UUID], waiting: Collection[Row]) -> set[str]:
        """Sessions on their way, or that got there while these were read, are asked about once more afterwards."""
        queue, later = self.mirror.queue, self._flying | self._landed
        self._unsure |= later.intersection(asked)
        concerned = self.mirror.put_waiting(row for row in waiting if row["id"] not in later)
        for session_id in set(asked) - {row["id"] for row in waiting}:
            if session_id not in later and (group := queue.remove(session_id)) is not None:
                concerned.add(group)
        return concerned

    def _take_facts(
        self, changed: Changes, agents: Collection[Row], groups: Collection[Row], quotas: Collection[Row]
    ) -> set[str]:
        mirror, concerned = self.mirror, set(changed.groups)
        for agent_id in changed.agents - {row["id"] for row in agents}:
            concerned |= mirror.agents.forget(agent_id)
        for row in agents:
            concerned |= mirror.put_agent(row)
        for name in changed.groups - {row["name"] for row in groups}:
            mirror.groups.pop(name, None)
        for row in groups:
            mirror.groups[row["name"]] = row
            self.rotations.setdefault(row["name"], row["rotation"])
        limits = dict(_quota(row) for row in quotas)
        for subject in changed.quotas:
            concerned |= mirror.put_quota(subject, limits.get(subject))
        return concerned

    def _take_sums(self, changed: Changes) -> set[str]:
        mirror, concerned = self.mirror, set[str]()
        accounts: set[Account] = set()
        for agent, account, slot, amount in changed.claims:
            mirror.add_claim(agent, account, slot, amount)
            accounts.add(account)
        for account, number in changed.placed:
            mirror.add_placed(account, number)
            accounts.add(account)
        for agent, number in changed.kernels:
            concerned.add(mirror.add_kernels(agent, number))
        for subnet, vni in changed.freed:
            self.free_network(subnet, vni)
        for subnet, vni in changed.taken:
            mirror.subnets.add(subnet)
            mirror.vnis.add(vni)
            self.pool.hold(subnet)
        # What an owner lets go of in one group may make room under a quota for what waits in another.
        for account in accounts:
            concerned.add(account[0])
            for subject in subjects_of(account):
                if subject in mirror.quotas:
                    concerned |= {mirror.accounts.names[row][0] for row in mirror.accounts.of_subject[subject]}
        return concerned

    def _hear(self, now: float) -> None:
        self._now, self._heard = now, asyncio.get_running_loop().time()

    def _due(self, before: float) -> set[str]:
        queue = self.mirror.queue
        rows = np.array(list(queue.particulars), np.int64)
        times = np.column_stack((queue.next_try[rows], queue.promise_until[rows]))
        rows = rows[((times > before) & (times <= self._now)).any(axis=1)]
        return {queue.groups[number] for number in np.unique(queue.group[rows]).tolist()}


def _quota(row: Row) -> tuple[Subject, Limit]:
    return (row["kind"], row["name"]), Limit.of(row)
