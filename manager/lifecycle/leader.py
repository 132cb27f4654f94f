"""What only the leader does: schedule, hold the links to agents, take in their reports, and enforce the bounds."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Collection, Mapping

from manager.fleet.desired import Desired, ListenerBrokenError
from manager.fleet.dialer import Dialer
from manager.fleet.forwarding import Forwarder
from manager.fleet.supervisor import Supervisor, Target, Timers
from manager.lifecycle import deadlines, dependencies
from manager.lifecycle.desires import Concerned, read_desired
from manager.lifecycle.idle_keeper import IdleKeeper
from manager.lifecycle.outputs import OutputCollector
from manager.lifecycle.persistence import persist
from manager.lifecycle.reports import Reports
from manager.lifecycle.scheduler import Scheduler
from manager.lifecycle.secrets import SessionSecrets
from manager.lifecycle.states import ENDED_SESSION_STATES
from manager.lifecycle.webhooks import Courier
from manager.store import attempts, leadership, nodes, retention
from manager.store.database import Database, StoreUnavailable
from manager.store.journal import JournalTail
from manager.webhooks.rules import PUBLIC_ONLY, AddressPolicy

_log = logging.getLogger(__name__)

_TICK_SECONDS = 1.0
# Heartbeat times in the database are true to this.
_HOUSE_SECONDS = 60.0


class Leader:
    """Runs one term, until it is cancelled or one of its parts finds that another leads."""

    def __init__(  # noqa: PLR0917  # what the server has made
        self,
        database: Database,
        tail: JournalTail,
        dialer: Dialer,
        timers: Timers,
        term: int,
        secrets: SessionSecrets,
        *,
        null_kernels: bool = False,
        control_plane: frozenset[str] = frozenset(),
        webhook_addresses: AddressPolicy = PUBLIC_ONLY,
    ) -> None:
        """Agents whose kernels do nothing are refused unless `null_kernels` are wanted. `control_plane` are the addresses of
        managers and database: kernels are kept from them.
        """
        self._database = database
        self._tail = tail
        self._term = term
        self._fence_seconds = timers.fence_after
        self._secrets = secrets
        self._reports = Reports(database, term, self._committed)
        self._outputs = OutputCollector(database, term, Forwarder(dialer), self._committed)
        self._scheduler = Scheduler(database, term, self._placed)
        self._ended = asyncio.Event()
        self._courier = Courier(database, term, webhook_addresses)
        self._idle = IdleKeeper(database, term, self._committed, self._watch_usage)
        self._supervisor = Supervisor(
            term=term,
            dialer=dialer,
            timers=timers,
            targets=self._targets,
            desired=self._desired,
            listener=self._reports,
            clock=time.monotonic,
            null_kernels=null_kernels,
            control_plane=control_plane,
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
        async with asyncio.TaskGroup() as group:
            group.create_task(self._supervisor.run(), name="supervisor")
            group.create_task(self._reports.run(), name="reports")
            group.create_task(persist("outputs", self._outputs.run), name="outputs")
            group.create_task(persist("scheduler", self._scheduler.run), name="scheduler")
            group.create_task(persist("deadlines", self._enforce), name="deadlines")
            group.create_task(persist("idle", self._idle.run), name="idle")
            group.create_task(persist("dependencies", self._settle), name="dependencies")
            group.create_task(persist("webhooks", self._courier.run), name="webhooks")
            group.create_task(persist("journal", self._follow), name="journal")
            group.create_task(persist("house", self._keep_house), name="house")

    def _watch_usage(self, intervals: Mapping[str, float]) -> None:
        self._supervisor.watch_usage(intervals)

    def retarget(self) -> None:
        """Agents may have come, moved or gone."""
        self._supervisor.retarget()

    def _committed(self, concerned: Concerned) -> None:
        """A commit of this leader concerns these agents; whatever else it may have set free is looked for too."""
        self._supervisor.wake(concerned)
        self._scheduler.wake()
        self._outputs.wake()
        self._tail.tell()

    def _placed(self, concerned: Concerned) -> None:
        """A commit of the scheduler concerns these agents: it sets nothing free and ends nothing."""
        self._supervisor.wake(concerned)
        self._tail.tell()

    async def _enforce(self) -> None:
        while True:
            await deadlines.enforce(self._database, self._term, self._committed)
            await asyncio.sleep(_TICK_SECONDS)

    async def _settle(self) -> None:
        """Lets go of what waited for sessions that are over, or cancels it; looked for every second in case an end was missed."""
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
                await nodes.touch(tx, self._supervisor.alive())
                await retention.forget(tx)
            await asyncio.sleep(_HOUSE_SECONDS)

    async def _follow(self) -> None:
        """Finds out what any replica did to sessions: new ones are scheduled, ended ones are stopped."""
        revision = await self._tail.newest()
        # What came before, and was not followed, may concern anything.
        self._supervisor.wake_all()
        self._scheduler.wake()
        self._courier.wake()
        self._ended.set()
        async for batch in self._tail.follow(revision):
            if any(event.kind in ("CREATED", "SESSION_MOVED") for event in batch):
                self._courier.wake()
            ended = {
                event.session_id
                for event in batch
                # All other moves are this leader's own, and those concerned know already.
                if event.kind == "SESSION_MOVED" and event.payload["to"] in ("TERMINATING", "CANCELLED")
            }
            if any(event.kind == "CREATED" for event in batch):
                self._scheduler.wake()
            if ended:
                async with self._database.transaction() as tx:
                    concerned = await attempts.agents_concerned(tx, ended)
                self._supervisor.wake(concerned)
                self._scheduler.wake()
            if any(event.kind == "SESSION_MOVED" and event.payload["to"] in ENDED_SESSION_STATES for event in batch):
                self._ended.set()

    async def _targets(self) -> Mapping[str, Target]:
        async with self._database.transaction() as tx:
            return {
                row["id"]: Target(row["address"], row["state"], row["underlay_address"])
                for row in await nodes.read_targets(tx)
            }

    async def _desired(self, agent_id: str, session_ids: Collection[uuid.UUID] | None) -> Desired:
        try:
            return await read_desired(
                self._database, agent_id, self._secrets, session_ids, fence_seconds=self._fence_seconds
            )
        except StoreUnavailable as error:
            raise ListenerBrokenError(f"what is wanted of it could not be read: {error}") from error
