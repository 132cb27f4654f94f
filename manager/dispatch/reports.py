"""Commits what agents report: facts of nodes, states of attempts, silence.
A report is committed before it is acknowledged.

Reports of many agents are committed together; one that cannot be holds up no other. An agent is believed about its own
attempts only, and what cannot be committed costs the attempt that it is about.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from retinue.manager.domain.agents.agent_conditions import (
    LOSS_HELD,
    NOT_FOLLOWING,
    NOT_REACHED,
    QUARANTINED,
    STARTS_FAILING,
    kept,
    with_condition,
)
from retinue.manager.domain.agents.pull_progress import PROGRESS_SECONDS, Progress, PullProgress
from retinue.manager.domain.agents.start_failures import StartFailures
from retinue.manager.domain.scheduling.records import AgentState
from retinue.manager.domain.session.attempts import (
    AgentCondition,
    AttemptKey,
    AttemptStatus,
    CopyRefusedError,
    ListenerBrokenError,
    NodeCondition,
    NodeFacts,
    NodeReport,
)
from retinue.manager.domain.session.states import Observed
from retinue.manager.session.transaction import WorkingSet, load_for_update, save
from retinue.manager.store.endpoints import endpoint_replicas
from retinue.manager.store.fleet import agent_conditions, nodes
from retinue.manager.store.leadership import leadership
from retinue.manager.store.leadership.leadership import NotLeader
from retinue.manager.store.placement import attempts, shares
from retinue.manager.store.postgres.conflicts import outlasting_conflicts
from retinue.manager.store.postgres.database import Database, StoreUnavailable, Transaction
from retinue.manager.store.sessions import conditions
from retinue.manager.supervision import for_links
from retinue.rpc.core.reasons import AgentConditionReason, AgentConditionType, AttemptReason

if TYPE_CHECKING:
    import datetime as dt
    import uuid

    from retinue.manager.agent_rpc.reach import NotReached
    from retinue.manager.dispatch.convert import Rejected
    from retinue.manager.dispatch.desired_state import Affected
    from retinue.manager.dispatch.orphans import Orphans
    from retinue.manager.store.placement.attempts import ReportedAttempt

_log = logging.getLogger(__name__)

# Reports of many agents share a commit, up to this many.
_MAX_BATCH = 256

# Commits reports together, or none of them. Raises NotLeader and StoreUnavailable,
# and whatever else a report is refused with.
Commit: TypeAlias = Callable[[Sequence[NodeReport]], Awaitable[None]]
# A report, and what its link waits for.
_Pending = tuple[NodeReport, asyncio.Future[None]]
# Between two changes of an agent's conditions: an agent that changes them more often is read more slowly.
_CONDITIONS_SECONDS = 1.0


async def _record_conditions(tx: Transaction, agent_id: str, conditions: Collection[NodeCondition]) -> bool:
    return await agent_conditions.change(tx, agent_id, "reported", lambda before, now: kept(conditions, before, now))


async def _record_found(
    tx: Transaction, agent_id: str, kind: AgentConditionType, condition: NodeCondition | None
) -> None:
    """Replaces what managers have found of this kind; None for nothing."""
    await agent_conditions.change(
        tx, agent_id, "found", lambda before, now: with_condition(kind, condition, before, now)
    )


async def _record_start_failures(tx: Transaction, agent_id: str, why: str | None) -> None:
    condition = None if why is None else NodeCondition(STARTS_FAILING, "", why)
    # A fault of all nodes, such as a registry that is away, must not leave none.
    blocks = why is not None and await agent_conditions.may_block(tx, agent_id, STARTS_FAILING)

    def changed(before: Sequence[AgentCondition], now: dt.datetime) -> Sequence[AgentCondition]:
        found = with_condition(STARTS_FAILING, condition, before, now)
        return [replace(each, blocks=blocks) if each.type == STARTS_FAILING else each for each in found]

    await agent_conditions.change(tx, agent_id, "found", changed)


class Reports:
    """The listener behind all links of a leader. `committed` is called with the agents that a commit affects, `orphans`
    with each report once it is committed, `out_of_bounds` with an agent that reports on attempts of others,
    and on how many.
    """

    def __init__(
        self,
        database: Database,
        term: int,
        committed: Callable[[Affected], None],
        orphans: Orphans | None = None,
        *,
        out_of_bounds: Callable[[str, int], None] = lambda _agent, _attempts: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._progress = PullProgress()
        self._start_failures = StartFailures()
        # Whether agents may still be avoided that a former leader found.
        self._former_avoidances = True
        # Agents that have the condition that they are not reached; None until it was read what a former leader found.
        self._not_reached: set[str] | None = None
        # When conditions of agents changed last.
        self._conditions_changed: dict[str, float] = {}
        self._database = database
        self._term = term
        self._committed = committed
        self._orphans = orphans
        self._out_of_bounds = out_of_bounds
        self._queue = ReportQueue(self._commit)

    async def connected(self, facts: NodeFacts) -> None:
        """Handles an opened stream. An attempt that the agent reported before and does not know now has ended:
        it is never started again.
        """
        with for_links("its welcome"):
            try:
                report = await self._welcome(facts)
            except nodes.NodeRefusedError as error:
                raise CopyRefusedError(str(error)) from error
            try:
                await self._commit([report])
            except (NotLeader, StoreUnavailable):
                raise
            except Exception:  # noqa: BLE001  # logged whole; what can be committed is
                _log.exception("the welcome of agent %s is committed attempt by attempt", facts.agent_id)
                await self._queue.commit_apart(report)

    @outlasting_conflicts
    async def _welcome(self, facts: NodeFacts) -> NodeReport:
        async with self._database.transaction() as tx:
            await leadership.check(tx, self._term)
            changed_group = await nodes.record_facts(
                tx,
                facts.agent_id,
                instance=facts.instance,
                boot_id=facts.boot_id,
                version=facts.version,
                architecture=facts.architecture,
                capacity=facts.capacity,
                backends=facts.backends,
                runtimes=facts.runtimes,
                underlay_address=facts.underlay_address,
                underlay_mtu=facts.underlay_mtu,
                reachable_networks=facts.reachable_networks,
                proves_paths=facts.proves_paths,
            )
            if changed_group is not None:
                await shares.refresh_group(tx, changed_group)
            changed = await _record_conditions(tx, facts.agent_id, facts.conditions)
            for kind in (QUARANTINED, LOSS_HELD, NOT_FOLLOWING):
                await _record_found(tx, facts.agent_id, kind, None)
            reported = await attempts.read_reported(tx, facts.agent_id)
            absent = await attempts.read_sites(tx, facts.agent_id) - facts.network_session_ids
        await self._set_agent_lost(facts.agent_id, lost=False)
        if changed:
            await self._set_output_lost(facts.agent_id, facts.conditions)
        return report_of(facts, reported, absent)

    async def reported(self, report: NodeReport) -> None:
        """Something changed on a node. Returns once it is committed, together with what other agents say meanwhile."""
        await self._queue.add(report)
        if self._orphans is not None:
            await self._orphans.reported(report)

    async def conditions_changed(self, agent_id: str, conditions: Collection[NodeCondition]) -> None:
        """Takes in the conditions that a node has from now on. Waits after a change,
        as the link reads nothing else of the agent meanwhile.
        """
        wait = self._conditions_changed.get(agent_id, -_CONDITIONS_SECONDS) + _CONDITIONS_SECONDS - self._clock()
        if wait > 0:
            await self._sleep(wait)
        with for_links("its conditions"):
            changed = await self._take_conditions(agent_id, conditions)
            if changed:
                await self._set_output_lost(agent_id, conditions)
        if changed:
            self._conditions_changed[agent_id] = self._clock()
            _log.warning("conditions of agent %s: %s", agent_id, ", ".join(item.type for item in conditions) or "none")
            # Nothing new for any agent to do; the scheduler looks again.
            self._committed({})

    async def quarantined(self, agent_id: str, rejected: Rejected, pause: float) -> None:
        """An agent sent nonsense: nothing is placed on it until it sends a welcome that makes sense."""
        message = f"{rejected.message}; there is no stream to it for {pause:.0f} s"
        condition = NodeCondition(QUARANTINED, rejected.reason, message)
        with for_links("its quarantine"):
            await self._quarantine(agent_id, condition)

    async def following_changed(self, agent_id: str, why: str) -> None:
        """An agent does not answer what it is sent; without a `why`, it does again, or is tried again."""
        with for_links("whether it follows"):
            await self._set_following(agent_id, why)
        if why:
            _log.warning("agent %s does not follow: %s", agent_id, why)
        else:
            _log.info("agent %s follows again, or is tried again", agent_id)
        # Nothing new for any agent to do; the scheduler looks again.
        self._committed({})

    @outlasting_conflicts
    async def _set_following(self, agent_id: str, why: str) -> None:
        async with self._database.transaction() as tx:
            await leadership.check(tx, self._term)
            condition = NodeCondition(NOT_FOLLOWING, message=why) if why else None
            await _record_found(tx, agent_id, NOT_FOLLOWING, condition)

    @outlasting_conflicts
    async def _take_conditions(self, agent_id: str, conditions: Collection[NodeCondition]) -> bool:
        async with self._database.transaction() as tx:
            await leadership.check(tx, self._term)
            return await _record_conditions(tx, agent_id, conditions)

    @outlasting_conflicts
    async def _quarantine(self, agent_id: str, condition: NodeCondition) -> None:
        async with self._database.transaction() as tx:
            await leadership.check(tx, self._term)
            await _record_found(tx, agent_id, QUARANTINED, condition)

    async def reach_changed(self, agent_id: str, address: str, found: NotReached | None) -> None:
        """An agent's port is not reached, or is again: nothing is placed on it meanwhile, and its sessions say so."""
        with for_links("whether it is reached"):
            if self._not_reached is None:
                # What a former leader found holds until it is known better. Most agents have no such condition, and
                # cost a new leader nothing.
                known = await self._known_not_reached()
                self._not_reached = known if self._not_reached is None else self._not_reached
            if found is None and agent_id not in self._not_reached:
                return
            if found is None:
                # The agent last: what is interrupted is done again for as long as that has the condition.
                await self._set_sessions_not_reached(agent_id, "")
                await self._set_not_reached(agent_id, None)
                self._not_reached.discard(agent_id)
            else:
                self._not_reached.add(agent_id)
                message = f"at {address}: {found.why}"
                await self._set_not_reached(agent_id, NodeCondition(NOT_REACHED, found.reason, message))
                await self._set_sessions_not_reached(agent_id, found.why)
        if found is None:
            _log.info("agent %s is reached again", agent_id)
        else:
            _log.warning("agent %s is not reached at %s: %s", agent_id, address, found.why)
        # Nothing new for any agent to do; the scheduler looks again.
        self._committed({})

    @outlasting_conflicts
    async def _known_not_reached(self) -> set[str]:
        async with self._database.transaction() as tx:
            return set(await agent_conditions.with_condition(tx, NOT_REACHED))

    @outlasting_conflicts
    async def _set_not_reached(self, agent_id: str, condition: NodeCondition | None) -> None:
        async with self._database.transaction() as tx:
            await leadership.check(tx, self._term)
            await _record_found(tx, agent_id, NOT_REACHED, condition)

    @outlasting_conflicts
    async def _set_sessions_not_reached(self, agent_id: str, why: str) -> None:
        # On its own, as AGENT_LOST is.
        async with self._database.transaction() as tx:
            await leadership.check(tx, self._term)
            await conditions.set_agent_not_reached(tx, agent_id, why)

    async def liveness_changed(self, agent_id: str, state: AgentState, silence: float | None) -> None:
        """An agent's liveness changed; `silence` is the seconds since it was heard,
        None when it was not in this term.
        """
        with for_links("its silence"):
            await self._record_state(agent_id, state, silence)
            if state is not AgentState.SUSPECT:
                await self._set_agent_lost(agent_id, lost=state is AgentState.LOST)
        self._committed({agent_id: None})

    @outlasting_conflicts
    async def _record_state(self, agent_id: str, state: AgentState, silence: float | None) -> None:
        async with self._database.transaction() as tx:
            await leadership.check(tx, self._term)
            group = await nodes.record_state(tx, agent_id, state, silence)
            if group is not None:
                await shares.refresh_group(tx, group)
            if state is not AgentState.SUSPECT:
                await _record_found(tx, agent_id, LOSS_HELD, None)

    async def loss_held(self, agent_id: str, why: str) -> None:
        """An agent would be lost, and is kept from it, as so many others are silent: it and its sessions say so."""
        with for_links("that its loss is held"):
            # The agent last: what is interrupted is done again for as long as that has no condition.
            await self._set_sessions_held(agent_id, why)
            await self._set_loss_held(agent_id, why)
        self._committed({})

    @outlasting_conflicts
    async def _set_sessions_held(self, agent_id: str, why: str) -> None:
        async with self._database.transaction() as tx:
            await leadership.check(tx, self._term)
            await conditions.set_agent_held(tx, agent_id, why)

    @outlasting_conflicts
    async def _set_loss_held(self, agent_id: str, why: str) -> None:
        condition = NodeCondition(
            LOSS_HELD,
            message=f"{why}: what it runs is neither ended, run again nor replaced until it is heard, or"
            f" `retinue agents confirm-lost {agent_id}` says that it is lost",
        )
        async with self._database.transaction() as tx:
            await leadership.check(tx, self._term)
            await _record_found(tx, agent_id, LOSS_HELD, condition)

    @outlasting_conflicts
    async def _set_agent_lost(self, agent_id: str, *, lost: bool) -> None:
        # On its own: sessions are locked before agents everywhere else, and the journal last.
        async with self._database.transaction() as tx:
            await leadership.check(tx, self._term)
            await conditions.set_agent_lost(tx, agent_id, lost=lost)

    @outlasting_conflicts
    async def _set_output_lost(self, agent_id: str, found: Collection[NodeCondition]) -> None:
        why = next((each.message for each in found if each.reason == AgentConditionReason.UNWRITABLE), "")
        async with self._database.transaction() as tx:
            await leadership.check(tx, self._term)
            await conditions.set_output_lost(tx, agent_id, why)

    async def run(self) -> None:
        """Commits reports as they come until cancelled. Raises NotLeader."""
        while True:
            await self.write_progress()
            await self._queue.commit_next(PROGRESS_SECONDS)
            await self.review_starts()

    def note_failed_start(self, agent_id: str, session_id: uuid.UUID, owner: str, status: AttemptStatus) -> None:
        """Counts a failed start that no agent reports: of an attempt that was given up."""
        self._start_failures.note(agent_id, session_id, owner, status, self._clock())

    async def review_starts(self) -> None:
        """Has agents avoided on which starts fail again and again, or no longer. Raises NotLeader."""
        if self._former_avoidances:
            # What a former leader counted is not known: they are tried again.
            try:
                async with self._database.transaction() as tx:
                    await leadership.check(tx, self._term)
                    for agent_id in await agent_conditions.with_condition(tx, STARTS_FAILING):
                        await _record_start_failures(tx, agent_id, None)
            except StoreUnavailable:
                return
            self._former_avoidances = False
        for agent_id, why in self._start_failures.changes(self._clock()).items():
            try:
                async with self._database.transaction() as tx:
                    await leadership.check(tx, self._term)
                    await _record_start_failures(tx, agent_id, why)
            except StoreUnavailable as error:
                self._start_failures.put_back(agent_id)
                _log.warning("the condition of agent %s is not written: %r", agent_id, error)
                continue
            if why is None:
                _log.info("agent %s is tried again, or sessions start there", agent_id)
            else:
                _log.error("agent %s is avoided: %s", agent_id, why)
            # Nothing new for any agent to do; the scheduler looks again.
            self._committed({})

    async def write_progress(self) -> None:
        """Writes the last progress of fetches that changed too often to be written at once. Raises NotLeader."""
        due = self._progress.due(self._clock())
        if not due:
            return
        try:
            async with self._database.transaction() as tx:
                await leadership.check(tx, self._term)
                taken = await load_for_update(tx, {progress.session_id for progress in due})
                taken.pulls = {progress.key: progress.layers for progress in due}
                await save(tx, taken)
        except NotLeader:
            raise
        except Exception as error:  # noqa: BLE001  # logged; whatever else is reported is committed
            _log.warning("the progress of %d fetches is not written: %r", len(due), error)
            for progress in due:
                self._progress.offer(progress, self._clock())
        else:
            self._committed({})

    @outlasting_conflicts
    async def _commit(self, reports: Iterable[NodeReport]) -> None:
        statuses: dict[tuple[str, AttemptKey], AttemptStatus] = {}
        removed: dict[str, set[uuid.UUID]] = {}
        for report in reports:
            statuses.update({(report.agent_id, status.key): status for status in report.attempts if status.state})
            removed.setdefault(report.agent_id, set()).update(report.removed_networks)
        async with self._database.transaction() as tx:
            finding = attempts.finding_reported([key for _, key in statuses])
            found = (await tx.pipeline(leadership.checking(self._term), finding)).of(finding)
            own = {(item.agent_id, (item.kernel_id, item.epoch)): item for item in found}
            of_session = {who: item.session_id for who, item in own.items() if item.live and who in statuses}
            taken = await load_for_update(tx, set(of_session.values()))
            for who, session_id in of_session.items():
                _observe(taken, session_id, _with_plausible_times(statuses[who], own[who]))
                self._bound_progress(taken, session_id, who[1])
            published = {
                session_id: status
                for who, session_id in of_session.items()
                # Of a replica, the main kernel alone is published, which has the id of its session.
                if who[1][0] == session_id and (status := statuses[who].published) is not None
            }
            recording = [endpoint_replicas.recording_published(published)] if published else []
            dropping = [
                statement
                for agent_id, session_ids in removed.items()
                if session_ids
                for statement in attempts.dropping_sites(agent_id, session_ids)
            ]
            finding_agents = attempts.finding_affected_agents(list(taken.machines))
            affected = (await save(tx, taken, *recording, *dropping, finding_agents, commit=True)).of(finding_agents)
        for who, session_id in of_session.items():
            # What an agent repeats, as at its welcome, is no new start.
            if (before := taken.attempts_before.get(who[1])) is not None and before[1] != statuses[who].state:
                owner = taken.records[session_id].owner
                self._start_failures.note(who[0], session_id, owner, statuses[who], self._clock())
        # An agent with nothing more to do for a session has to be notified too.
        for (agent_id, _), session_id in of_session.items():
            affected.setdefault(agent_id, set()).add(session_id)
        for agent_id, session_ids in removed.items():
            affected.setdefault(agent_id, set()).update(session_ids)
        self._committed(affected)
        # An attempt that no agent has is one that was purged, or never was: nothing is said about another agent.
        known = {key for _, key in own}
        strays = Counter(agent_id for agent_id, key in statuses.keys() - own.keys() if key in known)
        for agent_id, number in strays.items():
            self._out_of_bounds(agent_id, number)

    def _bound_progress(self, taken: WorkingSet, session_id: uuid.UUID, key: AttemptKey) -> None:
        """Leaves progress that comes too soon for later."""
        if (layers := taken.pulls.get(key)) is None:
            self._progress.end(key)
        elif not self._progress.offer(Progress(session_id, key, layers), self._clock()):
            del taken.pulls[key]


def report_of(facts: NodeFacts, reported: Iterable[AttemptKey], absent_networks: Iterable[uuid.UUID]) -> NodeReport:
    """Returns a welcome as a report: what the agent has `reported` before and does not know now has ended."""
    known = {status.key for status in facts.attempts}
    forgotten = [
        AttemptStatus(key, Observed.EXITED, None, AttemptReason.RECORD_LOST, "the agent has no record of it", 0)
        for key in reported
        if key not in known
    ]
    return NodeReport(facts.agent_id, (*facts.attempts, *forgotten), removed_networks=frozenset(absent_networks))


def _with_plausible_times(status: AttemptStatus, attempt: ReportedAttempt) -> AttemptStatus:
    """Returns the status with times that lie between the attempt's creation and now: clocks of agents may be wrong."""
    if status.failing_steps:
        steps = [replace(step, since=_plausible(step.since or attempt.now, attempt)) for step in status.failing_steps]
        status = replace(status, failing_steps=tuple(steps))
    if status.end_time is None:
        return status
    return replace(status, end_time=_plausible(status.end_time, attempt))


def _plausible(time: dt.datetime, attempt: ReportedAttempt) -> dt.datetime:
    return min(max(time, attempt.create_time), attempt.now)


def _observe(taken: WorkingSet, session_id: uuid.UUID, status: AttemptStatus) -> None:
    taken.output_sizes[status.key] = status.log_size
    if (machine := taken.machines.get(session_id)) is None:
        return
    if status.layers:
        taken.pulls[status.key] = status.layers
    machine.observe(status)


def _answer(batch: Collection[_Pending], error: ListenerBrokenError | None = None) -> None:
    """Notifies the links that still wait."""
    for _, done in batch:
        if not done.done():
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)


class ReportQueue:
    """Reports that wait for their commit; each is acknowledged once it is committed."""

    def __init__(self, commit: Commit) -> None:
        self._commit = commit
        self._queue: asyncio.Queue[_Pending] = asyncio.Queue()

    async def add(self, report: NodeReport) -> None:
        """Returns once a report is committed, together with what other agents report meanwhile.
        Raises ListenerBrokenError.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((report, done))
        await done

    async def commit_next(self, seconds: float) -> None:
        """Commits what waits, or what comes first within so many seconds. Raises NotLeader."""
        try:
            async with asyncio.timeout(seconds):
                batch = [await self._queue.get()]
        except TimeoutError:
            return
        while len(batch) < _MAX_BATCH and not self._queue.empty():
            batch.append(self._queue.get_nowait())
        try:
            await self._commit_together(batch)
        finally:
            _answer(batch, ListenerBrokenError("this manager stops leading"))

    async def _commit_together(self, batch: Collection[_Pending]) -> None:
        """Commits reports together. What was not committed is not acknowledged: its link ends,
        and comes back with all it observes.
        """
        try:
            await self._commit([report for report, _ in batch])
        except NotLeader:
            raise
        except StoreUnavailable as error:
            _log.warning("%d reports wait for the database: %s", len(batch), error)
            _answer(batch, ListenerBrokenError(f"the database did not take its report: {error}"))
        except Exception:  # noqa: BLE001  # logged below; one node's report must not hold up those of all others
            if len(batch) > 1:
                for pending in batch:
                    await self._commit_together([pending])
                return
            for report, _ in batch:
                _log.exception("the report of agent %s is committed attempt by attempt", report.agent_id)
                await self._commit_parts(report, batch)
        else:
            _answer(batch)

    async def _commit_parts(self, report: NodeReport, batch: Collection[_Pending]) -> None:
        try:
            await self.commit_apart(report)
        except StoreUnavailable as error:
            _answer(batch, ListenerBrokenError(f"the database did not take its report: {error}"))
        else:
            _answer(batch)

    async def commit_apart(self, report: NodeReport) -> None:
        """Commits a report attempt by attempt, and leaves out what cannot be committed:
        the agent has it until it is desired no more.

        Raises NotLeader and StoreUnavailable.
        """
        networks = NodeReport(report.agent_id, (), removed_networks=report.removed_networks)
        for part in (networks, *(NodeReport(report.agent_id, (status,)) for status in report.attempts)):
            try:
                await self._commit([part])
            except (NotLeader, StoreUnavailable):
                raise
            except Exception as error:  # noqa: BLE001  # logged; the other attempts are committed
                what = f"attempt {part.attempts[0].attempt_id}" if part.attempts else "networks"
                _log.error("what agent %s reports of %s is left out: %r", report.agent_id, what, error)
