"""How often the words of a reason are written: a new code at once, other words of the same code each 30 s."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from typing import TYPE_CHECKING

from retinue.manager.scheduler import reason_writer
from retinue.manager.scheduler.loop import Scheduler
from retinue.manager.scheduler.reason_writer import REFRESH_SECONDS
from tests.integration.manager.reporting_node import TERM
from tests.integration.manager.rows import hold, submit, waits
from tests.integration.manager.scheduled_nodes import MEM, scheduled_node
from tests.support.eventually import eventually

if TYPE_CHECKING:
    import pytest

    from retinue.manager.store.postgres.database import Database

SHORT = "INSUFFICIENT_CAPACITY"


def free(amount: int) -> tuple[str, str]:
    return SHORT, f"needs 8 cpu on one node; the freest has {amount} (n0)"


async def words(database: Database, name: str = "waits") -> tuple[str, str]:
    reason, message, *_ = await waits(database, name)
    return reason, message


async def test_words_of_the_same_code_follow_each_30_s(database: Database) -> None:
    now = 1000.0
    async with scheduled_node(database, {"cpu": 8000, "mem": 16 * MEM}) as (_, scheduler):
        await submit(database, "ann", "first", cpu="1")
        waiting = await submit(database, "ann", "waits", cpu="8")
        await scheduler.run_once(now)
        assert await words(database) == free(7)
        for number in range(3):
            await submit(database, "ann", f"s{number}", cpu="1")
            now += 9
            await scheduler.run_once(now)
            assert await words(database) == free(7)
        now = 1000.0 + REFRESH_SECONDS
        await scheduler.run_once(now)
        assert await words(database) == free(4)
        # Another code is news.
        await hold(database, waiting)
        await scheduler.run_once(now + 1)
        assert await words(database) == ("HELD", "it is held; it waits until it is released")


async def test_words_follow_also_when_no_pass_does(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reason_writer, "REFRESH_SECONDS", 1.0)
    async with scheduled_node(database, {"cpu": 8000, "mem": 16 * MEM}):
        await submit(database, "ben", "first", cpu="1")
        await submit(database, "ann", "waits", cpu="8")
        scheduler = Scheduler(database, TERM, lambda _affected: None)
        running = asyncio.create_task(scheduler.run())
        try:
            for number, name in enumerate(("second", "third", "fourth")):
                scheduler.wake()
                await eventually(lambda: words(database), lambda found: found[0] == SHORT)
                await submit(database, "ben", name, cpu=str(1 + number % 2))
            scheduler.wake()
            await eventually(lambda: words(database), free(3).__eq__)
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


async def test_a_start_time_is_said(database: Database) -> None:
    async with scheduled_node(database, {"cpu": 8000, "mem": 16 * MEM}) as (_, scheduler):
        start = dt.datetime(2150, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
        await submit(database, "ann", "later", earliest_start_time=start.timestamp())
        await scheduler.run_once()
        assert await words(database, "later") == ("START_TIME", "it starts at 2150-01-02 03:04:05 UTC at the earliest")
