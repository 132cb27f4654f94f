"""Where a session waits follows the strategy of its group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from retinue.manager.scheduler import preview
from tests.integration.manager.scheduler.world import World

if TYPE_CHECKING:
    from retinue.manager.store.postgres.database import Database


@pytest.mark.parametrize(
    ("strategy", "expected"), [("fifo", [2, 3, 1]), ("lifo", [3, 2, 1]), ("drf", [2, 3, 1]), ("external", [0, 0, 0])]
)
async def test_the_position_follows_the_strategy(
    database: Database, monkeypatch: pytest.MonkeyPatch, strategy: str, expected: list[int]
) -> None:
    world = World(database, 1)
    waiting = [await world.submit(cluster_size=1, priority=priority) for priority in (10, 10, 20)]
    async with database.transaction() as tx:
        await tx.execute(
            text("UPDATE resource_group SET session_strategy = :strategy, options = CAST(:options AS jsonb)"),
            {"strategy": strategy, "options": '{"address": "127.0.0.1:1"}' if strategy == "external" else "{}"},
        )
    async with database.transaction() as tx:
        assert [await preview.queue_position(tx, "default", session_id) for session_id in waiting] == expected
    monkeypatch.setattr(preview, "MAX_ORDERED", 2)
    async with database.transaction() as tx:
        assert await preview.queue_position(tx, "default", waiting[0]) == 0
