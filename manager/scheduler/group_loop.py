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
from typing import TypeAlias

import numpy as np

from retinue.manager.dispatch.desired_state import Affected
from retinue.manager.scheduler.cache_sync import Keeper
from retinue.manager.scheduler.core.cache import Holdings, Limit
from retinue.manager.scheduler.core.pending_table import Row
from retinue.manager.scheduler.core.snapshot import Endpoint, PastUsage, Snapshot, build_running, endpoints_of, take
from retinue.manager.scheduler.external_strategies import ExternalStrategies
from retinue.manager.scheduler.pass_plans import Outcome, Plan, holdings_of, is_small, kind
from retinue.manager.scheduler.preempt import preempt
from retinue.manager.scheduler.reason_writer import Judgement, NoteWriter, judge
from retinue.manager.scheduler.usage_history import UsageReader
from retinue.manager.scheduling.columns import Integers, Policy, Running
from retinue.manager.scheduling.scheduling_pass import Decisions, run_pass
from retinue.manager.scheduling.strategies import FAIR_SHARE, OFF, PolicyError, Settings, validate_policy
from retinue.manager.session.core.ipam import AddressSpaceExhaustedError, choose_vni, inner_mtu
from retinue.manager.session.core.ipam import place as spot
from retinue.manager.session.core.quota_subjects import subjects_of
from retinue.manager.store import changes, placements
from retinue.manager.store.database import Database, StoreConflict, StoreUnavailable, Transaction
from retinue.manager.store.leadership import NotLeader
from retinue.manager.store.placements import Network
from retinue.manager.supervision import PartInterruptedError

_log = logging.getLogger(__name__)

# Seconds that a group rests after a pass that failed.
_SHORTEST_REST, _LONGEST_REST = 1.0, 60.0

Committed: TypeAlias = Callable[[Affected], None]


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
        # Seconds until the next pass after one that failed; 0 after one that did not.
        self._pause = 0.0

    def stir(self) -> None:
        """Something in the group is different."""
        self._stirred.set()

    async def run(self) -> None:
        """Passes until cancelled. What goes wrong with this group alone costs it a growing pause, and other groups at most a moment."""
        self._under_way = None
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._write_notes(), name=f"notes of {self._group}")
            while True:
                await self._stirred.wait()
                await asyncio.sleep(self._pause)
                self._stirred.clear()
                if self._under_way is not None and self.restless:
                    # Who was made to make way for whom has to be known, lest others have to as well.
                    await self._under_way
                    await self._catch_up()
                try:
                    outcome = await self.plan()
                except (StoreUnavailable, NotLeader):
                    raise
                except Exception as error:  # noqa: BLE001  # logged; the other groups go on
                    self._fail(error)
                    self.stir()
                    continue
                self._noted.set()
                if outcome is not None and (outcome.plan is not None or outcome.preempts):
                    if self._under_way is not None:
                        await self._under_way
                    self._under_way = tasks.create_task(
                        self._try_to_carry_out(outcome), name=f"commit of {self._group}"
                    )

    def _fail(self, error: Exception) -> None:
        self._pause = min(max(_SHORTEST_REST, 2 * self._pause), _LONGEST_REST)
        _log.error(
            "group %s cannot be scheduled now, and is tried again in %.0f s", self._group, self._pause, exc_info=error
        )

    async def _try_to_carry_out(self, outcome: Outcome) -> None:
        try:
            await self.carry_out(outcome)
        except (StoreUnavailable, NotLeader):
            raise
        except Exception as error:
            self._fail(error)
            # What is in memory is in doubt: all is read again, which other groups wait for, and this one for longer.
            raise PartInterruptedError(f"a commit of group {self._group} failed") from error
        self._pause = 0.0

    @property
    def restless(self) -> bool:
        """Whether time alone may change what a pass decides: who waits long enough for a reservation, or ran long enough to make way."""
        row = self._keeper.mirror.groups.get(self._group)
        if row is None or not len(self._keeper.mirror.queue.rows_of(self._group)):
            return False
        try:
            settings = validate_policy(_policy(row))
        except PolicyError:
            # Its pass says so.
            return False
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
        policy = _policy(row)
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

        decisions, judgement = decide() if is_small(settings, snapshot, running) else await asyncio.to_thread(decide)
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
        holdings = holdings_of(snapshot, decisions, sessions, mirror.agents.used.shape[1])
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
            limits = {(row["kind"], row["name"]): Limit.of(row) for row in held.quotas}
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
            networks=[kind(plan.networks.get(session_id)) for session_id in ids],
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
            try:
                while await self._notes.write():
                    pass
                await self._notes.refresh()
            except (StoreUnavailable, NotLeader):
                raise
            except Exception:  # noqa: BLE001  # logged whole; sessions are placed all the same
                _log.exception("reasons of group %s are not written", self._group)
                await asyncio.sleep(_LONGEST_REST)


def _policy(row: Row) -> Policy:
    options = row["options"]
    if not (isinstance(options, dict) and all(isinstance(value, str) for value in options.values())):
        raise PolicyError("the options are not as this version stores them")
    return Policy(row["session_strategy"], row["agent_strategy"], options)
