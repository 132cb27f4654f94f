"""Keeps endpoints as they are asked for. Only the leader does it, each second and when something happened.

Every look compares what is wanted with what is there, and nothing else is remembered than what may be forgotten:
samples of the autoscaler, and which table the routers were given. What decides is pure (`core`);
here is read what it looks at, and done what it says.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from retinue.manager.domain.endpoints import measures
from retinue.manager.domain.endpoints.history import INTERVAL_MS, EndpointHistory, EndpointSample, rates
from retinue.manager.domain.endpoints.model import Edge, EndpointTraffic, RevisionTraffic, RoutedEndpoint, Traffic
from retinue.manager.domain.endpoints.replicas import Create, ready_counts
from retinue.manager.domain.endpoints.rollout import Rollout, plan, wants_more
from retinue.manager.domain.endpoints.scaling import (
    Decision,
    EndpointObservation,
    Metric,
    Reading,
    ScalerState,
    decide,
    fresh_state,
)
from retinue.manager.domain.endpoints.schedules import scheduled_floor
from retinue.manager.domain.endpoints.states import FINISHED_ROLLOUTS, Lifecycle, ReplicaState
from retinue.manager.domain.session.attempts import AttemptUsage, UsageWatch, attempt_id
from retinue.manager.endpoints.actions import Actions
from retinue.manager.endpoints.fleet import Acknowledged, EndpointView, rollout_of, view_of
from retinue.manager.endpoints.usage import ReplicaUsage
from retinue.manager.store.endpoints import endpoint_replicas, endpoints
from retinue.manager.store.postgres.writes import QUIET_SECONDS
from retinue.manager.store.sessions import idle
from retinue.manager.supervision import ends_term, will_pass

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from retinue.manager.dispatch.desired_state import Affected
    from retinue.manager.endpoints.queries import QueryReader
    from retinue.manager.store.endpoints.endpoint_replicas import ReplicaRecord
    from retinue.manager.store.endpoints.endpoints import EndpointRecord
    from retinue.manager.store.postgres.database import Database
    from retinue.manager.store.sessions.idle import MeasuredKernel

_log = logging.getLogger(__name__)

_TICK_SECONDS = 1.0
_SCALING_MS = 2_000
# Debounce: the events of one commit are one look.
_GATHER_SECONDS = 0.05
# A replica that a quota or the like refused is asked for again after so long.
_REFUSED_MS = 10_000


@dataclass(slots=True)
class _Memory:
    """What is remembered of an endpoint within a term."""

    scaler: ScalerState | None = None
    decision: Decision | None = None
    scaled_at: int | None = None
    counters: measures.Counters | None = None
    # The revision of the table that first had a replica draining, or the gate on.
    draining: dict[uuid.UUID, int] = field(default_factory=dict)
    gated: int | None = None
    # The rollout that the rest is about: which revision, in which step, what it had then.
    rollout: tuple[int, int, dt.datetime] | None = None
    most_ready: int = 0
    progress_at: int = 0
    begin: RevisionTraffic | None = None
    refused: str = ""
    refused_until: int = 0
    # The endpoint as it was read last, and the mark that it was found at rest with.
    # A decision that is still to be written.
    view: EndpointView | None = None
    history: EndpointHistory = field(default_factory=EndpointHistory)
    # When the last sample was taken, and the counters then.
    history_at: int | None = None
    sampled: measures.Counters | None = None
    resting: int | None = None
    decided: Decision | None = None
    routed: RoutedEndpoint | None = None


class EndpointController:
    """Makes, drains and ends replicas, moves rollouts, and decides how many replicas there are. Runs in one term."""

    def __init__(
        self,
        database: Database,
        term: int,
        committed: Callable[[Affected], None],
        edge: Edge,
        *,
        watch_usage: Callable[[Mapping[str, UsageWatch]], None] = lambda _watches: None,
        answered: Callable[[Mapping[str, Collection[str]]], None] = lambda _attempts: None,
        queries: QueryReader | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`committed` hears which agents a commit affects, `watch_usage` what agents have to report of what replicas
        use, `answered` attempts by agent that routers had answers from since the last time. Without `queries`
        metrics that are queries are unknown. `clock` is monotonic, in seconds.
        """
        self._database = database
        self._term = term
        self._edge = edge
        self._actions = Actions(database, term, committed)
        self._clock = clock
        self._usage = ReplicaUsage(clock)
        self._watch_usage = watch_usage
        self._answered = answered
        # How many requests replicas had answered at the last look.
        self._answers: Mapping[uuid.UUID, int] = {}
        self._queries = queries
        self._memories: dict[uuid.UUID, _Memory] = {}
        self._changed = asyncio.Event()
        self._watches: Mapping[str, UsageWatch] = {}
        # Endpoints and replicas of the last look; what is new is found at the next.
        self._subjects: set[uuid.UUID] = set()

    def wake(self) -> None:
        """Notifies of anything that may concern an endpoint: a session that moved, a request that is held,
        a change by a user.
        """
        self._changed.set()

    def notice(self, subjects: Iterable[uuid.UUID]) -> None:
        """Notifies of entries in the journal by what they are about: only endpoints and replicas matter."""
        if not self._subjects.isdisjoint(subjects):
            self.wake()

    def used(self, agent_id: str, samples: Iterable[AttemptUsage]) -> None:
        """Takes in what an agent reports of its attempts."""
        self._usage.add(agent_id, samples)

    def last_decision(self, endpoint_id: uuid.UUID) -> Decision | None:
        """Returns the newest decision of this term, whether or not it changed anything."""
        memory = self._memories.get(endpoint_id)
        return None if memory is None else memory.decision

    def history(self, endpoint_id: uuid.UUID, since: int) -> list[EndpointSample]:
        """Returns what this term has measured of an endpoint from a time on, in ms since 1970; the oldest first."""
        memory = self._memories.get(endpoint_id)
        return [] if memory is None else list(memory.history.read(since))

    def traffic(self) -> Traffic:
        """Returns what is known of the routers now."""
        return self._edge.traffic()

    async def run(self) -> None:
        """Looks at all endpoints until cancelled."""
        while True:
            self._changed.clear()
            began, seen = self._clock(), self._database.writes.number
            again = await self.look()
            took = self._clock() - began
            if not again:
                # Load changes without a word to the database.
                loaded = any(
                    memory.resting is None or memory.view is None or memory.view.is_active
                    for memory in self._memories.values()
                )
                longest = _TICK_SECONDS if loaded else QUIET_SECONDS
                await self._database.writes.rest(self._changed, seen, _TICK_SECONDS, longest)
            # However much happens, others have at least as much of the process.
            await asyncio.sleep(max(_GATHER_SECONDS, took))

    async def look(self) -> bool:
        """Looks at every endpoint once, each by itself; returns whether something was done
        that the next look continues from.

        One that was at rest and has not changed since is not read again: only its load is looked at.
        """
        traffic = self._edge.traffic()
        async with self._database.transaction() as tx:
            now = await endpoints.read_clock(tx)
            marks = await endpoints.read_marks(tx)
            moving = [key for key, mark in marks.items() if not self._rests(key, mark, traffic, now)]
            records = await endpoints.read(tx, moving)
            live = [item.id for item in records.values() if item.lifecycle is not Lifecycle.DELETED]
            replicas = await endpoint_replicas.read(tx, live)
        for gone in self._memories.keys() - marks.keys():
            del self._memories[gone]
        again = False
        looked_at: list[EndpointView] = []
        for key, record in records.items():
            memory = self._memories.setdefault(key, _Memory())
            # Whatever becomes of this look: until one finds it at rest, it is read each time.
            memory.resting = None
            view = await self._look_at(record, replicas.get(key, ()), memory, traffic, now)
            if view is not None:
                memory.view = view
                looked_at.append(view)
                again = again or view.record.target != record.target
                if view.record == record and self._is_at_rest(view, memory, now):
                    memory.resting = marks[key]
        table = self._edge.publish([item.routed for item in self._memories.values() if item.routed is not None])
        for view in looked_at:
            self._remember_published(view, table)
        views = [item.view for item in self._memories.values() if item.view is not None]
        self._subjects = {*marks, *(item.session_id for view in views for item in view.replicas)}
        await self._watch(views)
        self._note_answers(views, traffic)
        self._take_samples(traffic, now)
        return again

    def _note_answers(self, views: Iterable[EndpointView], traffic: Traffic) -> None:
        """Lets the agents of replicas that have answered requests since the last look know: who answers is alive."""
        before, self._answers = self._answers, traffic.answered
        busy = {key for key, count in traffic.answered.items() if count > before.get(key, count)}
        if not busy:
            return
        attempts: dict[str, list[str]] = {}
        for view in views:
            for item in view.replicas:
                if item.session_id in busy and item.agent_id:
                    attempts.setdefault(item.agent_id, []).append(attempt_id(item.session_id, item.epoch))
        self._answered(attempts)

    def _take_samples(self, traffic: Traffic, now: dt.datetime) -> None:
        """Takes a sample of every endpoint, once a minute."""
        at = int(self._clock() * 1_000)
        for key, memory in self._memories.items():
            view = memory.view
            if view is None or not view.is_active:
                continue
            if memory.history_at is not None and at - memory.history_at < INTERVAL_MS:
                continue
            memory.history_at = at
            of_endpoint = traffic.endpoints.get(key, EndpointTraffic())
            # A part of the routers is not the whole.
            complete = traffic.live > 0 and traffic.missing == 0
            before, memory.sampled = memory.sampled, measures.counters(of_endpoint, at) if complete else None
            decision = memory.decision
            readings = () if decision is None else decision.metrics
            memory.history.add(
                EndpointSample(
                    int(now.timestamp() * 1_000),
                    view.record.target,
                    view.ready,
                    view.starting,
                    of_endpoint.held,
                    measures.in_flight(of_endpoint) if complete else None,
                    None if decision is None else decision.recommendation,
                    rates(before, memory.sampled),
                    {item.metric.name: item.reading.known for item in readings if item.reading is not None},
                )
            )

    def _rests(self, endpoint_id: uuid.UUID, mark: int, traffic: Traffic, now: dt.datetime) -> bool:
        """Returns whether an endpoint is still at rest: it has not changed, no router refuses it,
        and its load asks for no other target.
        """
        memory = self._memories.get(endpoint_id)
        if memory is None or memory.view is None or memory.resting != mark:
            return False
        if not memory.view.is_active:
            return True
        of_endpoint = traffic.endpoints.get(endpoint_id, EndpointTraffic())
        memory.decided = self._scale(memory.view, memory, of_endpoint, traffic, now)
        return memory.decided is None and endpoint_id not in self._edge.refusals()

    def _is_at_rest(self, view: EndpointView, memory: _Memory, now: dt.datetime) -> bool:
        """Returns whether nothing becomes of an endpoint by the passing of time alone, but for its load."""
        rollout = view.record.rollout
        return (
            view.record.lifecycle is not Lifecycle.DELETING
            and all(state is ReplicaState.READY for state in view.states.values())
            and not any(item.agent_drained for item in view.replicas)
            and (rollout is None or rollout.state in FINISHED_ROLLOUTS)
            and not view.record.conditions
            and all(item.retry_time is None or item.retry_time <= now for item in view.record.revisions)
            and (not view.is_active or not plan(view.fleet(now), None))
            and not memory.refused
        )

    async def _watch(self, views: Iterable[EndpointView]) -> None:
        """Lets agents report what is measured of replicas, and asks the queries of all policies."""
        queries: set[str] = set()
        names: dict[uuid.UUID, frozenset[str]] = {}
        for view in views:
            if not view.is_active or view.settings.default_metric:
                continue
            sources = [metric.name.partition(":") for metric in view.settings.scaling.metrics]
            queries.update(detail for source, _, detail in sources if source == measures.PROMETHEUS)
            shown = frozenset(detail for source, _, detail in sources if source == measures.CUSTOM)
            if shown or any(source == measures.UTILIZATION for source, _, _ in sources):
                names.update(dict.fromkeys(view.running, shown))
        if self._queries is not None:
            self._queries.watch(queries)
        kernels: list[MeasuredKernel] = []
        if unknown := self._usage.unknown(names):
            async with self._database.transaction() as tx:
                kernels = await idle.read_kernels(tx, unknown)
        watches = self._usage.watch(names, kernels)
        if watches != self._watches:
            self._watches = watches
            self._watch_usage(watches)

    async def _look_at(
        self,
        record: EndpointRecord,
        replicas: tuple[ReplicaRecord, ...] | list[ReplicaRecord],
        memory: _Memory,
        traffic: Traffic,
        now: dt.datetime,
    ) -> EndpointView | None:
        """Looks at one endpoint; None when it cannot be read, or what it needed could not be done.
        Others continue, and its routes stay.
        """
        try:
            view = view_of(record, replicas)
            if record.lifecycle is not Lifecycle.DELETED:
                view = await self._keep(view, memory, traffic, now)
            memory.routed = view.routed(now, rollout_of(view.rollout))
        except Exception as error:
            if ends_term(error) or will_pass(error):
                raise
            _log.exception("endpoint %s of project %s stays as it is", record.name, record.project)
            return None
        return view

    async def _keep(self, view: EndpointView, memory: _Memory, traffic: Traffic, now: dt.datetime) -> EndpointView:
        view = await self._actions.note_states(view)
        of_endpoint = traffic.endpoints.get(view.record.id, EndpointTraffic())
        if view.is_active:
            decision = memory.decided or self._scale(view, memory, of_endpoint, traffic, now)
            memory.decided = None
            if decision is not None and decision.before == view.record.target:
                view = await self._actions.set_target(view, decision)
        known = self._acknowledged(view, memory, traffic)
        fleet = view.fleet(now, known)
        rollout = self._rollout(view, memory, of_endpoint, fleet.now) if view.is_active else None
        actions = plan(fleet, rollout)
        if fleet.now < memory.refused_until:
            actions = [item for item in actions if not isinstance(item, Create)]
        if actions:
            view, refused = await self._actions.do(view, actions)
            memory.refused = refused
            memory.refused_until = fleet.now + _REFUSED_MS if refused else 0
        elif fleet.now >= memory.refused_until:
            memory.refused = ""
        found = {"REPLICA_REFUSED": memory.refused, "ROUTE_REFUSED": self._edge.refusals().get(view.record.id, "")}
        return await self._actions.note_conditions(view, found, now)

    def _scale(
        self, view: EndpointView, memory: _Memory, traffic: EndpointTraffic, all_traffic: Traffic, now: dt.datetime
    ) -> Decision | None:
        """Returns a decision that changes the target; each 2 s, and at once when requests
        are held by an endpoint that sleeps.
        """
        at = int(self._clock() * 1_000)
        woken = view.record.target == 0 and traffic.held > 0
        if memory.scaled_at is not None and at - memory.scaled_at < _SCALING_MS and not woken:
            return None
        memory.scaled_at = at
        policy = view.policy()
        counters = measures.counters(traffic, at)
        readings = {
            metric.name: self._reading(metric, view, traffic, memory.counters, counters, all_traffic)
            for metric in policy.metrics
        }
        in_flight = None if all_traffic.live == 0 or all_traffic.missing else measures.in_flight(traffic)
        memory.counters = counters
        floor = view.record.floor.replicas if view.record.floor else 0
        seen = EndpointObservation(
            readings,
            in_flight,
            traffic.held,
            view.ready,
            view.starting,
            max(floor, scheduled_floor(view.settings.schedules, now)),
        )
        state = memory.scaler
        if state is None or state.target != view.record.target:
            state = fresh_state(view.record.target, at)
        memory.decision, memory.scaler = decide(policy, state, seen, at)
        return memory.decision if memory.decision.target != view.record.target else None

    def _reading(  # noqa: PLR0917  # where numbers come from
        self,
        metric: Metric,
        view: EndpointView,
        traffic: EndpointTraffic,
        before: measures.Counters | None,
        now: measures.Counters,
        all_traffic: Traffic,
    ) -> Reading | None:
        """Returns a metric as it is now; None while it is unknown."""
        source, _, detail = metric.name.partition(":")
        asleep = view.record.target == 0
        match source:
            case measures.UTILIZATION:
                used = [self._usage.utilization(item, detail) for item in view.serving]
                return measures.of_replicas(used, asleep=asleep)
            case measures.CUSTOM:
                shown = [self._usage.metric(item, detail) for item in view.serving]
                return measures.of_replicas(shown, asleep=asleep)
            case measures.PROMETHEUS:
                return measures.of_query(None if self._queries is None else self._queries.value(detail))
        if all_traffic.live == 0:
            return None
        return measures.reading(metric, traffic, before, now, missing=all_traffic.missing)

    def _acknowledged(self, view: EndpointView, memory: _Memory, traffic: Traffic) -> Acknowledged:
        draining = {session_id for session_id, table in memory.draining.items() if table <= traffic.acknowledged}
        gated = memory.gated is not None and memory.gated <= traffic.acknowledged
        # What a router without a link serves is unknown, which is not nothing.
        requests = None if traffic.live == traffic.silent == 0 else traffic.draining
        return Acknowledged(draining, requests, gated)

    def _remember_published(self, view: EndpointView, table: int) -> None:
        """Keeps which table first had what every router has to know before it is acted on."""
        memory = self._memories[view.record.id]
        draining = [item for item, state in view.states.items() if state is ReplicaState.DRAINING]
        memory.draining = {item: memory.draining.get(item, table) for item in draining}
        held = memory.routed is not None and memory.routed.gate
        memory.gated = (table if memory.gated is None else memory.gated) if held else None

    def _rollout(self, view: EndpointView, memory: _Memory, traffic: EndpointTraffic, now: int) -> Rollout | None:
        """Returns the rollout with its progress and answers since it began, as far as this term has seen it."""
        stored = view.record.rollout
        if stored is None:
            return None
        of_new = traffic.revisions.get(stored.to_revision, RevisionTraffic())
        key = (stored.to_revision, stored.step, stored.since_time)
        fleet = view.fleet(dt.datetime.fromtimestamp(now / 1_000, dt.UTC))
        ready = ready_counts(fleet.replicas).get(stored.to_revision, 0)
        if memory.rollout is None or memory.rollout[0] != stored.to_revision:
            memory.begin = of_new
        if memory.rollout != key:
            memory.rollout, memory.most_ready, memory.progress_at = key, ready, now
        requests, errors = measures.since(of_new, memory.begin)
        rollout = rollout_of(stored, requests=requests, errors=errors, progress_at=memory.progress_at)
        if rollout is not None and (ready > memory.most_ready or fleet.target == 0 or not wants_more(fleet, rollout)):
            memory.most_ready, memory.progress_at = max(ready, memory.most_ready), now
            rollout = rollout_of(stored, requests=requests, errors=errors, progress_at=now)
        return rollout
