"""The passes of one group: each is planned from the mirror while the one before is still being committed.

A placement counts in the mirror from the moment it was decided (`Keeper.fly`). What the next pass sees as taken may come free again, when
the commit finds that a session does not wait any more or an agent has no room; it never sees as free what is taken. So a pass need not be
repaired when the one before loses something: what it decided holds, and what was lost is tried again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from manager.lifecycle.account_table import subjects_of
from manager.lifecycle.addressing import AddressSpaceExhaustedError, choose_vni, inner_mtu
from manager.lifecycle.addressing import place as spot
from manager.lifecycle.desires import Concerned
from manager.lifecycle.external_strategies import ExternalStrategies
from manager.lifecycle.keeper import Keeper
from manager.lifecycle.mirror import Holdings, Limit
from manager.lifecycle.notes import Judgement, NoteWriter, judge
from manager.lifecycle.past_usage import UsageReader
from manager.lifecycle.preemptions import preempt
from manager.lifecycle.queue_table import Row
from manager.lifecycle.snapshot import Endpoint, PastUsage, Snapshot, build_running, endpoints_of, take
from manager.scheduling.columns import Integers, Policy, Running
from manager.scheduling.scheduling_pass import Decisions, run_pass
from manager.scheduling.strategies import FAIR_SHARE, OFF, Settings, validate_policy
from manager.store import changes, placements
from manager.store.database import Database, StoreConflict, Transaction
from manager.store.placements import Network

_log = logging.getLogger(__name__)

# A pass over no more kernels and agents than these is small.
_SMALL_KERNELS, _SMALL_AGENTS = 16, 500

Committed: TypeAlias = Callable[[Concerned], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be committed: sessions in order of decision, what they take, and for each its network, if it has one."""

    group: str
    ids: list[uuid.UUID]
    holdings: Holdings
    tries: list[int]
    networks: dict[uuid.UUID, Network]
    rotation: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a pass wants done: placements first, then who is to make way for whom."""

    plan: Plan | None
    settings: Settings
    snapshot: Snapshot
    running: Running | None
    decisions: Decisions

    @property
    def preempts(self) -> bool:
        """Whether somebody is to make way."""
        return bool(self.decisions.preemptions)


class GroupPasses:
    """The scheduler of one group."""

    def __init__(  # noqa: PLR0917  # a part of the scheduler
        self,
        database: Database,
        term: int,
        keeper: Keeper,
        group: str,
        committed: Committed,
        wake: Callable[[], None],
        catch_up: Callable[[], Awaitable[None]],
        strategies: ExternalStrategies,
    ) -> None:
        """`wake` says that there is something new, `catch_up` has the keeper take it in."""
        self._wake = wake
        self._catch_up = catch_up
        self._strategies = strategies
        self._database = database
        self._term = term
        self._keeper = keeper
        self._group = group
        self._committed = committed
        self._stirred = asyncio.Event()
        self._under_way: asyncio.Task[None] | None = None
        self._noted = asyncio.Event()
        self._notes = NoteWriter(database, term, keeper, group)
        # From which session on reasons are worked out, when they are too many for one pass.
        self._turn = 0
        self._random = random.SystemRandom()
        # As committed last; None when nobody knows.
        self._written_rotation: str | None = None
        self._usage = UsageReader(database, group)

    def stir(self) -> None:
        """Something in the group is different."""
        self._stirred.set()

    async def run(self) -> None:
        """Passes until cancelled."""
        self._under_way = None
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._write_notes(), name=f"notes of {self._group}")
            while True:
                await self._stirred.wait()
                self._stirred.clear()
                if self._under_way is not None and self.restless:
                    # Who was made to make way for whom has to be known, lest others have to as well.
                    await self._under_way
                    await self._catch_up()
                outcome = await self.plan()
                self._noted.set()
                if outcome is not None and (outcome.plan is not None or outcome.preempts):
                    if self._under_way is not None:
                        await self._under_way
                    self._under_way = tasks.create_task(self.carry_out(outcome), name=f"commit of {self._group}")

    @property
    def restless(self) -> bool:
        """Whether time alone may change what a pass decides: who waits long enough for a reservation, or ran long enough to make way."""
        row = self._keeper.mirror.groups.get(self._group)
        if row is None or not len(self._keeper.mirror.queue.rows_of(self._group)):
            return False
        settings = _settings(row)
        return settings.reserves or settings.preemption != OFF

    async def once(self) -> None:
        """One pass, whole."""
        self._usage.doubt()
        outcome = await self.plan()
        if outcome is not None:
            await self.carry_out(outcome)
        while await self._notes.write():
            pass
        await self._notes.refresh()

    async def plan(self) -> Outcome | None:
        """Decides; what is placed counts from here on. None when nothing waits."""
        row = self._keeper.mirror.groups.get(self._group)
        if row is None:
            return None
        policy = Policy(row["session_strategy"], row["agent_strategy"], row["options"])
        settings = validate_policy(policy)
        past = await self._past_usage(settings)
        replicas = await self._replicas()
        snapshot = take(self._keeper.mirror, self._group, self._keeper.now, past, replicas=replicas)
        if not len(snapshot.ids):
            return None
        running = await self._running(settings, snapshot)
        advice = await self._strategies.ask(self._group, settings, snapshot)
        rotation = self._keeper.rotations[self._group]

        def decide() -> tuple[Decisions, Judgement]:
            decisions = run_pass(
                snapshot.agents, snapshot.owners, snapshot.queue, policy, rotation, running=running, advice=advice
            )
            return decisions, judge(snapshot, decisions, self._turn)

        decisions, judgement = decide() if _is_small(settings, snapshot, running) else await asyncio.to_thread(decide)
        self._turn = judgement.turn
        for note in decisions.notes:
            _log.warning("group %s: %s", self._group, note)
        plan = self._placed(snapshot, decisions)
        self._notes.take(snapshot, judgement)
        return Outcome(plan, settings, snapshot, running, decisions)

    async def carry_out(self, outcome: Outcome) -> None:
        """Commits what a pass placed, then has those make way that are to."""
        if outcome.plan is not None:
            await self.commit(outcome.plan)
        if outcome.preempts and outcome.running is not None:
            concerned = await preempt(
                self._database, self._term, outcome.settings, outcome.snapshot, outcome.running, outcome.decisions
            )
            self._committed(concerned)
            self._wake()

    async def commit(self, plan: Plan) -> None:
        """Writes the placements whose session still waits, whose agents still have room and whose quotas were not lowered; the others fall."""
        try:
            kept = await self._write(plan)
        except StoreConflict:
            # It lost against another transaction and left nothing behind.
            self._written_rotation = None
            kept = np.zeros(0, np.int64)
        except BaseException:
            # Who knows what the database made of it.
            self._keeper.doubt()
            raise
        lost = np.setdiff1d(np.arange(len(plan.ids)), kept)
        self._keeper.land([plan.ids[session] for session in kept.tolist()])
        if len(lost):
            self._keeper.fall([plan.ids[session] for session in lost.tolist()], plan.holdings.part(lost))
            for session in lost.tolist():
                if (network := plan.networks.get(plan.ids[session])) is not None:
                    self._keeper.free_network(network.subnet, network.vni)
            # What fell is tried again.
            self._wake()
        self._committed(self._concerned(plan, kept))

    async def _past_usage(self, settings: Settings) -> PastUsage | None:
        if settings.session_strategy != FAIR_SHARE:
            return None
        mirror = self._keeper.mirror
        accounts = np.unique(mirror.queue.account[mirror.queue.rows_of(self._group)]).tolist()
        owners = {mirror.accounts.names[account][1] for account in accounts}
        return await self._usage.read(owners, settings, self._keeper.now) if owners else None

    async def _running(self, settings: Settings, snapshot: Snapshot) -> Running | None:
        if not settings.reserves and settings.preemption == OFF:
            return None
        async with self._database.transaction() as tx:
            rows = await placements.read_running(tx, self._group, min_runtime=settings.preemption_min_runtime_seconds)
        return build_running(rows, snapshot.agents)

    async def _replicas(self) -> dict[Endpoint, dict[str, int]]:
        endpoints = endpoints_of(self._keeper.mirror, self._group)
        if not endpoints:
            return {}
        if self._under_way is not None:
            # Those that are being placed are to be counted.
            await self._under_way
        async with self._database.transaction() as tx:
            return await changes.read_replicas(tx, endpoints)

    def _placed(self, snapshot: Snapshot, decisions: Decisions) -> Plan | None:
        """The placements of a pass that still hold now that it is over."""
        keeper, mirror = self._keeper, self._keeper.mirror
        sessions = decisions.sessions
        sessions = sessions[[session_id in mirror.queue.row_of for session_id in snapshot.ids[sessions].tolist()]]
        holdings = _holdings(snapshot, decisions, sessions, mirror.agents.used.shape[1])
        # Another group's pass may have used up what this one saw as left.
        over = mirror.over_quota(holdings, mirror.quotas, counted=False)
        if over:
            kept = np.setdiff1d(np.arange(len(sessions)), list(over))
            sessions, holdings = sessions[kept], holdings.part(kept)
        ids: list[uuid.UUID] = snapshot.ids[sessions].tolist()
        networks, homeless = self._networks(ids, holdings)
        if homeless:
            kept = np.setdiff1d(np.arange(len(sessions)), homeless)
            sessions, holdings = sessions[kept], holdings.part(kept)
            ids = snapshot.ids[sessions].tolist()
        if not ids:
            return None
        tries = [int(mirror.queue.tries[mirror.queue.row_of[session_id]]) + 1 for session_id in ids]
        keeper.fly(ids, holdings)
        keeper.rotations[self._group] = decisions.rotation
        return Plan(self._group, ids, holdings, tries, networks, decisions.rotation)

    def _networks(self, ids: list[uuid.UUID], holdings: Holdings) -> tuple[dict[uuid.UUID, Network], list[int]]:
        """Networks of cluster sessions, and the positions of sessions for which there is no address left."""
        keeper, mirror = self._keeper, self._keeper.mirror
        networks, homeless = dict[uuid.UUID, Network](), []
        for session in np.flatnonzero(np.diff(holdings.offsets) > 1).tolist():
            rows = holdings.agents[holdings.offsets[session] : holdings.offsets[session + 1]].tolist()
            sites = sorted(set(rows), key=mirror.agents.ids.__getitem__)
            try:
                subnet = keeper.pool.take(len(rows))
                vni = choose_vni(mirror.vnis, self._random) if len(sites) > 1 else 0
            except AddressSpaceExhaustedError:
                homeless.append(session)
                continue
            mirror.subnets.add(subnet)
            if vni:
                mirror.vnis.add(vni)
            mtu = inner_mtu([mirror.agents.underlays[row] for row in sites], vxlan=bool(vni))
            networks[ids[session]] = Network(ids[session], vni, subnet, mtu, [mirror.agents.ids[row] for row in sites])
        return networks, homeless

    async def _write(self, plan: Plan) -> Integers:
        """The one commit; returns the positions of the sessions that it placed."""
        mirror = self._keeper.mirror
        holdings = plan.holdings
        accounts = [mirror.accounts.names[account] for account in holdings.accounts.tolist()]
        subjects = {subject for account in set(accounts) for subject in subjects_of(account)}
        async with self._database.transaction() as tx:
            held = await placements.hold(tx, self._term, subjects, plan.ids, self._wanted(holdings))
            limits = {(row["kind"], row["name"]): Limit(row["slots"], row["max_sessions"]) for row in held.quotas}
            refused = {session for session, session_id in enumerate(plan.ids) if session_id in held.lost}
            refused |= self._without_room(holdings, held.short, refused)
            kept = np.array([session for session in range(len(plan.ids)) if session not in refused], np.int64)
            # A quota may have been lowered since the pass.
            over = mirror.over_quota(holdings.part(kept), limits, counted=True)
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
            networks=[_kind(plan.networks.get(session_id)) for session_id in ids],
            tries=[plan.tries[session] for session in kept.tolist()],
            rotation=plan.rotation if plan.rotation != self._written_rotation else None,
        )
        sessions = np.repeat(np.arange(len(ids)), sizes).tolist()
        ranks = (np.arange(len(sessions)) - np.repeat(holdings.offsets[:-1], sizes)).tolist()
        agents = self._keeper.mirror.agents.ids
        kernels = placements.Kernels(
            sessions=sessions,
            ranks=ranks,
            agents=[agents[row] for row in holdings.agents.tolist()],
            addresses=[
                spot(plan.networks[ids[session]].subnet, rank).address if ids[session] in plan.networks else ""
                for session, rank in zip(sessions, ranks, strict=True)
            ],
        )
        await placements.write(tx, self._term, placed, kernels, networks)
        self._written_rotation = plan.rotation

    def _wanted(self, holdings: Holdings) -> tuple[list[str], list[str], list[int]]:
        """What is wanted of agents, by agent and slot; those that nothing is wanted of with no slot and 0."""
        mirror = self._keeper.mirror
        rows, places = np.unique(holdings.agents, return_inverse=True)
        sums = np.zeros((len(rows), holdings.requests.shape[1]), np.int64)
        np.add.at(sums, places, holdings.requests)
        where, columns = np.nonzero(sums)
        agents = [mirror.agents.ids[row] for row in rows[where].tolist()]
        slots = [mirror.slots.names[column] for column in columns.tolist()]
        amounts = sums[where, columns].tolist()
        for row in rows[~sums.any(axis=1)].tolist():
            agents.append(mirror.agents.ids[row])
            slots.append("")
            amounts.append(0)
        return agents, slots, amounts

    def _without_room(
        self, holdings: Holdings, short: Mapping[tuple[str, str], int | None], refused: Collection[int]
    ) -> set[int]:
        """The sessions, one after the other, for which their agents have too little free of what there is not enough of for all."""
        if not short:
            return set()
        mirror = self._keeper.mirror
        left = {
            (mirror.agents.row_of[agent], mirror.slots.column(slot) if slot else -1): free
            for (agent, slot), free in short.items()
        }
        scarce = np.isin(holdings.agents, [row for row, _ in left])
        sizes = np.diff(holdings.offsets)
        concerned = np.unique(np.repeat(np.arange(len(sizes)), sizes)[scarce])
        without = set()
        for session in concerned.tolist():
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

    def _concerned(self, plan: Plan, kept: Integers) -> dict[str, set[uuid.UUID]]:
        agents = self._keeper.mirror.agents.ids if len(kept) else []
        concerned: dict[str, set[uuid.UUID]] = {}
        for session in kept.tolist():
            begin, end = plan.holdings.offsets[session], plan.holdings.offsets[session + 1]
            for row in plan.holdings.agents[begin:end].tolist():
                concerned.setdefault(agents[row], set()).add(plan.ids[session])
        return concerned

    async def _write_notes(self) -> None:
        while True:
            await self._noted.wait()
            self._noted.clear()
            while await self._notes.write():
                pass
            await self._notes.refresh()


def _holdings(snapshot: Snapshot, decisions: Decisions, sessions: Integers, width: int) -> Holdings:
    """What sessions in rows of the queue take, in terms of the mirror."""
    every = snapshot.queue.offsets
    sizes = every[sessions + 1] - every[sessions]
    offsets = np.zeros(len(sessions) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    kernels = np.repeat(every[sessions] - offsets[:-1], sizes) + np.arange(offsets[-1])
    requests = np.zeros((len(kernels), width), np.int64)
    requests[:, snapshot.columns] = snapshot.queue.requests[kernels]
    return Holdings(
        agents=snapshot.agent_rows[decisions.kernel_agents[kernels]],
        requests=requests,
        accounts=snapshot.accounts[sessions],
        offsets=offsets,
    )


def _is_small(settings: Settings, snapshot: Snapshot, running: Running | None) -> bool:
    """Whether a pass takes a few milliseconds at most, less than a thread is worth on the way of a single session. A larger one is computation
    of up to a second, one that looks at what runs may be, and a strategy of others may take its time: the loop must go on meanwhile.
    """
    if running is not None:
        return False
    strange = settings.custom_session is not None or settings.custom_agent is not None
    return not strange and len(snapshot.queue.requests) <= _SMALL_KERNELS and len(snapshot.agent_rows) <= _SMALL_AGENTS


def _settings(row: Row) -> Settings:
    return validate_policy(Policy(row["session_strategy"], row["agent_strategy"], row["options"]))


def _kind(network: Network | None) -> str:
    if network is None:
        return ""
    return "VXLAN" if network.vni else "BRIDGE"
