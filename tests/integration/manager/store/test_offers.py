"""What agents have ever offered, as the admission of sessions asks for it."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from retinue.manager.store import agents, nodes
from retinue.manager.store.database import Database
from tests.integration.manager.reporting_node import enrol

pytestmark = pytest.mark.asyncio(loop_scope="session")

ASKED = [("default", ["docker", "kubernetes"]), ("default", ["process"]), ("default", ["vm"]), ("none", ["vm"])]


async def report(database: Database, agent: str, *backends: str, **capacity: int) -> None:
    facts: dict[str, Any] = {"instance": "i", "boot_id": "b", "version": "1", "architecture": "x86_64", "runtimes": []}
    async with database.transaction() as tx:
        await nodes.record_facts(
            tx, agent, **facts, capacity=capacity, backends=backends, underlay_address="192.0.2.1", underlay_mtu=1500
        )


async def missing(database: Database) -> list[int]:
    async with database.transaction() as tx:
        return await agents.read_missing(tx, ASKED)


async def test_what_was_once_there_is_not_missing(database: Database) -> None:
    assert await missing(database) == [], "no agents yet"
    await enrol(database, ["a", "b"])
    await report(database, "a", "process", "docker", cpu=1000, gpu=1000)
    assert await missing(database) == [], "one has not said what it has"
    await report(database, "b", "process", cpu=1000)
    assert await missing(database) == [2]
    # Its engine is restarted, and its device is away.
    await report(database, "a", "process", cpu=1000)
    assert await missing(database) == [2]
    async with database.transaction() as tx:
        slots, told = await agents.read_slots(tx, ["default", "none"])
        assert ({"cpu", "gpu"} <= slots, told) == (True, {"default"})
        assert await agents.groups_with(tx, ["docker"], 4) == [], "now"
        assert await agents.groups_with(tx, ["process"], 4) == ["default"]


async def test_rows_of_other_versions_break_nothing(database: Database) -> None:
    await enrol(database, ["a"])
    await report(database, "a", "process", cpu=1000)
    async with database.transaction() as tx:
        await tx.execute(text("UPDATE agent SET backends = '7', past_backends = '{}', past_slots = '8'"))
        assert await agents.read_missing(tx, ASKED) == [0, 1, 2]
        assert await agents.read_slots(tx, ["default"]) == ({"cpu"}, {"default"})
