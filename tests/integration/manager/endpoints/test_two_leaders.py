"""A leader that stands still in the middle of a look, past its lease, while the next one rolls out and scales: when it
continues it does nothing, and whatever it had decided is decided once.
"""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING, cast

import pytest
from sqlalchemy import text

from retinue.manager.domain.endpoints.model import EndpointTraffic, RevisionTraffic, Traffic
from retinue.manager.endpoints.controller import EndpointController
from retinue.manager.store.leadership.leadership import NotLeader
from retinue.manager.v1 import endpoint_pb2 as epb
from retinue.manager.v1 import endpoint_service_pb2 as pb
from tests.integration.manager.endpoints.controlled import TERM, Rig, Routers, revision

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from retinue.manager.store.postgres.database import Database, Transaction

pytestmark = pytest.mark.asyncio(loop_scope="session")

MAX = 4


class StoppedDatabase:
    """The database, for a process that stands still before one of its transactions while `meanwhile` runs."""

    def __init__(self, database: Database, before: int, meanwhile: Callable[[], Awaitable[None]]) -> None:
        self._database = database
        self._left = before
        self._meanwhile = meanwhile
        self.stopped = False

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        self._left -= 1
        if self._left == 0:
            self.stopped = True
            await self._meanwhile()
        async with self._database.transaction() as tx:
            yield tx


class Leaders:
    """Two managers and the routers of each: those obey the newest term only."""

    def __init__(self, rig: Rig, endpoint_id: uuid.UUID) -> None:
        self.rig = rig
        self.endpoint_id = endpoint_id
        self.term = TERM
        self.now = 1_000.0
        self.most = 0

    def lead(self, database: Database) -> EndpointController:
        routers = Routers()
        # Eight times what one replica is to bear: as many as the policy allows.
        busy = EndpointTraffic(revisions={1: RevisionTraffic(in_flight=64)})
        routers.reported = Traffic(live=1, endpoints={self.endpoint_id: busy})
        return EndpointController(database, self.term, lambda _affected: None, routers, clock=lambda: self.now)

    async def take_over(self) -> None:
        """Leads in the next term until there are as many replicas of the newest revision as there may be."""
        self.term += 1
        async with self.rig.service.database.transaction() as tx:
            await tx.execute(text("UPDATE leadership SET term = :term"), {"term": self.term})
        newest = (await self.rig.get()).newest_revision
        controller = self.lead(self.rig.service.database)
        for _ in range(60):
            await self.look(controller)
            if await self.rig.states() == [(newest, "READY")] * MAX:
                return
        raise AssertionError(f"it stays at {await self.rig.states()}")

    async def look(self, controller: EndpointController) -> None:
        self.now += 4
        await controller.look()
        live = [state for _, state in await self.rig.states() if state not in ("DRAINING", "STOPPING", "GONE")]
        self.most = max(self.most, len(live))
        await self.rig.obey()


async def test_a_leader_that_stood_still_does_nothing_that_the_next_one_did(rig: Rig) -> None:
    scaling = epb.ScalingPolicy(min=1, max=MAX)
    made = await rig.create(scaling=scaling)
    leaders = Leaders(rig, uuid.UUID(made.id))
    await leaders.take_over()
    before, stopped, refused = 1, True, 0
    while stopped:
        # Down to one, so that the load makes three more; and a rollout beside.
        async with rig.service.database.transaction() as tx:
            await tx.execute(text("UPDATE endpoint SET target = 1"))
        await rig.call("DeployRevision", pb.DeployRevisionRequest(endpoint="llm", revision=revision(queue=before)))
        database = StoppedDatabase(rig.service.database, before, leaders.take_over)
        old = leaders.lead(cast("Database", database))
        try:
            for _ in range(3):
                await leaders.look(old)
        except NotLeader:
            refused += 1
        stopped = database.stopped
        if not stopped:
            await leaders.take_over()
        newest = (await rig.get()).newest_revision
        assert await rig.states() == [(newest, "READY")] * MAX
        before += 1
    assert before > 5
    assert refused > 3
    # One more while one of them is replaced.
    assert leaders.most <= MAX + 1
    await check_journal(rig)


async def check_journal(rig: Rig) -> None:
    """Each replica was made once and moved along; each decision follows from the target that was."""
    async with rig.service.database.transaction() as tx:
        rows = await tx.execute(
            text("SELECT kind, payload FROM journal WHERE kind LIKE 'ENDPOINT_%' ORDER BY revision")
        )
        entries = [(row[0], row[1]) for row in rows]
        decisions = await tx.execute(text("SELECT count(*) FROM endpoint_replica"))
        total = decisions.scalar_one()
        unpaired = await tx.execute(
            text("""
                SELECT count(*) FROM session s LEFT JOIN endpoint_replica r ON r.session_id = s.id
                WHERE r.session_id IS NULL OR (r.state = 'GONE' AND s.end_time IS NULL)
            """)
        )
        assert unpaired.scalar_one() == 0
    moves = [(item["session_id"], item["state"]) for kind, item in entries if kind == "ENDPOINT_REPLICA"]
    assert len(set(moves)) == len(moves)
    rollouts = [(item["new"], item["state"], item["step"]) for kind, item in entries if kind == "ENDPOINT_ROLLOUT"]
    assert len(set(rollouts)) == len(rollouts)
    assert total == len({session_id for session_id, _ in moves})
    scaled = [item["decision"] for kind, item in entries if kind == "ENDPOINT_SCALED"]
    assert scaled
    assert all(1 <= item["target"] <= MAX and item["target"] != item["before"] for item in scaled)
