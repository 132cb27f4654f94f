"""Passes of the scheduler's shell on a PostgreSQL that syncs to disk: decisions a second,
what a pass costs beside history, agents and a queue.

Rows of agents and sessions are made by `INSERT … SELECT`; a pass is taking in what changed, planning, the commit, and
the pending reasons. The peer of durable decisions is one `UPDATE … FROM unnest` of what a decision changes in `session`
and `kernel`, and its commit, on the same rows.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from sqlalchemy import text

from retinue.manager.store.migrations import migrate
from retinue.manager.store.postgres.database import Database
from tests.bench import end_politely, report
from tests.bench.own_database import own_database
from tests.support.sent_statements import sent_statements
from tests.support.stepped_scheduler import SteppedScheduler

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

TERM = 1
HISTORY_PORTION = 100_000
SPEC = (
    '{"version": 1, "name": "s", "project": "", "resource_group": "default", "type": "batch", "labels": {}, "roles": {},'
    ' "kernel": {"image": "", "command": ["true"], "environment": {}, "slots": {}}}'
)


async def execute(database: Database, statement: str, **values: object) -> None:
    async with database.transaction() as tx:
        await tx.execute(text("SET LOCAL statement_timeout = 0"))
        await tx.execute(text(statement), values)


async def add_agents(database: Database, first: int, last: int) -> None:
    """Agents of 64 cores each."""
    await execute(
        database,
        """
        INSERT INTO agent (id, resource_group, state, drained, revoked, address, instance, architecture, capacity, backends, software_version,
            underlay_address, underlay_mtu, boot_id, version)
        SELECT 'agent-' || lpad(n::text, 6, '0'), 'default', 'ALIVE', FALSE, FALSE, '', '', 'x86_64',
            '{"cpu": 64000, "mem": 274877906944, "disk": 1099511627776}', '["process"]', '', '192.0.2.1', 1500, '', 1
        FROM generate_series(CAST(:first AS int), CAST(:last AS int)) AS n
        """,
        first=first,
        last=last - 1,
    )


async def add_sessions(database: Database, name: str, number: int, *, cpu: int, state: str = "PENDING") -> None:
    """Sessions of one kernel, of fifty owners."""
    await execute(
        database,
        """
        WITH made AS (
            INSERT INTO session (id, name, owner, project, resource_group, type, cluster_mode, cluster_size, priority, spec, state,
                result, reason, message, network, tries, failed_starts, last_failure, force, version, end_time)
            SELECT gen_random_uuid(), CAST(:name AS text) || n, 'owner-' || n % 50, 'default', 'default', 'batch', 'SINGLE_NODE', 1, 10,
                CAST(:spec AS jsonb),
                CAST(:state AS text), 'UNDEFINED', 'QUEUED', '', '', 0, 0, '', FALSE, 1, CASE WHEN CAST(:state AS text) = 'TERMINATED' THEN now() END
            FROM generate_series(1, CAST(:number AS int)) AS n RETURNING id, state
        )
        INSERT INTO kernel (id, session_id, role, role_index, local_rank, hostname, slots, state, epoch, address, reason)
        SELECT id, id, 'main', 1, 0, 'main1', jsonb_build_object('cpu', CAST(:cpu AS int), 'mem', 268435456), state, 0, '', '' FROM made
        """,
        name=name,
        number=number,
        cpu=cpu,
        state=state,
        spec=SPEC,
    )


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    gc.collect()
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


async def after_a_submit(database: Database, scheduler: SteppedScheduler, rounds: int) -> list[float]:
    """Seconds from one submitted session to its commit."""
    found = []
    for _ in range(rounds):
        await add_sessions(database, uuid.uuid4().hex, 1, cpu=100)
        found.append(await timed(scheduler.run_once))
    return found


async def add_history(database: Database, number: int) -> None:
    """Sessions that have ended, and what is left of them; no trigger looks at each of them,
    as none would have reason to.
    """
    await execute(database, "ALTER TABLE session DISABLE TRIGGER ALL")
    await execute(database, "ALTER TABLE kernel DISABLE TRIGGER ALL")
    try:
        for first in range(0, number, HISTORY_PORTION):
            portion = min(HISTORY_PORTION, number - first)
            await add_sessions(database, f"h{first}-", portion, cpu=100, state="TERMINATED")
    finally:
        await execute(database, "ALTER TABLE kernel ENABLE TRIGGER ALL")
        await execute(database, "ALTER TABLE session ENABLE TRIGGER ALL")
    await execute(database, "ANALYZE session")
    await execute(database, "ANALYZE kernel")


async def with_history(
    database: Database,
    scheduler: SteppedScheduler,
    without: tuple[Database, SteppedScheduler],
    arguments: argparse.Namespace,
) -> list[float]:
    """Prints what a million finished sessions add to a pass, and returns the seconds of passes beside them.

    Two databases of one server take turns, and each ratio is of two passes in a row:
    what else the machine does meets both alike.
    """
    await add_history(database, arguments.history)
    other, other_scheduler = without
    many: list[float] = []
    few: list[float] = []
    for number in range(arguments.submits + 2):
        sides = [(database, scheduler, many), (other, other_scheduler, few)]
        for side, its_scheduler, found in sides if number % 2 else sides[::-1]:
            found.extend(await after_a_submit(side, its_scheduler, 1))
    many, few = many[2:], few[2:]
    ratio = statistics.median(one / two for one, two in zip(many, few, strict=True))
    report(
        f"shell-pass-with-history-{arguments.history}",
        statistics.median(many) * 1000,
        "ms",
        statistics.median(many) * 1000 / ratio,
        spread=[each * 1000 for each in many],
    )
    return many


async def bare(database: Database, number: int) -> float:
    """Seconds of an update of the same columns of as many rows, and its commit."""
    async with database.transaction() as tx:
        ids = list(
            (
                await tx.execute(text("SELECT id FROM session WHERE state = 'SCHEDULED' LIMIT :n"), {"n": number})
            ).scalars()
        )

    async def update() -> None:
        async with database.transaction() as tx:
            values = {"ids": ids, "agents": ["agent-000001"] * len(ids), "networks": [""] * len(ids)}
            await tx.execute(
                text("""
                    UPDATE session SET state = 'SCHEDULED', state_time = now(), schedule_time = now(), evaluate_time = now(), reason = '',
                        message = '', explanation = '{}', network = r.network, tries = tries + 1, version = version + 1
                    FROM unnest(CAST(:ids AS uuid[]), CAST(:networks AS text[])) AS r(id, network) WHERE session.id = r.id
                """),
                {"ids": values["ids"], "networks": values["networks"]},
            )
            await tx.execute(
                text("""
                    UPDATE kernel SET state = 'SCHEDULED', agent_id = r.agent_id, epoch = epoch + 1, address = '', reason = ''
                    FROM unnest(CAST(:ids AS uuid[]), CAST(:agents AS text[])) AS r(id, agent_id) WHERE kernel.id = r.id
                """),
                {"ids": values["ids"], "agents": values["agents"]},
            )

    await execute(database, "ALTER TABLE session DISABLE TRIGGER USER")
    try:
        return await timed(update)
    finally:
        await execute(database, "ALTER TABLE session ENABLE TRIGGER USER")


async def prepared(database: Database) -> SteppedScheduler:
    """The scheduler of a database with agents."""
    async with database.transaction() as tx:
        await tx.execute(text("UPDATE leadership SET term = :term"), {"term": TERM})
    scheduler = SteppedScheduler(database, TERM, lambda _: None)
    await add_agents(database, 0, 1000)
    await scheduler.run_once()
    return scheduler


async def measure(database: Database, other: Database, arguments: argparse.Namespace) -> None:
    """`other` is as empty as `database`, and gets no history."""
    scheduler = await prepared(database)
    without = (other, await prepared(other))

    # Durable decisions, and how many statements they take.
    statements = 0
    rates, peers = [], []
    for round_number in range(arguments.rounds):
        await add_sessions(database, f"d{round_number}-", arguments.decisions, cpu=100)
        with sent_statements() as sent:
            seconds = await timed(scheduler.run_once)
        statements = len(sent)
        rates.append(arguments.decisions / seconds)
        # The two databases differ in history alone.
        await add_sessions(other, f"d{round_number}-", arguments.decisions, cpu=100)
        await without[1].run_once()
        peers.append(arguments.decisions / await bare(database, arguments.decisions))
    report("shell-durable-decisions", statistics.median(rates), "decisions/s", statistics.median(peers), spread=rates)
    report("shell-statements-per-pass", statements, "statements", None)

    many = await with_history(database, scheduler, without, arguments)
    await add_agents(database, 1000, 10_000)
    await scheduler.run_once()
    large = await after_a_submit(database, scheduler, arguments.submits)
    report(
        "shell-pass-10k-agents-to-1k-agents",
        statistics.median(large) * 1000,
        "ms",
        statistics.median(many) * 1000,
        spread=[each * 1000 for each in large],
    )

    await add_sessions(database, "p", arguments.pending, cpu=65_000)
    await scheduler.run_once()
    loaded = await after_a_submit(database, scheduler, arguments.submits)
    report(
        f"shell-pass-with-pending-{arguments.pending}",
        statistics.median(loaded) * 1000,
        "ms",
        statistics.median(large) * 1000,
        spread=[each * 1000 for each in loaded],
    )


async def run(arguments: argparse.Namespace) -> None:
    async with own_database() as (_, database):
        connection = await database.connect("bench")
        await connection.execute("CREATE DATABASE without_history TEMPLATE template0")
        await connection.close()
        beside = database.url.set(database="without_history").render_as_string(hide_password=False)
        await migrate(beside)
        other = Database(beside, statement_timeout=600.0)
        try:
            await measure(database, other, arguments)
        finally:
            await other.dispose()


def main() -> None:
    """Prints the figures."""
    end_politely()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--decisions", type=int, default=5000)
    parser.add_argument("--submits", type=int, default=15)
    parser.add_argument("--history", type=int, default=1_000_000)
    parser.add_argument("--pending", type=int, default=100_000)
    parser.add_argument("--quick", action="store_true", help="small, for a look")
    given = parser.parse_args()
    if given.quick:
        given.rounds, given.decisions, given.submits, given.history, given.pending = 1, 1_000, 5, 10_000, 10_000
    asyncio.run(run(given))


if __name__ == "__main__":
    main()
