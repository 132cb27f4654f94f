"""What the leader shows to Prometheus of sessions, agents and amounts."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import TYPE_CHECKING

import pytest
from prometheus_client import REGISTRY
from sqlalchemy import text

from retinue.manager.controllers import fleet_gauges
from retinue.manager.domain.session.spec import KernelSpec, SessionSpec
from retinue.manager.domain.session.states import SessionType
from retinue.manager.session.drafts import draft
from retinue.manager.session.submit import create_many
from tests.integration.manager.reporting_node import enrol
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from retinue.manager.store.postgres.database import Database

pytestmark = pytest.mark.asyncio(loop_scope="session")


def shown(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, labels)


async def test_the_leader_shows_what_is_live_and_nothing_once_it_no_longer_leads(database: Database) -> None:
    spec = SessionSpec(
        name="waits",
        project="default",
        resource_group="default",
        type=SessionType.BATCH,
        kernel=KernelSpec(command=("true",), slots={"cpu": "1.5", "mem": "64m"}),
    )
    async with database.transaction() as tx:
        await create_many(tx, [draft(uuid.uuid4(), "ada", spec)])
        await tx.execute(
            text("UPDATE resource_group SET capacity = '{\"cpu\": 4500, \"mem\": 1024}' WHERE name = 'default'")
        )
        await tx.execute(
            text(
                "INSERT INTO drf_share (resource_group, owner, weight, held, dominant_slot, numerator, denominator)"
                " VALUES ('default', 'ada', 1, '{\"cpu\": 1500}', 'cpu', 1500, 4500),"
                " ('default', 'bob', 1, '{\"cpu\": 500}', 'cpu', 500, 4500)"
            )
        )
    await enrol(database, ["n1", "n2"])
    async with database.transaction() as tx:
        for name, found, reported in (
            ("n1", '[{"type": "NOT_REACHED"}]', '[{"type": "DISK_FULL"}, {"type": "DISK_FULL"}]'),
            ("n2", '[{"type": "NOT_REACHED"}, 7]', '"not a list"'),
        ):
            await tx.execute(
                text(
                    "UPDATE agent SET found_conditions = CAST(:found AS jsonb),"
                    " reported_conditions = CAST(:reported AS jsonb) WHERE id = :id"
                ),
                {"id": name, "found": found, "reported": reported},
            )
    showing = asyncio.create_task(fleet_gauges.run(database))
    try:
        await eventually(lambda: shown("retinue_sessions", resource_group="default", state="PENDING") == 1.0)
        waiting = shown("retinue_oldest_pending_seconds", resource_group="default")
        assert waiting is not None
        assert waiting >= 0
        assert shown("retinue_manager_leader") == 1.0
        assert shown("retinue_capacity", resource_group="default", slot="cpu") == 4.5
        assert shown("retinue_capacity", resource_group="default", slot="mem") == 1024
        assert shown("retinue_agent_conditions", resource_group="default", condition="NOT_REACHED") == 2.0
        assert shown("retinue_agent_conditions", resource_group="default", condition="DISK_FULL") == 1.0
        assert shown("retinue_claimed", resource_group="default", slot="cpu") == 2.0
    finally:
        showing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await showing
    assert shown("retinue_manager_leader") == 0.0
    assert shown("retinue_sessions", resource_group="default", state="PENDING") is None
