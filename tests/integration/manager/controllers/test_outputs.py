"""Output of ended kernels is fetched from each agent, whatever others do."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from sqlalchemy import text

from retinue.manager.agent_rpc.output import Piece, Span
from retinue.manager.agent_rpc.relay import AgentUnavailableError, AttemptLocation, Forwarder
from retinue.manager.controllers import log_collector
from retinue.manager.controllers.log_collector import OutputCollector
from tests.integration.manager.leading import FakeAgent, PlainDialer, count, leading
from tests.integration.manager.reporting_node import TERM
from tests.integration.manager.rows import submit
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    import uuid
    from collections.abc import AsyncIterator

    import pytest

    from retinue.manager.agent_rpc.dialer import Dialer
    from retinue.manager.store.postgres.database import Database


async def await_output(database: Database, session_id: uuid.UUID) -> None:
    async with database.transaction() as tx:
        await tx.execute(
            text("UPDATE attempt SET log_pending = TRUE, log_size = 5 WHERE session_id = :id"), {"id": session_id}
        )


async def is_kept(database: Database, name: str) -> bool:
    pending = "EXISTS (SELECT FROM attempt a WHERE a.session_id = session.id AND a.log_pending)"
    return await count(database, f"name = :name AND NOT {pending}", name=name) == 1


async def test_an_agent_that_does_not_answer_holds_up_no_other(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: set[str] = set()
    given_up: list[str] = []

    async def stream_output(
        _forwarder: Forwarder, location: AttemptLocation, span: Span, *, follow: bool
    ) -> AsyncIterator[Piece]:
        assert not follow
        asked.add(location.agent_id)
        if location.agent_id == "hung":
            try:
                await asyncio.Event().wait()
            finally:
                given_up.append(location.agent_id)
        if location.agent_id == "away":
            raise AgentUnavailableError("away")
        yield Piece(span.offset, b"hello")

    monkeypatch.setattr(log_collector, "stream_output", stream_output)
    monkeypatch.setattr(log_collector, "_FETCH_SECONDS", 2 * NEVER)
    made: dict[str, uuid.UUID] = {}
    async with leading(database, *map(FakeAgent, ("hung", "away", "good"))):
        for name, agent in (("a", "hung"), ("b", "away"), ("c", "good"), ("d", "good")):
            made[name] = await submit(database, "ann", name, agents=(agent,), agents_strict=True)
        await eventually(lambda: _all_run(database))
    dialer: Dialer = PlainDialer()
    collector = OutputCollector(database, TERM, Forwarder(dialer), lambda _: None)
    for name in ("a", "b", "c"):
        await await_output(database, made[name])
    collecting = asyncio.create_task(collector.run())
    try:
        await eventually(partial(is_kept, database, "c"))
        assert asked == {"hung", "away", "good"}
        # While one is waited for, and another one is tried again.
        await await_output(database, made["d"])
        collector.wake()
        await eventually(partial(is_kept, database, "d"))
        assert not await is_kept(database, "a")
        assert not await is_kept(database, "b")
        assert not given_up, "it is still waited for"
    finally:
        collecting.cancel()
        await asyncio.gather(collecting, return_exceptions=True)


async def _all_run(database: Database) -> bool:
    return await count(database, "state = 'RUNNING'") == 4
