"""An agent on which no session can start does not draw one after the other."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from retinue.manager.controllers import deadlines
from retinue.manager.domain.session.states import SessionType
from tests.integration.manager.reporting_node import TERM
from tests.integration.manager.scheduler.world import World, check, kernel, row, settle
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retinue.manager.store.postgres.database import Database


async def conditions(database: Database, agent_id: str) -> list[tuple[str, bool]]:
    async with database.transaction() as tx:
        found: Any = await tx.execute(text("SELECT found_conditions FROM agent WHERE id = :id"), {"id": agent_id})
        return [(each["type"], each["blocks"]) for each in found.scalar_one()]


async def fail_three(world: World, database: Database, name: str) -> None:
    """Has three sessions fail to start on an agent, and start on another."""
    for _ in range(3):
        session = await world.submit(**kernel("1"), type=SessionType.BATCH, retry=None)
        while (await row(database, session)).state != "RUNNING":
            await world.schedule()
            for node in world.nodes:
                await node.step(fail=node.name == name)
            async with database.transaction() as tx:
                await tx.execute(text("UPDATE session SET next_try_time = now() WHERE state = 'PENDING'"))
        await world.end(session)
        await settle(world)


@pytest.mark.attack("agents-that-do-nothing")
async def test_an_agent_on_which_starts_hang_is_avoided(database: Database) -> None:
    """It takes sessions, and neither starts them nor says why."""
    async with World(database, 7).running() as world:
        hanging, *others = world.nodes

        def note(starts: Sequence[deadlines.LateStart]) -> None:
            for start in starts:
                world.reports.note_failed_start(start.agent_id, start.session_id, start.owner, start.status)

        for _ in range(3):
            session = await world.submit(**kernel("1"), type=SessionType.BATCH, retry=None, agents=(hanging.name,))
            await world.schedule()
            assert (await row(database, session)).agent_id == hanging.name
            async with database.transaction() as tx:
                await tx.execute(text("UPDATE session SET schedule_time = schedule_time - interval '1 day'"))
            await deadlines.enforce(database, TERM, lambda _: None, late=note)
            assert (await row(database, session)).state == "PENDING"
            # It gives up, as it is told to.
            await hanging.step()
            async with database.transaction() as tx:
                await tx.execute(text("UPDATE session SET next_try_time = now() WHERE state = 'PENDING'"))
            # The next try is elsewhere, although the session prefers the agent.
            await world.schedule()
            for _ in range(3):
                for node in others:
                    await node.step()
            found = await row(database, session)
            assert found.state == "RUNNING"
            assert found.agent_id in {node.name for node in others}
            await world.end(session)
            for node in others:
                while await node.step():
                    pass
        await eventually(partial(conditions, database, hanging.name), [("STARTS_FAILING", True)].__eq__)
        await world.come_to_rest()


async def test_sessions_that_start_nowhere_have_no_agent_avoided(database: Database) -> None:
    async with World(database, 7).running() as world:
        made = [await world.submit(**kernel("1"), type=SessionType.BATCH, retry=None) for _ in range(9)]
        for _ in range(9):
            async with database.transaction() as tx:
                await tx.execute(text("UPDATE session SET next_try_time = now() WHERE state = 'PENDING'"))
            await world.schedule()
            for node in world.nodes:
                await node.step()
                await node.step(fail=True)
        assert {(await row(database, session)).state for session in made} == {"TERMINATED"}
        await world.reports.review_starts()
        for node in world.nodes:
            assert await conditions(database, node.name) == []
        await check(database)


async def test_an_agent_on_which_starts_fail_is_avoided_but_not_more_than_half(database: Database) -> None:
    async with World(database, 7).running() as world:
        await fail_three(world, database, "n0")
        await eventually(partial(conditions, database, "n0"), [("STARTS_FAILING", True)].__eq__)
        # More than there would be room for on the others, if it took part.
        sessions = [await world.submit(**kernel("2"), type=SessionType.BATCH, retry=None) for _ in range(6)]
        await settle(world)
        places = [(await row(database, session)).agent_id for session in sessions]
        assert sorted(map(str, places)) == ["None", "None", "n1", "n1", "n2", "n2"]
        for session in sessions:
            await world.end(session)
        await settle(world)
        # The fault is not the agents', or not theirs alone.
        await fail_three(world, database, "n1")
        await eventually(partial(conditions, database, "n1"), [("STARTS_FAILING", False)].__eq__)
        started = await world.submit(
            **kernel("1"), type=SessionType.BATCH, retry=None, agents=("n1",), agents_strict=True
        )
        await settle(world)
        assert (await row(database, started)).state == "RUNNING"
        await eventually(partial(conditions, database, "n1"), [].__eq__)
        assert await conditions(database, "n0") == [("STARTS_FAILING", True)]
        await world.come_to_rest()
        await check(database)
