"""Shares over time: what the leader samples, and how long it stays."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import uuid
from typing import TYPE_CHECKING

import pytest

from retinue.manager.controllers.leader import Leader
from retinue.manager.domain.session.secrets import SessionSecrets
from retinue.manager.store.journal.journal_tail import JournalTail
from retinue.manager.store.placement import share_history
from tests.integration.manager.leading import PATIENT, PlainDialer
from tests.integration.manager.reporting_node import TERM
from tests.integration.manager.rows import execute, submit
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from retinue.manager.store.postgres.database import Database

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def hold(database: Database, owner: str, cpu: int) -> None:
    session_id = await submit(database, owner)
    await execute(
        database,
        "INSERT INTO claim (kernel_id, epoch, slot, agent_id, resource_group, owner, amount)"
        " SELECT id, 1, 'cpu', 'n1', 'default', :owner, :cpu FROM kernel WHERE session_id = :session",
        owner=owner,
        cpu=cpu,
        session=session_id,
    )


async def set_capacity(database: Database) -> None:
    await execute(database, "UPDATE resource_group SET capacity = '{\"cpu\": 4000}' WHERE name = 'default'")


async def test_the_leader_samples_what_is_held(database: Database) -> None:
    await set_capacity(database)
    await hold(database, "ann", 1000)
    old = dt.datetime.now(dt.UTC) - dt.timedelta(days=36)
    for hour in (old, old + dt.timedelta(days=2)):
        await execute(
            database,
            "INSERT INTO share_hour (resource_group, kind, name, hour, samples, share_sum, peak)"
            " VALUES ('default', 'USER', 'ann', :hour, 1, 1.0, 1.0)",
            hour=hour,
        )
    tail = JournalTail(database)
    leader = Leader(
        database,
        tail,
        PlainDialer(),
        PATIENT,
        str(uuid.uuid4()),
        TERM,
        SessionSecrets(bytes(32)),
        shares_kept=dt.timedelta(days=35),
    )
    running = [asyncio.create_task(work) for work in (tail.run(), leader.run())]
    recent = "SELECT kind, name, samples, share_sum, peak FROM share_hour WHERE hour > now() - interval '1 day' ORDER BY kind"
    try:
        found = await eventually(lambda: execute(database, recent), bool)
    finally:
        for task in running:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
    assert found == [
        ("PROJECT", "default", 1, 0.25, 0.25),
        ("RESOURCE_GROUP", "", 1, 0.25, 0.25),
        ("USER", "ann", 1, 0.25, 0.25),
    ]
    assert await execute(database, "SELECT count(*) FROM share_hour WHERE hour < now() - interval '1 day'") == [(1,)]


async def test_samples_of_an_hour_add_up(database: Database) -> None:
    await set_capacity(database)
    await hold(database, "ann", 1000)
    async with database.transaction() as tx:
        await share_history.record(tx)
        # Of the same hour, whatever the clock does between the two.
        now = "date_trunc('hour', now(), 'UTC')"
    await hold(database, "ann", 2000)
    async with database.transaction() as tx:
        await share_history.record(tx)
    sums = "SELECT sum(samples), sum(share_sum), max(peak) FROM share_hour WHERE kind = 'USER'"
    assert await execute(database, sums) == [(2, 1.0, 0.75)]
    assert await execute(database, f"SELECT count(*) FROM share_hour WHERE hour > {now}") == [(0,)]  # noqa: S608
    async with database.transaction() as tx:
        await share_history.forget_group(tx, "default")
    assert await execute(database, "SELECT count(*) FROM share_hour") == [(0,)]
