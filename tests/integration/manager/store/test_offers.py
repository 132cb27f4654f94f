"""What agents have ever offered, as the admission of sessions asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from retinue.manager.domain.session.attempts import RuntimeStatus
from retinue.manager.store.fleet import agents, nodes
from tests.integration.manager.reporting_node import enrol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retinue.manager.store.postgres.database import Database

pytestmark = pytest.mark.asyncio(loop_scope="session")

ASKED = [("default", ["docker", "kubernetes"]), ("default", ["process"]), ("default", ["vm"]), ("none", ["vm"])]


async def report(
    database: Database, agent: str, *backends: str, runtimes: Sequence[RuntimeStatus] = (), **capacity: int
) -> None:
    facts: dict[str, Any] = {"instance": "i", "boot_id": "b", "version": "1", "architecture": "x86_64"}
    facts |= {"capacity": capacity, "backends": backends, "runtimes": runtimes}
    async with database.transaction() as tx:
        await nodes.record_facts(tx, agent, **facts, underlay_address="192.0.2.1", underlay_mtu=1500)


async def missing(database: Database) -> list[int]:
    query = agents.missing_runtimes_query(ASKED)
    async with database.transaction() as tx:
        return (await tx.pipeline(query)).of(query)


async def unknown(database: Database, *slots: str) -> list[str]:
    """Returns those of the slots that are refused in group `default`; none are where there are no agents."""
    query = agents.unknown_slots_query([(group, slot) for group in ("none", "default") for slot in slots])
    async with database.transaction() as tx:
        return [slots[position - len(slots)] for position in (await tx.pipeline(query)).of(query)]


async def test_what_was_once_there_is_not_missing(database: Database) -> None:
    assert await missing(database) == [], "no agents yet"
    assert await unknown(database, "gpu", "tpu") == [], "no agents yet"
    await enrol(database, ["a", "b"])
    await report(database, "a", "process", "docker", cpu=1000, gpu=1000)
    assert await missing(database) == [], "one has not said what it has"
    assert await unknown(database, "gpu", "tpu") == [], "one has not said what it has"
    await report(database, "b", "process", cpu=1000)
    assert await missing(database) == [2]
    # Its engine is restarted, and its device is away.
    await report(database, "a", "process", cpu=1000)
    assert await missing(database) == [2]
    async with database.transaction() as tx:
        assert await agents.slot_names(tx) == {"cpu", "gpu"}
        assert await agents.groups_with(tx, ["docker"], 4) == [], "now"
        assert await agents.groups_with(tx, ["process"], 4) == ["default"]
    assert await unknown(database, "gpu", "tpu") == ["tpu"]
    async with database.transaction() as tx:
        await tx.execute(
            text("INSERT INTO quota (kind, name, slots, version) VALUES ('PROJECT', 'default', '{\"tpu\": 1000}', 1)")
        )
    assert await unknown(database, "gpu", "tpu") == []


async def test_agents_say_why_they_do_not_have_a_runtime(database: Database) -> None:
    await enrol(database, ["a", "b", "c"])
    qemu = RuntimeStatus("vm", available=False, message="QEMU is missing")
    await report(database, "a", "process", runtimes=[qemu], cpu=1000)
    await report(database, "b", "process", runtimes=[qemu], cpu=1000)
    fetching = RuntimeStatus("vm", available=False, message="their Linux is being fetched")
    docker = RuntimeStatus("docker", available=False, message="no engine")
    await report(
        database,
        "c",
        "process",
        runtimes=[fetching, docker, RuntimeStatus("process", available=True, message="")],
        cpu=1,
    )
    async with database.transaction() as tx:
        assert await agents.runtime_troubles(tx, "default", ["vm", "process"], 4) == [qemu.message, fetching.message]
        assert await agents.runtime_troubles(tx, "none", ["vm"], 4) == []


async def test_rows_of_other_versions_break_nothing(database: Database) -> None:
    await enrol(database, ["a"])
    await report(database, "a", "process", cpu=1000)
    async with database.transaction() as tx:
        await tx.execute(
            text("UPDATE agent SET backends = '7', past_backends = '{}', past_slots = '8', runtimes = '9'")
        )
        assert await agents.slot_names(tx) == {"cpu"}
        assert await agents.runtime_troubles(tx, "default", ["vm"], 4) == []
    assert await missing(database) == [0, 1, 2]
    assert await unknown(database, "gpu") == ["gpu"]
