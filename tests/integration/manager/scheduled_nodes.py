"""Nodes whose reports are committed, beside a scheduler whose passes tests run."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from retinue.manager.dispatch.reports import Reports
from retinue.manager.store.placement import placements
from tests.integration.manager.reporting_node import TERM, Node, enrol
from tests.integration.manager.rows import states, submit
from tests.support.stepped_scheduler import SteppedScheduler

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    import pytest

    from retinue.manager.dispatch.orphans import OutOfBounds
    from retinue.manager.store.postgres.database import Database

CPU, MEM, DISK = 1000, 2**28, 2**30
"""What `one_node` has, but for its disk, and what a session without wishes asks for."""
ROOMY = {"cpu": 100_000, "mem": 100 << 30}


@contextlib.asynccontextmanager
async def committing(reports: Reports) -> AsyncIterator[None]:
    """Reports are committed as they come."""
    running = asyncio.create_task(reports.run())
    try:
        yield
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@contextlib.asynccontextmanager
async def scheduled_node(database: Database, capacity: dict[str, int]) -> AsyncIterator[tuple[Node, SteppedScheduler]]:
    """The node `n0`."""
    reports = Reports(database, TERM, lambda _: None)
    async with committing(reports):
        await enrol(database, ["n0"])
        node = Node("n0", reports, database, dict(capacity))
        await node.join()
        yield node, SteppedScheduler(database, TERM, lambda _: None)


def one_node(database: Database) -> contextlib.AbstractAsyncContextManager[tuple[Node, SteppedScheduler]]:
    """A node that has room for one kernel."""
    return scheduled_node(database, {"cpu": CPU, "mem": MEM})


def roomy_node(database: Database) -> contextlib.AbstractAsyncContextManager[tuple[Node, SteppedScheduler]]:
    """A node on which room is never short."""
    return scheduled_node(database, ROOMY)


@contextlib.asynccontextmanager
async def two_nodes(database: Database, out_of_bounds: OutOfBounds | None = None) -> AsyncIterator[tuple[Node, Node]]:
    """A node `honest` with two sessions that run, and a node `rogue` with nothing."""
    note = out_of_bounds.note if out_of_bounds is not None else lambda _agent, _attempts: None
    reports = Reports(database, TERM, lambda _affected: None, out_of_bounds=note)
    async with committing(reports):
        await enrol(database, ["honest", "rogue"])
        honest, rogue = (Node(name, reports, database, dict(ROOMY)) for name in ("honest", "rogue"))
        await honest.join()
        for name in ("a", "b"):
            await submit(database, "ann", name)
        await SteppedScheduler(database, TERM, lambda _affected: None).run_once()
        while await honest.step():
            pass
        assert await states(database) == {"a": "RUNNING", "b": "RUNNING"}
        await rogue.join()
        yield honest, rogue


async def finish(node: Node) -> None:
    """Every session of a node comes to its end."""
    for _ in range(6):
        await node.step(exit_code=0)


async def before_the_commit(
    monkeypatch: pytest.MonkeyPatch, scheduler: SteppedScheduler, change: Callable[[], Awaitable[None]]
) -> None:
    """A pass during whose commit, before it has looked at anything, something else is committed."""
    lock = placements.lock

    async def changed(*arguments: Any) -> placements.Locked:
        await change()
        return await lock(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(placements, "lock", changed)
        await scheduler.run_once()
