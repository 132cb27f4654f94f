"""Runs what only the leader does: schedule, hold the links to agents, take in their reports, and enforce the bounds."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from functools import partial
from ipaddress import IPv4Network
from typing import TYPE_CHECKING

from retinue.manager.agent_rpc.relay import Forwarder
from retinue.manager.controllers import deadlines, dependencies, fleet_gauges
from retinue.manager.controllers.log_collector import OutputCollector
from retinue.manager.dispatch.desired_state import Affected, read_desired
from retinue.manager.dispatch.orphans import Orphans, OutOfBounds
from retinue.manager.dispatch.reports import Reports
from retinue.manager.dispatch.supervisor import Supervisor
from retinue.manager.domain.debounce import Debounce
from retinue.manager.domain.endpoints.model import NoRouters
from retinue.manager.domain.reasons import SessionReason
from retinue.manager.domain.session.attempts import AttemptUsage, ListenerBrokenError, UsageWatch
from retinue.manager.domain.session.events import (
    AccessMethod,
    KernelAccess,
    ReasonChanged,
    SessionCreated,
    SessionMoved,
    SessionUpdated,
)
from retinue.manager.domain.session.ipam import POOL, VXLAN_PORT
from retinue.manager.domain.session.states import ENDED_SESSION_STATES, SessionState
from retinue.manager.endpoints.controller import EndpointController
from retinue.manager.endpoints.routers.edge import RouterEdge
from retinue.manager.idle.controller import IdleController
from retinue.manager.scheduler.loop import Scheduler
from retinue.manager.store import retention
from retinue.manager.store.accounts import audit
from retinue.manager.store.fleet import nodes
from retinue.manager.store.journal.journal_tail import PORTION, JournalTail
from retinue.manager.store.leadership import leadership
from retinue.manager.store.placement import attempts, share_history
from retinue.manager.store.postgres.database import Database, StoreUnavailable, Transaction
from retinue.manager.store.postgres.writes import QUIET_SECONDS
from retinue.manager.supervision import for_links, supervise
from retinue.manager.webhooks.dispatcher import WebhookDispatcher
from retinue.rpc.core.addresses import PUBLIC_ONLY, AddressPolicy

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from retinue.manager.agent_rpc.dialer import Dialer
    from retinue.manager.domain.agents.timers import Timers
    from retinue.manager.domain.session.secrets import SessionSecrets
    from retinue.manager.domain.session.service_ports import Addresses
    from retinue.manager.endpoints.queries import QueryReader
    from retinue.manager.identity.endpoint_tokens import EndpointDomain
    from retinue.manager.store.fleet.nodes import AgentTarget


_ENDING = (SessionState.TERMINATING, SessionState.CANCELLED)
_TICK_SECONDS = 1.0
_MAINTENANCE_SECONDS = 60.0
# Between two samples of what users and projects hold.
_SHARES_SECONDS = 300.0
# Between portions of what is removed: others have their turn.
_PURGE_PAUSE_SECONDS = 0.2


class Leader:
    """Runs one term, until it is cancelled or one of its parts finds that another leads.
    A part that fails is run again by itself.
    """

    def __init__(  # noqa: PLR0917  # what the server has made
        self,
        database: Database,
        tail: JournalTail,
        dialer: Dialer,
        timers: Timers,
        incarnation: str,
        term: int,
        secrets: SessionSecrets,
        *,
        null_kernels: bool = False,
        control_plane: Callable[[], frozenset[str]] = frozenset,
        check_lease: Callable[[], None] = lambda: None,
        webhook_addresses: AddressPolicy = PUBLIC_ONLY,
        kept: dt.timedelta | None = None,
        audit_kept: dt.timedelta | None = None,
        shares_kept: dt.timedelta | None = None,
        endpoint_domain: EndpointDomain | None = None,
        prometheus_url: str = "",
        subnets: IPv4Network = POOL,
        vxlan_port: int = VXLAN_PORT,
        addresses: Addresses | None = None,
    ) -> None:
        """Agents whose kernels do nothing are refused unless `null_kernels` are wanted. `control_plane` are the
        addresses of managers and database: kernels are kept from them. Sessions that ended are `kept` for so long,
        records of the audit `audit_kept`, shares over time `shares_kept`; None: for ever. Without an `endpoint_domain`
        there are no routers, and without a `prometheus_url` no metrics by queries. New networks of sessions are in
        `subnets` and have `vxlan_port`, and a gateway has `addresses` for their ports.
        """
        self._database = database
        self._dialer = dialer
        self._tail = tail
        self._control_plane = control_plane
        self._term = term
        self._check_lease = check_lease
        self._kept = kept
        self._audit_kept = audit_kept
        self._shares_kept = shares_kept
        self._orphans = Orphans(database, term, self._committed)
        self._out_of_bounds = OutOfBounds(database, term)
        self._reports = Reports(database, term, self._committed, self._orphans, out_of_bounds=self._out_of_bounds.note)
        self._lost_after = timers.lost_after
        self._outputs = OutputCollector(database, term, Forwarder(dialer), self._committed)
        self._scheduler = Scheduler(database, term, self._placed, subnets, vxlan_port)
        self._ended = asyncio.Event()
        self._database_clock = deadlines.DatabaseClock()
        self._webhooks = WebhookDispatcher(database, term, webhook_addresses)
        self._idle = IdleController(
            database, term, self._committed, self._watch_usage, out_of_bounds=self._out_of_bounds.note
        )
        self._edge = (
            None
            if endpoint_domain is None
            else RouterEdge(
                database,
                dialer,
                incarnation,
                term,
                endpoint_domain,
                moved=self._wake_endpoints,
                check_lease=self._check_sending,
            )
        )
        self._queries = _query_reader(prometheus_url)
        self._idle_intervals: Mapping[str, float] = {}
        self._replica_watches: Mapping[str, UsageWatch] = {}
        self.endpoints = EndpointController(
            database,
            term,
            self._committed,
            self._edge or NoRouters(),
            watch_usage=self._watch_replicas,
            answered=self._answered,
            queries=self._queries,
        )
        self._supervisor = Supervisor(
            incarnation=incarnation,
            term=term,
            dialer=dialer,
            timers=timers,
            targets=self._targets,
            desired=lambda agent_id, session_ids: read_desired(
                database,
                agent_id,
                secrets,
                session_ids,
                fence_seconds=timers.fence_timeout,
                addresses=addresses,
            ),
            removable=self._orphans.removable,
            listener=self._reports,
            clock=time.monotonic,
            null_kernels=null_kernels,
            control_plane=control_plane,
            routers=self._routers,
            check_lease=self._check_sending,
            used=self._used,
            reached=self._reports.reach_changed,
            writes=database.writes,
        )

    async def run(self) -> None:
        """Leads. Ends with an exception only."""
        self._tail.on_wake(self._scheduler.wake)
        self._dialer.on_failure(self._supervisor.look_for)
        try:
            await self._run()
        finally:
            self._dialer.on_failure(None)
            self._tail.on_wake(None)

    async def _run(self) -> None:
        parts = {
            "supervisor": self._supervisor.run,
            "reports": self._reports.run,
            "out of bounds": self._out_of_bounds.run,
            "outputs": self._outputs.run,
            "scheduler": self._schedule,
            "orphans": self._orphans.run,
            "deadlines": self._enforce,
            "idle": self._idle.run,
            "dependencies": self._settle,
            "endpoints": self.endpoints.run,
            "webhooks": self._webhooks.run,
            "journal": self._follow,
            "house": self._run_maintenance,
            "shares": self._sample_shares,
            "gauges": self._show_fleet,
        }
        if self._edge is not None:
            parts["routers"] = self._edge.run
        if self._queries is not None:
            parts["queries"] = self._queries.run
        async with asyncio.TaskGroup() as group:
            for name, part in parts.items():
                group.create_task(supervise(name, part), name=name)

    def _watch_usage(self, intervals: Mapping[str, float]) -> None:
        self._idle_intervals = intervals
        self._watch()

    def _watch_replicas(self, watches: Mapping[str, UsageWatch]) -> None:
        self._replica_watches = watches
        self._watch()

    def _watch(self) -> None:
        """Lets each agent report as often as the one of idle checks and endpoints needs it that needs it more often."""
        idle, replicas = self._idle_intervals, self._replica_watches
        merged = {agent_id: UsageWatch(interval) for agent_id, interval in idle.items()}
        for agent_id, watch in replicas.items():
            shortest = min(watch.interval, idle.get(agent_id, watch.interval))
            merged[agent_id] = UsageWatch(shortest, watch.metrics)
        self._supervisor.watch_usage(merged)

    def _answered(self, attempts: Mapping[str, Collection[str]]) -> None:
        self._supervisor.answered(attempts)

    def _used(self, agent_id: str, samples: Iterable[AttemptUsage]) -> None:
        found = tuple(samples)
        self._idle.used(agent_id, found)
        self.endpoints.used(agent_id, found)

    def _routers(self) -> frozenset[str]:
        """Returns the addresses that routers come from: one at a loopback address runs beside the manager,
        and comes from the manager's.
        """
        addresses = frozenset[str]() if self._edge is None else self._edge.addresses()
        local = any(ipaddress.ip_address(address).is_loopback for address in addresses)
        return addresses | self._control_plane() if local else addresses

    def refresh_agents(self) -> None:
        """Agents or routers may have come, moved or gone."""
        self._supervisor.refresh_agents()
        if self._edge is not None:
            self._edge.refresh()

    def _committed(self, affected: Affected) -> None:
        """A commit of this leader concerns these agents; whatever else it may have set free is looked for too."""
        self._supervisor.wake(affected)
        self._scheduler.wake()
        self._outputs.wake()
        self._tail.notify()

    def _placed(self, affected: Affected) -> None:
        """A commit of the scheduler concerns these agents: it sets nothing free and ends nothing."""
        self._supervisor.wake(affected)
        self._tail.notify()

    def _wake_endpoints(self) -> None:
        self.endpoints.wake()

    def _check_sending(self) -> None:
        with for_links("the lease"):
            self._check_lease()

    async def _show_fleet(self) -> None:
        await fleet_gauges.run(self._database)

    async def _schedule(self) -> None:
        await self._orphans.wait_until_reported(self._lost_after)
        await self._scheduler.run()

    async def _enforce(self) -> None:
        while True:
            seen = self._database.writes.number
            soon = await deadlines.enforce(
                self._database, self._term, self._committed, self._database_clock, late=self._note_late_starts
            )
            longest = _TICK_SECONDS if soon else QUIET_SECONDS
            await self._database.writes.rest(asyncio.Event(), seen, _TICK_SECONDS, longest)

    def _note_late_starts(self, starts: Sequence[deadlines.LateStart]) -> None:
        for start in starts:
            self._reports.note_failed_start(start.agent_id, start.session_id, start.owner, start.status)

    async def _settle(self) -> None:
        """Releases what waited for sessions that have terminated, or cancels it;
        checked whenever something was written in case an end was missed.
        """
        debounce = Debounce()
        while True:
            await asyncio.sleep(debounce.begin(time.monotonic()))
            self._ended.clear()
            seen = self._database.writes.number
            await dependencies.settle(self._database, self._term, self._committed)
            await self._database.writes.rest(self._ended, seen, _TICK_SECONDS)

    async def _run_maintenance(self) -> None:
        while True:
            async with self._database.transaction() as tx:
                await leadership.check(tx, self._term)
                await retention.forget(tx)
            await self._purge(partial(audit.forget, age=self._audit_kept))
            if self._kept is not None:
                # Outputs first: those are most of it.
                await self._purge(partial(retention.purge_outputs, age=self._kept))
                await self._purge(partial(retention.purge_sessions, age=self._kept))
            await asyncio.sleep(_MAINTENANCE_SECONDS)

    async def _sample_shares(self) -> None:
        while True:
            async with self._database.transaction() as tx:
                await leadership.check(tx, self._term)
                await share_history.record(tx)
                if self._shares_kept is not None:
                    await share_history.forget(tx, self._shares_kept)
            await asyncio.sleep(_SHARES_SECONDS)

    async def _purge(self, purge: Callable[[Transaction], Awaitable[int]]) -> None:
        """Removes what is kept no longer, in portions, until there is none left."""
        while True:
            async with self._database.transaction() as tx:
                await leadership.check(tx, self._term)
                number = await purge(tx)
            if number == 0:
                break
            await asyncio.sleep(_PURGE_PAUSE_SECONDS)

    async def _follow(self) -> None:
        """Finds out what any replica did to sessions: new ones are scheduled, ended ones are stopped."""
        revision = await self._tail.newest()
        # What came before, and was not followed, may concern anything.
        self._supervisor.wake_all()
        self._scheduler.wake()
        self._webhooks.wake()
        self._ended.set()
        debounce = Debounce()
        async for batch in self._tail.follow(revision):
            created = any(isinstance(event.body, SessionCreated) for event in batch)
            moves = [(event.session_id, event.body.to_state) for event in batch if isinstance(event.body, SessionMoved)]
            if created or moves:
                self._webhooks.wake()
            self.endpoints.notice(event.session_id for event in batch)
            # All other moves are this leader's own, and the links of affected agents are awake already.
            changed = {session_id for session_id, state in moves if state in _ENDING}
            changed |= {event.session_id for event in batch if _is_for_agents(event.body)}
            if created or any(isinstance(event.body, SessionUpdated) for event in batch):
                self._scheduler.wake()
            if changed:
                async with self._database.transaction() as tx:
                    affected = await attempts.find_affected_agents(tx, changed)
                self._supervisor.wake(affected)
                self._scheduler.wake()
            if any(state in ENDED_SESSION_STATES for _, state in moves):
                self._ended.set()
            if changed and len(batch) < PORTION:
                # What comes meanwhile is found together.
                await asyncio.sleep(debounce.begin(time.monotonic()))

    async def _targets(self) -> Mapping[str, AgentTarget]:
        try:
            async with self._database.transaction() as tx:
                return await nodes.read_targets(tx)
        except StoreUnavailable as error:
            raise ListenerBrokenError(f"agents could not be read: {error}") from error


def _query_reader(prometheus_url: str) -> QueryReader | None:
    if not prometheus_url:
        return None
    # Most managers ask none, and it takes memory.
    from retinue.manager.endpoints.queries import QueryReader  # noqa: PLC0415

    return QueryReader(prometheus_url)


def _is_for_agents(body: object) -> bool:
    """Returns whether agents have to learn of something that any replica did: an end without grace,
    a restart, and other keys that are let in.
    """
    if isinstance(body, ReasonChanged):
        return body.forced
    if isinstance(body, SessionMoved):
        return body.reason == SessionReason.RESTARTED
    return isinstance(body, KernelAccess) and body.method is AccessMethod.SSH_KEYS
