"""Memory of the leader's scheduler: what each waiting session adds, and all of it with many agents,
waiting and running sessions.

Rows are made by `INSERT … SELECT`, then a process in which all of the manager's code is loaded begins a term: it reads
them, and makes one pass in which nothing can be placed. Links to agents are not counted,
nor is what the database itself takes.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import resource
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from typing import TYPE_CHECKING

from sqlalchemy import text

import retinue.manager.main  # noqa: F401  # everything that a manager has in memory
from tests.bench import end_politely, report
from tests.bench.durable_passes import TERM, add_agents, add_sessions, execute
from tests.bench.own_database import own_database
from tests.support.stepped_scheduler import SteppedScheduler

if TYPE_CHECKING:
    from retinue.manager.store.postgres.database import Database


def resident() -> int:
    """Bytes of memory that this process has."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


async def add_running(database: Database, number: int, agents: int) -> None:
    """Running sessions of one kernel each, spread over the agents, with their attempts, claims and shares."""
    await add_sessions(database, "r", number, cpu=100, state="RUNNING")
    await execute(
        database,
        """
        WITH placed AS (
            UPDATE kernel SET epoch = 1, agent_id = 'agent-' || lpad((r.n % CAST(:agents AS int))::text, 6, '0')
            FROM (SELECT id, row_number() OVER () AS n FROM session WHERE state = 'RUNNING') AS r
            WHERE kernel.session_id = r.id RETURNING kernel.id, kernel.session_id, kernel.agent_id, kernel.slots
        ), tried AS (
            INSERT INTO attempt (kernel_id, epoch, session_id, agent_id, goal, observed, term, log_pending)
            SELECT id, 1, session_id, agent_id, 'RUNNING', 'RUNNING', 1, FALSE FROM placed
        )
        INSERT INTO claim (kernel_id, epoch, slot, agent_id, resource_group, owner, amount)
        SELECT placed.id, 1, slot.key, placed.agent_id, 'default', s.owner, slot.value::bigint
        FROM placed JOIN session s ON s.id = placed.session_id CROSS JOIN LATERAL jsonb_each_text(placed.slots) AS slot
        """,
        agents=agents,
    )


async def measure(database: Database, agents: int, pending: int, running: int) -> None:
    """Prints the figures."""
    await execute(database, "UPDATE leadership SET term = :term", term=TERM)
    await add_agents(database, 0, agents)
    scheduler = SteppedScheduler(database, TERM, lambda _: None)
    # What is read at first takes room that is used again later.
    await add_sessions(database, "w", 2000, cpu=65_000)
    # What is kept, without what a pass needs for a moment.
    await scheduler.catch_up()
    before = resident()
    await add_sessions(database, "p", pending - 2000, cpu=65_000)
    await scheduler.catch_up()
    report("memory-per-pending", (resident() - before) / (pending - 2000), "bytes", None)
    await add_running(database, running, agents)
    async with database.transaction() as tx:
        # A new term, as after the change of a leader: everything is read from the rows.
        await tx.execute(text("DELETE FROM scheduling_change"))
    scheduler = SteppedScheduler(database, TERM, lambda _: None)
    await scheduler.run_once()
    name = f"memory-{agents}-agents-{pending}-pending-{running}-running"
    report(name, resident() / 1e6, "MB", None)
    report(f"{name}-largest", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, "MB", None)


async def run(arguments: argparse.Namespace) -> None:
    """A database of its own, and the measurement on it."""
    # How rows become durable makes no difference to memory.
    async with own_database(durable=False) as (_, database):
        await measure(database, arguments.agents, arguments.pending, arguments.running)


if __name__ == "__main__":
    end_politely()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=10_000)
    parser.add_argument("--pending", type=int, default=100_000)
    parser.add_argument("--running", type=int, default=100_000)
    parser.add_argument("--quick", action="store_true", help="small, for a look")
    given = parser.parse_args()
    if given.quick:
        given.agents, given.pending, given.running = 1_000, 10_000, 10_000
    asyncio.run(run(given))
