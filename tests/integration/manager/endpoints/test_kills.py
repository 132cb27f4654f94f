"""A leader that is killed after any of its commits, of rollouts and on the way to zero and back:
the next one continues.
"""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING, cast

import pytest
from google.protobuf.duration_pb2 import Duration
from sqlalchemy import text

from retinue.manager.domain.endpoints.model import EndpointTraffic, RoutedEndpoint, Traffic
from retinue.manager.domain.endpoints.states import ReplicaState
from retinue.manager.endpoints.controller import EndpointController
from retinue.manager.v1 import endpoint_pb2 as epb
from retinue.manager.v1 import endpoint_service_pb2 as pb
from tests.integration.manager.endpoints.controlled import TERM, Rig, revision, states_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.manager.store.postgres.database import Database, Transaction

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Killed(BaseException):
    """The process is gone: nothing in it runs on."""


class MortalDatabase:
    """The database, for a process that is killed after so many commits that wrote anything; None: never."""

    def __init__(self, database: Database, writes: int | None) -> None:
        self._database = database
        self._left = writes

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        async with self._database.transaction() as tx:
            yield tx
            wrote = (await tx.execute(text("SELECT pg_current_xact_id_if_assigned() IS NOT NULL"))).scalar_one()
        if wrote and self._left is not None:
            self._left -= 1
            if self._left == 0:
                raise Killed


class Lives:
    """A leader, and the next one when it is killed; its clock moves 2 s before each look."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.now = 1_000.0
        self.deaths = 0
        self.tables: list[RoutedEndpoint] = []

    def begin(self, writes: int | None = None) -> None:
        database = cast("Database", MortalDatabase(self.rig.service.database, writes))
        self.rig.controller = EndpointController(
            database, TERM, lambda _affected: None, self.rig.routers, clock=lambda: self.now
        )

    async def look(self) -> None:
        self.now += 2
        try:
            await self.rig.look()
        except Killed:
            self.deaths += 1
            self.begin()
        self.tables += self.rig.routers.table.values()
        await self.rig.obey()

    async def reach(self, *states: tuple[int, str], rollout: epb.RolloutState.ValueType | None = None) -> None:
        """Looks until there are exactly these replicas."""
        for _ in range(60):
            await self.look()
            found = await self.rig.call("GetEndpoint", pb.GetEndpointRequest(endpoint="llm"))
            if states_of(found.replicas) == sorted(states) and rollout in (None, found.endpoint.rollout.state):
                # What is stored is in the table after one more.
                await self.look()
                return
        raise AssertionError(f"it stays at {await self.rig.states()}")


ROLLOUTS = {
    "rolling": epb.RolloutSpec(rolling=epb.RollingRollout()),
    "blue-green": epb.RolloutSpec(blue_green=epb.BlueGreenRollout(automatic=True, keep_old=Duration())),
    "canary": epb.RolloutSpec(canary=epb.CanaryRollout(steps=[epb.CanaryStep(percent=50, hold=Duration())])),
}


@pytest.mark.parametrize("strategy", ROLLOUTS)
async def test_a_rollout_survives_a_kill_after_each_commit(rig: Rig, strategy: str) -> None:
    await rig.create(scaling=epb.ScalingPolicy(min=2, max=2), rollout=ROLLOUTS[strategy])
    lives = Lives(rig)
    lives.begin()
    await lives.reach((1, "READY"), (1, "READY"))
    number = 1
    # Until a whole rollout has fewer commits than this one was to be killed after.
    while lives.deaths == number - 1:
        await rig.call("DeployRevision", pb.DeployRevisionRequest(endpoint="llm", revision=revision()))
        lives.begin(writes=number)
        number += 1
        lives.tables.clear()
        await lives.reach((number, "READY"), (number, "READY"), rollout=epb.ROLLOUT_STATE_DONE)
        for table in lives.tables:
            routed = [item for found in table.revisions for item in found.replicas]
            assert sum(found.weight for found in table.revisions) == 100
            assert sum(item.state is ReplicaState.READY for item in routed) >= 2
            assert not table.gate
    assert number > 5
    async with rig.service.database.transaction() as tx:
        sessions = await tx.execute(text("SELECT count(*) FROM session"))
        # Two of each revision: none was made twice, and none of them was forgotten.
        assert sessions.scalar_one() == 2 * number


async def test_zero_is_reached_and_left_though_leaders_are_killed_after_each_commit(rig: Rig) -> None:
    made = await rig.create(
        scaling=epb.ScalingPolicy(min=0, max=1, idle_after=Duration(seconds=10), hold_down=Duration())
    )
    lives = Lives(rig)
    lives.begin()
    await lives.reach((1, "READY"))
    key = uuid.UUID(made.id)
    number, before = 1, -1
    while lives.deaths > before:
        before = lives.deaths
        for wanted, traffic in (((), EndpointTraffic()), (((1, "READY"),), EndpointTraffic(held=1))):
            lives.begin(writes=number)
            rig.routers.reported = Traffic(live=1, endpoints={key: traffic})
            lives.tables.clear()
            await lives.reach(*wanted)
            for table in lives.tables:
                states = [item.state for found in table.revisions for item in found.replicas]
                # What drains for want of requests gets none: they are held.
                assert table.gate or ReplicaState.READY in states
        number += 1
    assert number > 4


async def test_a_deletion_survives_a_kill_after_each_commit(rig: Rig) -> None:
    lives = Lives(rig)
    number, before = 1, -1
    while lives.deaths > before:
        before = lives.deaths
        made = await rig.create(scaling=epb.ScalingPolicy(min=2, max=2))
        lives.begin()
        await lives.reach((1, "READY"), (1, "READY"))
        await rig.call("DeleteEndpoint", pb.DeleteEndpointRequest(endpoint="llm"))
        lives.begin(writes=number)
        for _ in range(30):
            await lives.look()
        assert (await rig.get(made.id)).state == epb.ENDPOINT_STATE_DELETED
        # The end of each is written, too.
        assert await rig.states(made.id) == []
        number += 1
    assert number > 3
