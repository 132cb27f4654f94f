"""Runs what only the leader does: schedule, hold the links to agents, take in their reports, and enforce the bounds."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import time
import uuid
from collections.abc import Callable, Collection, Mapping

from retinue.manager.agent_rpc.dialer import Dialer
from retinue.manager.agent_rpc.relay import Forwarder
from retinue.manager.controllers import deadlines, dependencies
from retinue.manager.controllers.log_collector import OutputCollector
from retinue.manager.dispatch.core.liveness import Timers
from retinue.manager.dispatch.desired_state import Affected, read_desired
from retinue.manager.dispatch.orphans import Orphans
from retinue.manager.dispatch.out_of_bounds import OutOfBounds
from retinue.manager.dispatch.reports import Reports
from retinue.manager.dispatch.supervisor import Supervisor, Target
from retinue.manager.idle.controller import IdleController
from retinue.manager.scheduler.loop import Scheduler
from retinue.manager.session.core.attempts import DesiredState, ListenerBrokenError
from retinue.manager.session.core.secrets import SessionSecrets
from retinue.manager.session.core.states import ENDED_SESSION_STATES
from retinue.manager.store import attempts, leadership, nodes, retention
from retinue.manager.store.database import Database, StoreUnavailable
from retinue.manager.store.journal_tail import JournalTail
from retinue.manager.supervision import for_links, supervise
from retinue.manager.webhooks.core.rules import PUBLIC_ONLY, AddressPolicy
from retinue.manager.webhooks.dispatcher import WebhookDispatcher

_log = logging.getLogger(__name__)

_TICK_SECONDS = 1.0
# When agents were heard is written so often: what is shown of it is true to this.
_HEARD_SECONDS = 10.0
_HOUSE_SECONDS = 60.0
# Between portions of what is removed: others have their turn.
_PURGE_PAUSE_SECONDS = 0.2


class Leader:
    """Runs one term, until it is cancelled or one of its parts finds that another leads. A part that fails is run again by itself."""

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
    ) -> None:
        """Agents whose kernels do nothing are refused unless `null_kernels` are wanted. `control_plane` are the addresses of
        managers and database: kernels are kept from them. Sessions that ended are `kept` for so long; None: for ever.
        """
        self._database = database
        self._tail = tail
        self._term = term
        self._check_lease = check_lease
        self._fence_seconds = timers.fence_after
        self._secrets = secrets
        self._kept = kept
        self._orphans = Orphans(database, term, self._committed)
        self._out_of_bounds = OutOfBounds(database, term)
        self._reports = Reports(database, term, self._committed, self._orphans, out_of_bounds=self._out_of_bounds.note)
        self._lost_after = timers.lost_after
        self._outputs = OutputCollector(database, term, Forwarder(dialer), self._committed)
        self._scheduler = Scheduler(database, term, self._placed)
        self._ended = asyncio.Event()
        self._database_clock = deadlines.DatabaseClock()
        self._webhooks = WebhookDispatcher(database, term, webhook_addresses)
        self._idle = IdleController(
            database, term, self._committed, self._watch_usage, out_of_bounds=self._out_of_bounds.note
        )
        self._supervisor = Supervisor(
            incarnation=incarnation,
            term=term,
            dialer=dialer,
            timers=timers,
            targets=self._targets,
            desired=self._desired,
            superfluous=self._orphans.superfluous,
            listener=self._reports,
            clock=time.monotonic,
            null_kernels=null_kernels,
            control_plane=control_plane,
            check_lease=self._check_sending,
            used=self._idle.used,
        )

    async def run(self) -> None:
        """Leads. Ends with an exception only."""
        self._tail.on_wake(self._scheduler.wake)
        try:
            await self._run()
        finally:
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
            "webhooks": self._webhooks.run,
            "journal": self._follow,
            "heard": self._record_heard,
            "house": self._keep_house,
        }
        async with asyncio.TaskGroup() as group:
            for name, part in parts.items():
                group.create_task(supervise(name, part), name=name)

    def _watch_usage(self, intervals: Mapping[str, float]) -> None:
        self._supervisor.watch_usage(intervals)

    def refresh_agents(self) -> None:
        """Agents may have come, moved or gone."""
        self._supervisor.refresh_agents()

    def _committed(self, affected: Affected) -> None:
        """A commit of this leader concerns these agents; whatever else it may have set free is looked for too."""
        self._supervisor.wake(affected)
        self._scheduler.wake()
        self._outputs.wake()
        self._tail.tell()

    def _placed(self, affected: Affected) -> None:
        """A commit of the scheduler concerns these agents: it sets nothing free and ends nothing."""
        self._supervisor.wake(affected)
        self._tail.tell()

    def _check_sending(self) -> None:
        with for_links("the lease"):
            self._check_lease()

    async def _schedule(self) -> None:
        await self._orphans.wait_until_reported(self._lost_after)
        await self._scheduler.run()

    async def _enforce(self) -> None:
        while True:
            await deadlines.enforce(self._database, self._term, self._committed, self._database_clock)
            await asyncio.sleep(_TICK_SECONDS)

    async def _settle(self) -> None:
        """Releases what waited for sessions that have terminated, or cancels it; checked every second in case an end was missed."""
        while True:
            self._ended.clear()
            await dependencies.settle(self._database, self._term, self._committed)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_SECONDS):
                    await self._ended.wait()

    async def _keep_house(self) -> None:
        while True:
            async with self._database.transaction() as tx:
                await leadership.check(tx, self._term)
                await retention.forget(tx)
            if self._kept is not None:
                await self._purge(self._kept)
            await asyncio.sleep(_HOUSE_SECONDS)

    async def _purge(self, age: dt.timedelta) -> None:
        """Removes sessions that ended longer ago, their outputs first: those are most of it."""
        for purge in (retention.purge_outputs, retention.purge_sessions):
            while True:
                async with self._database.transaction() as tx:
                    await leadership.check(tx, self._term)
                    number = await purge(tx, age)
                if number == 0:
                    break
                await asyncio.sleep(_PURGE_PAUSE_SECONDS)

    async def _record_heard(self) -> None:
        while True:
            if silences := self._supervisor.silences():
                async with self._database.transaction() as tx:
                    await leadership.check(tx, self._term)
                    await nodes.record_heard(tx, silences)
            await asyncio.sleep(_HEARD_SECONDS)

    async def _follow(self) -> None:
        """Finds out what any replica did to sessions: new ones are scheduled, ended ones are stopped."""
        revision = await self._tail.newest()
        # What came before, and was not followed, may concern anything.
        self._supervisor.wake_all()
        self._scheduler.wake()
        self._webhooks.wake()
        self._ended.set()
        async for batch in self._tail.follow(revision):
            if any(event.kind in ("CREATED", "SESSION_MOVED") for event in batch):
                self._webhooks.wake()
            ended = {
                event.session_id
                for event in batch
                # All other moves are this leader's own, and the links of affected agents are awake already.
                if (event.kind == "SESSION_MOVED" and event.payload["to"] in ("TERMINATING", "CANCELLED"))
                or (event.kind == "NOTED" and event.payload.get("forced"))
            }
            if any(event.kind == "CREATED" for event in batch):
                self._scheduler.wake()
            if ended:
                async with self._database.transaction() as tx:
                    affected = await attempts.find_affected_agents(tx, ended)
                self._supervisor.wake(affected)
                self._scheduler.wake()
            if any(event.kind == "SESSION_MOVED" and event.payload["to"] in ENDED_SESSION_STATES for event in batch):
                self._ended.set()

    async def _targets(self) -> Mapping[str, Target]:
        try:
            async with self._database.transaction() as tx:
                rows = await nodes.read_targets(tx)
        except StoreUnavailable as error:
            raise ListenerBrokenError(f"agents could not be read: {error}") from error
        return {row.id: Target(row.address, row.state, row.underlay_address, row.revoked) for row in rows}

    async def _desired(self, agent_id: str, session_ids: Collection[uuid.UUID] | None) -> DesiredState:
        try:
            return await read_desired(
                self._database, agent_id, self._secrets, session_ids, fence_seconds=self._fence_seconds
            )
        except StoreUnavailable as error:
            raise ListenerBrokenError(f"what is wanted of it could not be read: {error}") from error
