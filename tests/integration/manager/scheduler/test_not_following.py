"""What an agent that answers heartbeats and nothing else was given goes elsewhere, without ever running twice."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from retinue.manager.controllers import deadlines
from retinue.manager.domain.session.states import SessionType
from tests.integration.manager.reporting_node import TERM, Node
from tests.integration.manager.rows import execute
from tests.integration.manager.scheduler.world import World, check, kernel, row, settle

if TYPE_CHECKING:
    from retinue.manager.store.postgres.database import Database


async def enforce(database: Database) -> None:
    await deadlines.enforce(database, TERM, lambda _: None)
    await execute(database, "UPDATE session SET next_try_time = now() WHERE state = 'PENDING'")


async def follow_all_but(idle: Node, world: World) -> None:
    for _ in range(6):
        for node in world.nodes:
            if node is not idle:
                await node.step()


@pytest.mark.parametrize("size", [1, 3])
async def test_what_was_not_begun_goes_elsewhere(database: Database, size: int) -> None:
    async with World(database, 7).running() as world:
        idle, *others = world.nodes
        submit = partial(world.submit, type=SessionType.BATCH, retry=None)
        runs = await submit(**kernel("1"), agents=(idle.name,), agents_strict=True)
        while (await row(database, runs)).state != "RUNNING":
            await world.schedule()
            await idle.step()
        # A gang has a kernel on each of them.
        session = await submit(**{**kernel("2"), "cluster_size": size, "single_node": False}, agents=(idle.name,))
        await world.schedule()
        await follow_all_but(idle, world)
        places = await execute(database, "SELECT DISTINCT agent_id FROM attempt WHERE session_id = :id", id=session)
        assert (idle.name,) in places
        await enforce(database)
        assert (await row(database, session)).state in {"SCHEDULED", "PREPARING"}

        await world.reports.following_changed(idle.name, "it has not said anything")
        for _ in range(3):
            await enforce(database)
            await follow_all_but(idle, world)
            await world.schedule()
        await follow_all_but(idle, world)
        found = await row(database, session)
        assert found.state == "RUNNING"
        live = await execute(
            database, "SELECT agent_id FROM attempt WHERE session_id = :id AND end_time IS NULL", id=session
        )
        assert len(live) == size
        assert {agent_id for (agent_id,) in live} <= {node.name for node in others}
        # What runs there stays.
        assert (await row(database, runs)).state == "RUNNING"
        await check(database)

        # Back again, it begins nothing of what it was sent before, and takes what is new.
        await idle.join()
        new = await submit(**kernel("1"), agents=(idle.name,), agents_strict=True)
        await settle(world)
        assert (await row(database, new)).state == "RUNNING"
        assert (await row(database, session)).state == "RUNNING"
        await check(database)
        await world.come_to_rest()


async def test_what_its_user_has_ended_meanwhile_holds_nothing(database: Database) -> None:
    async with World(database, 7).running() as world:
        idle = world.nodes[0]
        session = await world.submit(**kernel("1"), type=SessionType.BATCH, retry=None, agents=(idle.name,))
        await world.schedule()
        await world.end(session)
        assert (await row(database, session)).state == "CANCELLED"
        await world.reports.following_changed(idle.name, "it has not said anything")
        await enforce(database)
        async with database.transaction() as tx:
            held = await tx.execute(text("SELECT count(*) FROM claim WHERE release_time IS NULL"))
            assert held.scalar_one() == 0
        await check(database)
        await world.come_to_rest()
