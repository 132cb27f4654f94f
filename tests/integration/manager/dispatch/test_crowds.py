"""A new leader has all agents come at once, and takes them in one after the other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sqlalchemy import text

from retinue.manager.dispatch.reports import Reports
from retinue.manager.dispatch.supervisor import _WELCOMES
from tests.integration.manager.leading import FakeAgent, behave, leading
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest

    from retinue.agent.v1 import agent_service_pb2 as pb
    from retinue.manager.domain.session.attempts import NodeFacts
    from retinue.manager.store.postgres.database import Database

_AGENTS = 12


async def test_few_welcomes_are_taken_in_at_a_time(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    connected = Reports.connected
    inside, most, gate = 0, 0, asyncio.Event()
    welcomed: list[str] = []

    async def counted(reports: Reports, facts: NodeFacts) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await gate.wait()
        try:
            await connected(reports, facts)
        finally:
            inside -= 1

    async def greet(agent: FakeAgent, requests: AsyncIterator[pb.SyncRequest]) -> AsyncIterator[pb.SyncResponse]:
        async for response in behave(agent, requests):
            yield response
            # It was sent: this goes on once the next message is asked for.
            welcomed.append(agent.name)

    async def alive() -> bool:
        async with database.transaction() as tx:
            found = await tx.execute(text("SELECT count(*) FROM agent WHERE state = 'ALIVE'"))
            return bool(found.scalar_one() == _AGENTS)

    monkeypatch.setattr(Reports, "connected", counted)
    agents = [FakeAgent(f"a{number}", greet) for number in range(_AGENTS)]
    async with leading(database, *agents):
        await eventually(lambda: len(set(welcomed)) == _AGENTS and inside == _WELCOMES)
        gate.set()
        await eventually(alive)
    assert most == _WELCOMES
    assert [agent.dialled for agent in agents] == [1] * _AGENTS
