"""What agents report to be wrong with them: kept with them, and placements keep away until it has passed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from retinue.manager.agent_rpc.reach import NotReached
from retinue.manager.dispatch.reports import Reports
from retinue.manager.domain.scheduling.records import AgentState, LossHold
from retinue.manager.domain.session.attempts import NodeCondition
from retinue.manager.store.fleet import agents, nodes
from retinue.manager.store.placement import deadlines
from retinue.rpc.core.reasons import AgentConditionReason
from tests.integration.manager.reporting_node import TERM, Node
from tests.integration.manager.rows import execute, states, submit
from tests.integration.manager.scheduled_nodes import before_the_commit, roomy_node

if TYPE_CHECKING:
    import uuid

    from retinue.manager.store.postgres.database import Database

FULL = NodeCondition("DISK_FULL", "STATE", "no space left")
DAMAGED = NodeCondition("STATE_DAMAGED", message="term")


async def kept(database: Database) -> list[dict[str, Any]]:
    async with database.transaction() as tx:
        rows: list[dict[str, Any]] = (await tx.execute(text("SELECT reported_conditions FROM agent"))).scalar_one()
        return rows


async def test_placements_keep_away_until_the_condition_has_passed(database: Database) -> None:
    async with roomy_node(database) as (node, scheduler):
        await submit(database, "ann", "s")
        await node.change_conditions(FULL, DAMAGED)
        assert [row["type"] for row in await kept(database)] == ["DISK_FULL", "STATE_DAMAGED"]
        await scheduler.run_once()
        assert set((await states(database)).values()) == {"PENDING"}
        await node.change_conditions(DAMAGED)
        await scheduler.run_once()
        assert set((await states(database)).values()) == {"SCHEDULED"}


async def test_one_that_comes_while_a_pass_is_committed_counts(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with roomy_node(database) as (node, scheduler):
        await submit(database, "ann", "s")
        await before_the_commit(monkeypatch, scheduler, lambda: node.change_conditions(FULL))
        assert set((await states(database)).values()) == {"PENDING"}


async def test_a_welcome_has_them_all(database: Database) -> None:
    async with roomy_node(database) as (node, _):
        await node.change_conditions(FULL)
        await rejoin(node, DAMAGED)
        assert [row["type"] for row in await kept(database)] == ["STATE_DAMAGED"]
        await rejoin(node)
        assert await kept(database) == []


async def session_conditions(database: Database) -> list[str]:
    async with database.transaction() as tx:
        rows = await tx.execute(
            text("SELECT jsonb_path_query(conditions, '$[*].type') #>> '{}' FROM session ORDER BY 1")
        )
        return list(rows.scalars())


async def test_an_agent_that_is_not_reached_is_avoided_and_its_sessions_say_so(database: Database) -> None:
    refused = NotReached(AgentConditionReason.REFUSED, "nothing listens there")
    async with roomy_node(database) as (node, scheduler):
        await submit(database, "ann", "runs")
        await scheduler.run_once()
        await node.reports.reach_changed(node.name, "192.0.2.1:7443", refused)
        async with database.transaction() as tx:
            (condition,) = (await tx.execute(text("SELECT found_conditions FROM agent"))).scalar_one()
        assert (condition["type"], condition["reason"], condition["blocks"]) == ("NOT_REACHED", "REFUSED", True)
        assert condition["message"] == "at 192.0.2.1:7443: nothing listens there"
        assert await session_conditions(database) == ["AGENT_NOT_REACHED"]
        # It may be lost as well: each comes and goes by itself.
        await node.reports.liveness_changed(node.name, AgentState.LOST, 60.0)
        assert await session_conditions(database) == ["AGENT_LOST", "AGENT_NOT_REACHED"]
        await node.join()
        assert await session_conditions(database) == ["AGENT_NOT_REACHED"]
        await submit(database, "ann", "waits")
        await scheduler.run_once()
        assert sorted((await states(database)).values()) == ["PENDING", "SCHEDULED"]
        # The next leader finds out by itself.
        await Reports(database, TERM, lambda _: None).reach_changed(node.name, "192.0.2.1:7443", None)
        assert await session_conditions(database) == []
        await scheduler.run_once()
        assert set((await states(database)).values()) == {"SCHEDULED"}


@pytest.mark.attack("mass-loss")
async def test_a_held_loss_is_kept_for_the_next_leader_and_gives_nothing_up(database: Database) -> None:
    async def hold() -> LossHold:
        async with database.transaction() as tx:
            return (await nodes.read_targets(tx))["n0"].hold

    async def late() -> list[uuid.UUID]:
        async with database.transaction() as tx:
            return await deadlines.read_late_starts(tx)

    async with roomy_node(database) as (node, scheduler):
        session = await submit(database, "ann", "starts")
        await scheduler.run_once()
        await execute(database, "UPDATE session SET schedule_time = now() - interval '1 hour'")
        assert await late() == [session]
        await node.reports.liveness_changed(node.name, AgentState.SUSPECT, 20.0)
        await node.reports.loss_held(node.name, "3 of the 4 agents are silent")
        assert await session_conditions(database) == ["AGENT_LOST"]
        assert await hold() is LossHold.HELD
        assert await late() == []
        async with database.transaction() as tx:
            (condition,) = (await tx.execute(text("SELECT found_conditions FROM agent"))).scalar_one()
            assert await agents.held_in(tx, "default") == ["n0"]
            assert await deadlines.read_overdue(tx) == []
        assert (condition["type"], condition["blocks"]) == ("LOSS_HELD", True)
        await node.join()
        assert await hold() is LossHold.NONE
        assert await session_conditions(database) == []
        assert await late() == [session]
        for state in (AgentState.ALIVE, AgentState.LOST):
            await node.reports.loss_held(node.name, "3 of the 4 agents are silent")
            await node.reports.liveness_changed(node.name, state, 60.0)
            assert await hold() is LossHold.NONE


async def test_sessions_say_that_their_output_is_lost_while_a_disk_takes_nothing(database: Database) -> None:
    broken = NodeCondition("DISK_FULL", "UNWRITABLE", "the disk is read-only")
    async with roomy_node(database) as (node, scheduler):
        await submit(database, "ann", "s")
        await scheduler.run_once()
        await node.change_conditions(broken)
        assert await session_conditions(database) == ["OUTPUT_LOST"]
        # A full disk still takes what is printed, for a while.
        await node.change_conditions(FULL)
        assert await session_conditions(database) == []
        await rejoin(node, broken)
        assert await session_conditions(database) == ["OUTPUT_LOST"]
        await rejoin(node)
        assert await session_conditions(database) == []


async def rejoin(node: Node, *conditions: NodeCondition) -> None:
    node.conditions = conditions
    await node.join()
