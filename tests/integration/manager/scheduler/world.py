"""A small cluster on which users, administrators and faults are let loose, and what must hold after every step."""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from retinue.manager.controllers import deadlines
from retinue.manager.dispatch.reports import Reports
from retinue.manager.domain.scheduling.records import AgentState
from retinue.manager.domain.session.admission import admit
from retinue.manager.domain.session.events import KernelMoved, SessionCreated, SessionMoved, UnreadableEvent
from retinue.manager.domain.session.spec import KernelSpec, RetryPolicy, SessionSpec
from retinue.manager.domain.session.states import KernelState, SessionState, SessionType
from retinue.manager.session.drafts import draft
from retinue.manager.session.submit import create_many
from retinue.manager.session.transaction import terminate
from retinue.manager.store.journal import journal
from retinue.manager.store.placement import ledger
from tests.integration.manager.reporting_node import TERM, Node, enrol
from tests.support.stepped_scheduler import SteppedScheduler

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.manager.store.postgres.database import Database

GIB = 2**30
WHOLE = {"cluster_size": 1, "single_node": True}


class World:
    """Three nodes, a scheduler, and users that submit and terminate."""

    def __init__(self, database: Database, seed: int) -> None:
        self.database = database
        self.random = random.Random(seed)  # a fixed seed
        self.reports = Reports(database, TERM, lambda _: None)
        self.scheduler = SteppedScheduler(database, TERM, lambda _: None)
        self.nodes = [Node(f"n{n}", self.reports, database, {"cpu": 4000, "mem": 4 * GIB}) for n in range(3)]
        self.lost: set[str] = set()
        self.submitted = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[World]:
        task = asyncio.create_task(self.reports.run())
        try:
            await enrol(self.database, [node.name for node in self.nodes])
            for node in self.nodes:
                await node.join()
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def submit(self, **changes: Any) -> uuid.UUID:
        self.submitted += 1
        values: dict[str, Any] = {
            "name": f"s{self.submitted}",
            "project": "default",
            "resource_group": "default",
            "type": self.random.choice([SessionType.BATCH, SessionType.INTERACTIVE]),
            "single_node": self.random.random() < 0.5,
            "cluster_size": self.random.choice([1, 1, 2, 3]),
            "retry": self.random.choice([None, RetryPolicy(3, on_failure=True, backoff_seconds=0.0), RetryPolicy(2)]),
            "kernel": KernelSpec(command=("x",), slots={"cpu": self.random.choice(["0.5", "1", "3"]), "mem": "256m"}),
        }
        spec, violations = admit(SessionSpec(**{**values, **changes}))
        assert not violations
        session_id = uuid.UUID(int=self.random.getrandbits(128), version=4)
        owner = self.random.choice(["ann", "ben", "cem"])
        async with self.database.transaction() as tx:
            await create_many(tx, [draft(session_id, owner, spec)])
        return session_id

    async def schedule(self) -> None:
        await self.scheduler.run_once()

    async def terminate(self) -> None:
        async with self.database.transaction() as tx:
            live = await tx.execute(
                text("SELECT id FROM session WHERE state NOT IN ('TERMINATED', 'CANCELLED') ORDER BY number")
            )
            ids = list(live.scalars())
        if ids:
            async with self.database.transaction() as tx:
                await terminate(tx, self.random.choice(ids), by="test", force=False)

    async def end(self, session_id: uuid.UUID) -> None:
        async with self.database.transaction() as tx:
            await terminate(tx, session_id, by="test", force=False)

    async def act(self) -> None:
        choice = self.random.random()
        here = [node for node in self.nodes if node.name not in self.lost]
        if choice < 0.25:
            await self.submit()
        elif choice < 0.35:
            await self.terminate()
        elif choice < 0.5:
            await self.schedule()
        elif choice < 0.9 and here:
            node = self.random.choice(here)
            await node.step(fail=self.random.random() < 0.1, exit_code=self.random.choice([None, None, 0, 1]))
        elif choice < 0.95:
            if len(here) > 1:
                node = self.random.choice(here)
                self.lost.add(node.name)
                await self.reports.liveness_changed(node.name, AgentState.LOST, 60.0)
                await deadlines.enforce(self.database, TERM, lambda _: None)
        elif self.lost:
            name = self.random.choice(sorted(self.lost))
            self.lost.discard(name)
            await next(node for node in self.nodes if node.name == name).join()

    async def come_to_rest(self) -> None:
        for node in self.nodes:
            await node.join()
        self.lost.clear()
        async with self.database.transaction() as tx:
            rows = await tx.execute(text("SELECT id FROM session WHERE state NOT IN ('TERMINATED', 'CANCELLED')"))
            for session_id in rows.scalars().all():
                await terminate(tx, session_id, by="test", force=False)
        for _ in range(20):
            if not any([await node.step() for node in self.nodes]):
                return
        raise AssertionError("the nodes do not come to rest")


async def settle(world: World) -> None:
    for _ in range(20):
        await world.schedule()
        if not any([await node.step() for node in world.nodes]):
            return
    raise AssertionError("the nodes do not come to rest")


def kernel(cpu: str) -> dict[str, Any]:
    return {**WHOLE, "kernel": KernelSpec(command=("x",), slots={"cpu": cpu, "mem": "256m"})}


async def row(database: Database, session_id: uuid.UUID) -> Any:
    async with database.transaction() as tx:
        rows = await tx.execute(
            text("""
                SELECT s.state, s.reason, s.message, s.result, s.nomination, s.tries, k.agent_id, k.epoch
                FROM session s JOIN kernel k ON k.id = s.id WHERE s.id = :id
            """),
            {"id": session_id},
        )
        return rows.one()


async def check(database: Database) -> None:
    """All invariants that rows can show."""
    await check_claims(database)
    await check_journal(database)


async def check_claims(database: Database) -> None:
    """Invariants 2, 4 and 7: claims within capacity, shares equal to claims, gangs whole."""
    async with database.transaction() as tx:
        broken = await tx.execute(
            text("""
                SELECT 'claims are within capacity', c.agent_id FROM claim c JOIN agent g ON g.id = c.agent_id
                    WHERE c.release_time IS NULL
                    GROUP BY c.agent_id, c.slot, g.capacity HAVING sum(c.amount) > (g.capacity->>c.slot)::bigint
                UNION ALL
                SELECT 'claims live exactly as long as their attempts', a.kernel_id::text FROM attempt a
                    WHERE (a.end_time IS NULL) <>
                        EXISTS (SELECT FROM claim c WHERE (c.kernel_id, c.epoch) = (a.kernel_id, a.epoch) AND c.release_time IS NULL)
                UNION ALL
                SELECT 'a kernel has one live attempt at most', kernel_id::text FROM attempt
                    WHERE end_time IS NULL GROUP BY kernel_id HAVING count(*) > 1
                UNION ALL
                SELECT 'a gang is placed whole or not at all', s.id::text FROM session s JOIN kernel k ON k.session_id = s.id
                    GROUP BY s.id HAVING count(DISTINCT k.state = 'PENDING') > 1
            """)
        )
        assert broken.all() == []
        assert (await ledger.verify(tx, "")).mismatches == [], "shares are what the live claims come to"


async def check_journal(database: Database) -> None:
    """Invariant 5: the journal, from its beginning on, comes to what the tables say."""
    async with database.transaction() as tx:
        sessions = {row.id: row.state for row in await tx.execute(text("SELECT id, state FROM session"))}
        kernels = {row.id: row.state for row in await tx.execute(text("SELECT id, state FROM kernel"))}
        newest, *_ = await journal.head(tx)
        events = (await journal.read(tx, 0, 100_000)).events
    assert [event.revision for event in events] == list(range(1, newest + 1))
    replayed: dict[Any, str] = {}
    replayed_kernels: dict[uuid.UUID, str] = {}
    for event in events:
        body = event.body
        assert not isinstance(body, UnreadableEvent)
        if isinstance(body, SessionCreated):
            replayed[event.session_id] = SessionState.PENDING
            replayed_kernels.update({kernel.id: KernelState.PENDING for kernel in body.kernels})
        elif isinstance(body, SessionMoved):
            assert replayed[event.session_id] == body.from_state
            replayed[event.session_id] = body.to_state
        elif isinstance(body, KernelMoved):
            assert replayed_kernels[body.kernel_id] == body.from_state
            replayed_kernels[body.kernel_id] = body.to_state
    assert replayed == sessions
    assert replayed_kernels == kernels
