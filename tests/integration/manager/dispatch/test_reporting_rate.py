"""What an agent reports as often as it likes is written at a bounded rate, and its last value always."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import TYPE_CHECKING

import pytest

from retinue.manager.dispatch.reports import Reports
from retinue.manager.domain.session.attempts import AttemptStatus, LayerReport, NodeCondition, NodeReport
from retinue.manager.domain.session.states import Observed
from tests.integration.manager.reporting_node import TERM, Node, enrol
from tests.integration.manager.rows import execute, submit
from tests.support.stepped_scheduler import SteppedScheduler

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.manager.store.postgres.database import Database

REPORTS = 40


class Clock:
    """Continues only when the test asks for it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Lets so many seconds pass at once."""
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@contextlib.asynccontextmanager
async def committing(database: Database, clock: Clock) -> AsyncIterator[Node]:
    """A node whose reports are committed as they come."""
    reports = Reports(database, TERM, lambda _affected: None, clock=clock, sleep=clock.sleep)
    running = asyncio.create_task(reports.run())
    try:
        await enrol(database, ["n0"])
        node = Node("n0", reports, database, {"cpu": 100_000, "mem": 100 << 30})
        await node.join()
        yield node
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def pulled(database: Database) -> list[int]:
    """Bytes in the journal's entries of pulls, in order."""
    rows = await execute(
        database, "SELECT payload->'progress'->>'bytes' FROM journal WHERE kind = 'IMAGE_PULL' ORDER BY revision"
    )
    return [int(str(row[0])) for row in rows]


async def test_progress_of_a_pull_is_written_at_a_bounded_rate(database: Database, clock: Clock) -> None:
    async with committing(database, clock) as node:
        await submit(database, "ann", "a")
        await SteppedScheduler(database, TERM, lambda _affected: None).run_once()
        ((kernel_id,),) = await execute(database, "SELECT id FROM kernel")

        async def report(number: int, state: Observed = Observed.PULLING) -> None:
            layers = (LayerReport("layer", number, 1000, False),) if state is Observed.PULLING else ()
            status = AttemptStatus((uuid.UUID(str(kernel_id)), 1), state, None, "", "", 0, layers=layers)
            await node.reports.reported(NodeReport("n0", (status,), sequence=number))

        for number in range(1, REPORTS + 1):
            await report(number)
        assert await pulled(database) == [1]
        clock.now += 1.0
        await node.reports.write_progress()
        assert await pulled(database) == [1, REPORTS]
        ((shown,),) = await execute(database, "SELECT pull->>'bytes' FROM kernel")
        assert shown == str(REPORTS)
        # What has ended is not written any more, as nothing is fetched.
        await report(REPORTS + 1)
        await report(REPORTS + 2, Observed.CREATING)
        clock.now += 1.0
        await node.reports.write_progress()
        assert await pulled(database) == [1, REPORTS]


async def test_conditions_are_written_at_a_bounded_rate(database: Database, clock: Clock) -> None:
    async with committing(database, clock) as node:
        for number in range(REPORTS):
            await node.change_conditions(NodeCondition("DISK_FULL", "FULL", f"{number} bytes are free"))
        # The link waits with it, and reads no more of the agent.
        assert clock.now == REPORTS - 1
        ((message,),) = await execute(database, "SELECT reported_conditions->0->>'message' FROM agent")
        assert message == f"{REPORTS - 1} bytes are free"
        for _ in range(REPORTS):
            await node.change_conditions(*node.conditions)
        assert clock.now <= REPORTS
