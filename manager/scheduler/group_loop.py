"""The passes of one group: each is planned from the cache while the one before is still being committed.

A placement counts in the cache from the moment it was decided (optimistic placement, as in kube-scheduler):

    plan ──assume──> counted in the cache ──commit──┬─ committed ──confirm──> in the rows too
                                                    └─ refused ───forget───> free again;
                                                    the session is read and tried again

What the next pass sees as used may come free again, when the commit finds that a session does not wait any more or that
an agent has no room; it never sees as free what is used. So a pass needs no repair when the one before loses something:
what it decided holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from prometheus_client import Counter, Histogram

from retinue.manager.dispatch.desired_state import Affected
from retinue.manager.domain.debounce import Debounce
from retinue.manager.domain.reasons import SessionReason
from retinue.manager.domain.scheduling.policy import PolicyError, Tier
from retinue.manager.domain.session.ipam import AddressSpaceExhaustedError, choose_vni, inner_mtu, kernel_address
from retinue.manager.domain.session.quota_subjects import subjects_of
from retinue.manager.scheduler.cache_sync import CacheSync, UsageReader
from retinue.manager.scheduler.core.cache import Holdings, Limit
from retinue.manager.scheduler.core.snapshot import (
    Endpoint,
    PastUsage,
    Snapshot,
    build_running,
    endpoints_of,
    snapshot_of,
)
from retinue.manager.scheduler.pass_plans import Outcome, Plan, holdings_of, is_small, kind, preempt
from retinue.manager.scheduler.reason_writer import PassReasons, ReasonWriter, find_reasons
from retinue.manager.scheduling.columns import Explanation, Integers, Running
from retinue.manager.scheduling.scheduling_pass import Decisions, run_pass
from retinue.manager.scheduling.strategies import FAIR_SHARE, OFF, Settings, validate_policy
from retinue.manager.store.leadership.leadership import NotLeader
from retinue.manager.store.placement import changes, placements
from retinue.manager.store.placement.placements import Network
from retinue.manager.store.postgres.database import Database, StoreConflict, StoreUnavailable, Transaction
from retinue.manager.supervision import PartInterruptedError
from retinue.rpc.cancellation import cancellable

if TYPE_CHECKING:
    from retinue.manager.scheduler.external.external_strategies import ExternalStrategies

_log = logging.getLogger(__name__)

_PASS_SECONDS = Histogram("retinue_scheduling_pass_seconds", "Seconds of decisions in a pass.", ["resource_group"])
_PLACED = Counter("retinue_scheduled_sessions", "Sessions whose placement was committed.", ["resource_group"])

# While passes follow each other, the reasons that they find are written so often.
_REASONS_SECONDS = 0.25

# Seconds that a group rests after a pass that failed.
_MIN_BACKOFF, _MAX_BACKOFF = 1.0, 60.0

Committed: TypeAlias = Callable[[Affected], None]


class GroupLoop:
    """Plans and commits the passes of one group."""

    def __init__(  # noqa: PLR0917  # a part of the scheduler
        self,
        database: Database,
        term: int,
        cache_sync: CacheSync,
        group: str,
        committed: Committed,
        wake: Callable[[], None],
        catch_up: Callable[[], Awaitable[None]],
        strategies: ExternalStrategies,
    ) -> None:
        """`wake` has the cache synchronised soon, `catch_up` does it at once."""
        self._wake = wake
        self._catch_up = catch_up
        self._strategies = strategies
        self._database = database
        self._term = term
        self._cache_sync = cache_sync
        self._group = group
        self._committed = committed
        self._notified = asyncio.Event()
        self._commit_task: asyncio.Task[None] | None = None
        self._new_reasons = asyncio.Event()
        self._reasons = ReasonWriter(database, term, cache_sync, group)
        # The session from which on reasons are worked out, when they are too many for one pass.
        self._next_explained = 0
        self._random = random.SystemRandom()
        # As committed last; None when that is unknown.
        self._written_cursor: str | None = None
        self._usage = UsageReader(database, group)
        # Seconds until the next pass after one that failed; 0 after one that did not.
        self._backoff = 0.0

    def notify(self) -> None:
        """Says that there may be work: something in the group has changed."""
        self._notified.set()

    async def run(self) -> None:
        """Runs passes until cancelled. An error of this group alone makes it back off,
        and costs other groups a moment at most.
        """
        self._commit_task = None
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(cancellable(self._write_reasons), name=f"pending reasons of {self._group}")
            while True:
                await self._notified.wait()
                await asyncio.sleep(self._backoff)
                self._notified.clear()
                if self._commit_task is not None and self.needs_periodic_pass:
                    # Preemptions have to be known first, lest more sessions are preempted for the same winner.
                    await self._commit_task
                    await self._catch_up()
                try:
                    outcome = await self.plan()
                except (StoreUnavailable, NotLeader):
                    raise
                except Exception as error:  # noqa: BLE001  # logged; the other groups continue
                    self._fail(error)
                    self.notify()
                    continue
                self._new_reasons.set()
                if outcome is not None and (outcome.plan is not None or outcome.preempts):
                    if self._commit_task is not None:
                        await self._commit_task
                    self._commit_task = tasks.create_task(
                        cancellable(self._try_to_commit_outcome, outcome), name=f"commit of {self._group}"
                    )

    def _fail(self, error: Exception) -> None:
        self._backoff = min(max(_MIN_BACKOFF, 2 * self._backoff), _MAX_BACKOFF)
        _log.error(
            "group %s cannot be scheduled now; its next pass is in %.0f s", self._group, self._backoff, exc_info=error
        )

    async def _try_to_commit_outcome(self, outcome: Outcome) -> None:
        try:
            await self.commit_outcome(outcome)
        except (StoreUnavailable, NotLeader):
            raise
        except Exception as error:
            self._fail(error)
            # The cache may be wrong: everything is read again, which other groups wait for, and this one for longer.
            raise PartInterruptedError(f"a commit of group {self._group} failed") from error
        self._backoff = 0.0

    @property
    def needs_periodic_pass(self) -> bool:
        """Returns whether time alone may change what a pass decides: by reservations for aged sessions,
        or minimum run times of victims.
        """
        row = self._cache_sync.cache.groups.get(self._group)
        if row is None or not len(self._cache_sync.cache.queue.rows_of(self._group)):
            return False
        try:
            settings = validate_policy(row.policy())
        except PolicyError:
            # Its pass says so.
            return False
        return settings.reserves or settings.preemption != OFF

    async def plan(self) -> Outcome | None:
        """Plans a pass and assumes its placements. Returns None when nothing waits."""
        row = self._cache_sync.cache.groups.get(self._group)
        if row is None:
            return None
        policy = row.policy()
        settings = validate_policy(policy)
        past = await self._past_usage(settings)
        replicas = await self._replicas()
        snapshot = snapshot_of(self._cache_sync.cache, self._group, self._cache_sync.now, past, replicas=replicas)
        if not len(snapshot.ids):
            return None
        running = await self._running(settings, snapshot)
        advice = await self._strategies.ask(self._group, settings, snapshot.agents, snapshot.owners, snapshot.queue)
        round_robin_cursor = self._cache_sync.round_robin_cursors[self._group]

        def decide() -> tuple[Decisions, PassReasons]:
            decisions = run_pass(
                snapshot.agents,
                snapshot.owners,
                snapshot.queue,
                policy,
                round_robin_cursor,
                running=running,
                advice=advice,
            )
            return decisions, find_reasons(snapshot, decisions, self._next_explained)

        with _PASS_SECONDS.labels(self._group).time():
            decisions, reasons = decide() if is_small(settings, snapshot, running) else await asyncio.to_thread(decide)
        self._next_explained = reasons.next_explained
        for failure in decisions.failures:
            _log.warning("group %s: %s", self._group, failure)
        plan, no_subnet = self._plan_of(snapshot, decisions)
        self._reasons.collect(snapshot, reasons)
        for session_id, why in no_subnet.items():
            self._reasons.note(session_id, why)
        return Outcome(plan, settings, snapshot, running, decisions)

    async def commit_outcome(self, outcome: Outcome) -> None:
        """Commits the placements of a pass, then its preemptions."""
        if outcome.plan is not None:
            await self.commit(outcome.plan)
        if outcome.preempts and outcome.running is not None:
            affected = await preempt(
                self._database, self._term, outcome.settings, outcome.snapshot, outcome.running, outcome.decisions
            )
            self._committed(affected)
            self._wake()

    async def commit(self, plan: Plan) -> None:
        """Commits the placements whose session still waits, whose agents still have room and whose quotas were not
        lowered; forgets the others.
        """
        try:
            kept = await self._write(plan)
        except StoreConflict:
            # It lost against another transaction and wrote nothing.
            self._written_cursor = None
            kept = np.zeros(0, np.int64)
        except BaseException:
            # The outcome of the commit is unknown.
            self._cache_sync.invalidate()
            raise
        lost = np.setdiff1d(np.arange(len(plan.ids)), kept)
        _PLACED.labels(self._group).inc(len(kept))
        self._cache_sync.confirm([plan.ids[session] for session in kept.tolist()])
        if len(lost):
            self._cache_sync.forget([plan.ids[session] for session in lost.tolist()], plan.holdings.part(lost))
            for session in lost.tolist():
                if (network := plan.networks.get(plan.ids[session])) is not None:
                    self._cache_sync.free_network(network.subnet, network.vni)
            # What was forgotten is tried again.
            self._wake()
        self._committed(self._affected(plan, kept))

    async def _past_usage(self, settings: Settings) -> PastUsage | None:
        if settings.session_strategy != FAIR_SHARE:
            return None
        cache = self._cache_sync.cache
        accounts = np.unique(cache.queue.account[cache.queue.rows_of(self._group)]).tolist()
        owners = {cache.accounts.names[account][1] for account in accounts}
        return await self._usage.read(owners, settings, self._cache_sync.now) if owners else None

    async def _running(self, settings: Settings, snapshot: Snapshot) -> Running | None:
        if not settings.reserves and settings.preemption == OFF:
            return None
        async with self._database.transaction() as tx:
            rows = await placements.read_running(
                tx,
                self._group,
                min_runtime=settings.preemption_min_runtime_seconds,
                finishing=settings.reserves,
            )
        return build_running(rows, snapshot.agents)

    async def _replicas(self) -> dict[Endpoint, dict[str, int]]:
        endpoints = endpoints_of(self._cache_sync.cache, self._group)
        if not endpoints:
            return {}
        if self._commit_task is not None:
            # Replicas that are being placed have to be counted.
            await self._commit_task
        async with self._database.transaction() as tx:
            return await changes.read_replicas(tx, endpoints)

    def _plan_of(self, snapshot: Snapshot, decisions: Decisions) -> tuple[Plan | None, dict[uuid.UUID, Explanation]]:
        """Assumes the placements of a pass that still hold, and returns them as a plan, None when there are none;
        and why sessions get no network.
        """
        cache_sync, cache = self._cache_sync, self._cache_sync.cache
        sessions = decisions.sessions
        sessions = sessions[[session_id in cache.queue.row_of for session_id in snapshot.ids[sessions].tolist()]]
        holdings = holdings_of(snapshot, decisions, sessions, cache.agents.used.shape[1])
        # Another group's pass may have used up what this one saw as left.
        over = cache.over_quota(holdings, cache.quotas, counted=False)
        if over:
            kept = np.setdiff1d(np.arange(len(sessions)), list(over))
            sessions, holdings = sessions[kept], holdings.part(kept)
        ids: list[uuid.UUID] = snapshot.ids[sessions].tolist()
        networks, no_address = self._networks(ids, holdings)
        why = {ids[session]: explanation for session, explanation in no_address.items()}
        if no_address:
            kept = np.setdiff1d(np.arange(len(sessions)), list(no_address))
            sessions, holdings = sessions[kept], holdings.part(kept)
            ids = snapshot.ids[sessions].tolist()
        if not ids:
            return None, why
        tries = [int(cache.queue.tries[cache.queue.row_of[session_id]]) + 1 for session_id in ids]
        cache_sync.assume(ids, holdings)
        cache_sync.round_robin_cursors[self._group] = decisions.round_robin_cursor
        return Plan(self._group, ids, holdings, tries, networks, decisions.round_robin_cursor), why

    def _networks(
        self, ids: list[uuid.UUID], holdings: Holdings
    ) -> tuple[dict[uuid.UUID, Network], dict[int, Explanation]]:
        """Reserves networks for cluster sessions. Returns them, and by position why sessions get none."""
        cache_sync, cache = self._cache_sync, self._cache_sync.cache
        networks, no_address = dict[uuid.UUID, Network](), dict[int, Explanation]()
        for session in np.flatnonzero(np.diff(holdings.offsets) > 1).tolist():
            rows = holdings.agents[holdings.offsets[session] : holdings.offsets[session + 1]].tolist()
            sites = sorted(set(rows), key=cache.agents.ids.__getitem__)
            try:
                reachable = {network for row in sites for network in cache.agents.reachable_networks[row]}
                subnet = cache_sync.pool.take(len(rows), reachable)
                vni = choose_vni(cache.vnis, self._random) if len(sites) > 1 else 0
            except AddressSpaceExhaustedError as error:
                no_address[session] = Explanation(Tier.CONFIGURATION, SessionReason.NO_SUBNET, str(error))
                continue
            cache.subnets.add(subnet)
            if vni:
                cache.vnis.add(vni)
            mtu = inner_mtu([cache.agents.underlays[row] for row in sites], vxlan=bool(vni))
            agents, port = [cache.agents.ids[row] for row in sites], cache_sync.vxlan_port
            networks[ids[session]] = Network(ids[session], vni, subnet, mtu, agents, port)
        return networks, no_address

    async def _write(self, plan: Plan) -> Integers:
        """Writes a plan in one transaction; returns the positions of the sessions that it placed."""
        cache = self._cache_sync.cache
        holdings = plan.holdings
        accounts = [cache.accounts.names[account] for account in holdings.accounts.tolist()]
        subjects = {subject for account in set(accounts) for subject in subjects_of(account)}
        async with self._database.transaction() as tx:
            held = await placements.lock(tx, self._term, subjects, plan.ids, self._requested(holdings))
            limits = {(row.kind, row.name): Limit.of(row) for row in held.quotas}
            refused = {session for session, session_id in enumerate(plan.ids) if session_id in held.lost}
            refused |= self._without_capacity(holdings, held.short, refused)
            kept = np.array([session for session in range(len(plan.ids)) if session not in refused], np.int64)
            # A quota may have been lowered since the pass.
            over = cache.over_quota(holdings.part(kept), limits, counted=True)
            kept = np.delete(kept, list(over))
            if len(kept):
                await self._write_kept(tx, plan, kept, [accounts[session][1] for session in kept.tolist()])
        return kept

    async def _write_kept(self, tx: Transaction, plan: Plan, kept: Integers, owners: list[str]) -> None:
        ids = [plan.ids[session] for session in kept.tolist()]
        networks = [plan.networks[session_id] for session_id in ids if session_id in plan.networks]
        holdings = plan.holdings.part(kept)
        sizes = np.diff(holdings.offsets)
        placed = placements.Sessions(
            group=plan.group,
            ids=ids,
            owners=owners,
            sizes=sizes.tolist(),
            networks=[kind(plan.networks.get(session_id)) for session_id in ids],
            tries=[plan.tries[session] for session in kept.tolist()],
            round_robin_cursor=plan.round_robin_cursor if plan.round_robin_cursor != self._written_cursor else None,
        )
        sessions = np.repeat(np.arange(len(ids)), sizes).tolist()
        ranks = (np.arange(len(sessions)) - np.repeat(holdings.offsets[:-1], sizes)).tolist()
        agents = self._cache_sync.cache.agents.ids
        kernels = placements.Kernels(
            sessions=sessions,
            ranks=ranks,
            agents=[agents[row] for row in holdings.agents.tolist()],
            addresses=[
                kernel_address(plan.networks[ids[session]].subnet, rank).address
                if ids[session] in plan.networks
                else ""
                for session, rank in zip(sessions, ranks, strict=True)
            ],
        )
        await placements.write(tx, self._term, placed, kernels, networks)
        self._written_cursor = plan.round_robin_cursor

    def _requested(self, holdings: Holdings) -> tuple[list[str], list[str], list[int]]:
        """Returns the amounts requested by agent and slot; agents of which nothing is
        requested come with no slot and 0.
        """
        cache = self._cache_sync.cache
        rows, positions = np.unique(holdings.agents, return_inverse=True)
        sums = np.zeros((len(rows), holdings.requests.shape[1]), np.int64)
        np.add.at(sums, positions, holdings.requests)
        where, columns = np.nonzero(sums)
        agents = [cache.agents.ids[row] for row in rows[where].tolist()]
        slots = [cache.slots.names[column] for column in columns.tolist()]
        amounts = sums[where, columns].tolist()
        for row in rows[~sums.any(axis=1)].tolist():
            agents.append(cache.agents.ids[row])
            slots.append("")
            amounts.append(0)
        return agents, slots, amounts

    def _without_capacity(
        self, holdings: Holdings, short: Mapping[tuple[str, str], int | None], refused: Collection[int]
    ) -> set[int]:
        """Returns the sessions, tried one after the other, for which their agents have too
        little free of the scarce slots.
        """
        if not short:
            return set()
        cache = self._cache_sync.cache
        left = {
            (cache.agents.row_of[agent], cache.slots.column(slot) if slot else -1): free
            for (agent, slot), free in short.items()
        }
        scarce = np.isin(holdings.agents, [row for row, _ in left])
        sizes = np.diff(holdings.offsets)
        affected = np.unique(np.repeat(np.arange(len(sizes)), sizes)[scarce])
        without = set()
        for session in affected.tolist():
            if session in refused:
                continue
            wanted: dict[tuple[int, int], int] = {}
            for kernel in range(int(holdings.offsets[session]), int(holdings.offsets[session + 1])):
                for row, column in left:
                    if row == holdings.agents[kernel]:
                        amount = int(holdings.requests[kernel, column]) if column >= 0 else 0
                        wanted[row, column] = wanted.get((row, column), 0) + amount
            if any((free := left[key]) is None or amount > max(free, 0) for key, amount in wanted.items()):
                without.add(session)
                continue
            for key, amount in wanted.items():
                left[key] = (left[key] or 0) - amount
        return without

    def _affected(self, plan: Plan, kept: Integers) -> dict[str, set[uuid.UUID]]:
        agents = self._cache_sync.cache.agents.ids if len(kept) else []
        affected: dict[str, set[uuid.UUID]] = {}
        for session in kept.tolist():
            begin, end = plan.holdings.offsets[session], plan.holdings.offsets[session + 1]
            for row in plan.holdings.agents[begin:end].tolist():
                affected.setdefault(agents[row], set()).add(plan.ids[session])
        return affected

    async def _write_reasons(self) -> None:
        debounce = Debounce(_REASONS_SECONDS)
        later: float | None = None
        while True:
            # Also when no pass follows, the words of the last one are written.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(later):
                    await self._new_reasons.wait()
            await asyncio.sleep(debounce.begin(asyncio.get_running_loop().time()))
            self._new_reasons.clear()
            try:
                while await self._reasons.write():
                    pass
                later = await self._reasons.refresh()
            except (StoreUnavailable, NotLeader):
                raise
            except Exception:  # noqa: BLE001  # logged whole; sessions are placed all the same
                _log.exception("pending reasons of group %s were not written", self._group)
                await asyncio.sleep(_MAX_BACKOFF)
