"""What agents report to be wrong with them: kept with them, and placements keep away until it has passed."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from retinue.manager.session.core.attempts import NodeCondition
from retinue.manager.store.database import Database
from tests.integration.manager.reporting_node import Node
from tests.integration.manager.rows import states, submit
from tests.integration.manager.scheduled_nodes import before_the_commit, roomy_node

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


async def rejoin(node: Node, *conditions: NodeCondition) -> None:
    node.conditions = conditions
    await node.join()
