"""Heartbeats are heard, and written nowhere."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from sqlalchemy import text

from retinue.agent.v1 import agent_service_pb2 as pb
from tests.integration.manager.leading import FakeAgent, leading
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.manager.store.postgres.database import Database


async def beating(agent: FakeAgent, _requests: AsyncIterator[pb.SyncRequest]) -> AsyncIterator[pb.SyncResponse]:
    """Says nothing but that it is there."""
    yield agent.welcome()
    for number in range(1, 1_000_000):
        yield pb.SyncResponse(heartbeat=pb.Heartbeat(number=number))
        await asyncio.sleep(0.02)


async def test_heartbeats_write_no_row(database: Database) -> None:
    async def rows() -> list[tuple[str, ...]]:
        async with database.transaction() as tx:
            found = await tx.execute(
                text("SELECT id, state, xmin::text, ctid::text, (SELECT count(*)::text FROM journal) FROM agent")
            )
            return [tuple(row) for row in found]

    async def alive() -> bool:
        return {state for _, state, *_ in await rows()} == {"ALIVE"}

    async def passed(seconds: int, since: float) -> bool:
        async with database.transaction() as tx:
            now: float = (await tx.execute(text("SELECT extract(epoch FROM clock_timestamp())::float8"))).scalar_one()
        return now - since > seconds

    agents = [FakeAgent(f"a{number}", beating) for number in range(3)]
    async with leading(database, *agents):
        await eventually(alive)
        async with database.transaction() as tx:
            began: float = (await tx.execute(text("SELECT extract(epoch FROM clock_timestamp())::float8"))).scalar_one()
        # What follows on the welcome is written by then.
        await eventually(partial(passed, 2, began))
        before = await rows()
        # Longer than anything used to be written of heartbeats.
        await eventually(partial(passed, 14, began))
        assert await rows() == before
        assert [agent.dialled for agent in agents] == [1, 1, 1]
