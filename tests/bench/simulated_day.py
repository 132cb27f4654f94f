"""A part of a day of 10,000 agents and a million sessions, faster than it passes: what the real scheduler, store,
journal and reports of agents cost a session, and how many a day one leader and one PostgreSQL carry.

The agents are simulated: each holds, starts and ends the attempts that the store desires of it, and reports that as an
agent's link would. Sessions come as by night and by day (a sine, twice as many at its peak as at its mean), of 200
users, in batches; one in twenty is a gang of four. They run for a log-normal time: half of them for less than five
minutes, one in a hundred for more than an hour. What is left out are the messages between agents and leader, by mutual
TLS, and calls of watchers; `noop_sessions` and `console_viewers` have those.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import math
import random
import resource
import sys
import time
import uuid
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from sqlalchemy import text

from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.client.spec import session_spec
from retinue.manager.api.sessions.spec_convert import to_requests
from retinue.manager.dispatch.desired_state import read_desired
from retinue.manager.dispatch.reports import Reports
from retinue.manager.domain.session.attempts import AttemptStatus, NodeReport
from retinue.manager.domain.session.pending_limit import PendingLimit
from retinue.manager.domain.session.secrets import SessionSecrets
from retinue.manager.domain.session.states import Observed
from retinue.manager.identity.principal import USER, Kind, Membership, Principal
from retinue.manager.session.drafts import prepare
from retinue.manager.session.submit import submit
from tests.bench import end_politely, report
from tests.bench.durable_passes import TERM, add_agents
from tests.bench.idle import family, used
from tests.bench.own_database import own_database
from tests.support.stepped_scheduler import SteppedScheduler

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from contextlib import AbstractContextManager

    from retinue.manager.store.postgres.database import Database
    from retinue.manager.store.postgres.embedded import EmbeddedServer

AGENTS, USERS, DAY = 10_000, 200, 86_400
GANG_SHARE, GANG_SIZE = 0.05, 4
# Seconds: of a log-normal time, the median, and the deviation of its logarithm.
MEDIAN, SIGMA, LONGEST = 300.0, 1.1, 4 * 3600.0
# Simulated seconds that are handled at once. A leader handles what comes within 50 ms, so this saves it something where
# it is idle, and nothing where it is busy.
ROUND = 10.0


class Costs:
    """Processor time of this process by phase, and wall time."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.passes: list[float] = []

    def of(self, phase: str) -> AbstractContextManager[None]:
        """Counts what is done within the block."""
        return _Measured(self.seconds, phase)


class _Measured:
    def __init__(self, into: Counter[str], phase: str) -> None:
        self._into, self._phase = into, phase

    def __enter__(self) -> None:
        self._began = time.process_time()

    def __exit__(self, *_: object) -> None:
        self._into[self._phase] += time.process_time() - self._began  # type: ignore[assignment]  # seconds


class Fleet:
    """All agents: what each has, and when it ends."""

    def __init__(self, database: Database, costs: Costs) -> None:
        self.reports = Reports(database, TERM, self._changed)
        self.ended = 0
        self._database = database
        self._costs = costs
        self._secrets = SessionSecrets(bytes(32))
        self._random = random.Random(2)
        # Sessions whose state changed, by the agent that is to be told.
        self._affected: dict[str, set[uuid.UUID]] = defaultdict(set)
        self._states: dict[str, Observed] = {}
        self._end_of: dict[uuid.UUID, float] = {}
        self._ends: list[tuple[float, str, uuid.UUID, uuid.UUID, int]] = []

    def placed(self, affected: Mapping[str, Collection[uuid.UUID] | None]) -> None:
        """Takes what a pass has placed."""
        self._changed(affected)

    def _changed(self, affected: Mapping[str, Collection[uuid.UUID] | None]) -> None:
        for agent_id, session_ids in affected.items():
            self._affected[agent_id].update(session_ids or ())

    async def settle(self, now: float) -> None:
        """Has agents do what is desired, until they have done it all."""
        while self._affected:
            affected, self._affected = self._affected, defaultdict(set)
            said: list[NodeReport] = []
            with self._costs.of("desired"):
                for agent_id, session_ids in affected.items():
                    said += await self._follow(agent_id, session_ids, now)
            await self._say(said)

    async def _follow(self, agent_id: str, session_ids: set[uuid.UUID], now: float) -> list[NodeReport]:
        desired = await read_desired(self._database, agent_id, self._secrets, session_ids)
        statuses = []
        for attempt in desired.attempts.values():
            before = self._states.get(attempt.id)
            key = uuid.UUID(attempt.kernel_id), attempt.number
            if before is None and attempt.goal != pb.GOAL_STOPPED:
                state = Observed.HELD
            elif before is Observed.HELD and attempt.goal == pb.GOAL_RUNNING:
                state = Observed.RUNNING
                session_id = uuid.UUID(attempt.session_id)
                end = self._end_of.setdefault(session_id, now + self._duration())
                heapq.heappush(self._ends, (end, agent_id, session_id, *key))
            else:
                continue
            self._states[attempt.id] = state
            statuses.append(AttemptStatus(key, state))
        return [NodeReport(agent_id, tuple(statuses))] if statuses else []

    def _duration(self) -> float:
        return min(LONGEST, self._random.lognormvariate(math.log(MEDIAN), SIGMA))

    async def end(self, now: float) -> None:
        """Ends what has run for its time."""
        statuses: dict[str, list[AttemptStatus]] = defaultdict(list)
        while self._ends and self._ends[0][0] <= now:
            _, agent_id, session_id, kernel_id, number = heapq.heappop(self._ends)
            self._end_of.pop(session_id, None)
            del self._states[f"{kernel_id}.{number}"]
            statuses[agent_id].append(AttemptStatus((kernel_id, number), Observed.EXITED, 0, "EXITED"))
            self.ended += 1
        await self._say([NodeReport(agent_id, tuple(ended)) for agent_id, ended in statuses.items()])

    async def _say(self, said: Collection[NodeReport]) -> None:
        with self._costs.of("reports"):
            await asyncio.gather(*(self.reports.reported(each) for each in said))

    @property
    def running(self) -> int:
        """Attempts that run."""
        return len(self._ends)


class Users:
    """Who asks for sessions, and how many of them come."""

    def __init__(self, database: Database, sessions_a_day: int) -> None:
        self.submitted = self.kernels = 0
        self._database = database
        self._a_day = sessions_a_day
        self._random = random.Random(1)
        self._pending = PendingLimit(1_000_000)
        self._due = 0.0
        self._callers = [
            Principal(Kind.USER, f"user-{number}", memberships=(Membership("default", "MEMBER"),))
            for number in range(USERS)
        ]

    async def join(self) -> None:
        """Makes them members."""
        values = {"names": [caller.name for caller in self._callers], "role": USER, "membership": "MEMBER"}
        async with self._database.transaction() as tx:
            for statement in (
                "INSERT INTO user_account (name, role) SELECT unnest(CAST(:names AS text[])), :role",
                "INSERT INTO membership (user_name, project, role) SELECT unnest(CAST(:names AS text[])), 'default', :membership",
            ):
                await tx.execute(text(statement), values)

    async def ask(self, now: float) -> None:
        """Submits what comes in a round that begins at a second of the day."""
        rate = self._a_day / DAY * (1 + math.sin(2 * math.pi * now / DAY))
        self._due += rate * ROUND
        while self._due >= 1:
            count = min(int(self._due), self._random.randint(1, 60))
            self._due -= count
            await self._batch(self._random.choice(self._callers), count)

    async def _batch(self, caller: Principal, count: int) -> None:
        gang = self._random.random() < GANG_SHARE
        options = {"cluster_size": GANG_SIZE, "cluster_mode": "multi-node"} if gang else {}
        slots = {"cpu": str(self._random.choice((1, 1, 2, 4))), "mem": "1g"}
        specs = [session_spec(type="batch", command=["true"], slots=slots, **options)] * count  # type: ignore[arg-type]
        drafts = prepare(to_requests(specs, caller), caller)
        async with self._database.transaction() as tx:
            submission = await submit(tx, caller.name, drafts, self._pending, validate_only=False)
        assert submission.revision, submission.outcomes[:1]
        self.submitted += count
        self.kernels += count * (GANG_SIZE if gang else 1)


async def sizes(database: Database) -> Iterator[int]:
    """Bytes of the database, and of the log that it has written."""
    async with database.transaction() as tx:
        row = (
            await tx.execute(
                text("SELECT pg_database_size(current_database()), CAST(pg_current_wal_lsn() - '0/0' AS bigint)")
            )
        ).one()
    return iter(row)


async def simulate(server: EmbeddedServer, database: Database, hours: float, sessions_a_day: int) -> None:
    """Prints all figures."""
    assert server.pid is not None
    async with database.transaction() as tx:
        await tx.execute(text("UPDATE leadership SET term = :term"), {"term": TERM})
    await add_agents(database, 0, AGENTS)
    costs = Costs()
    fleet, users = Fleet(database, costs), Users(database, sessions_a_day)
    await users.join()
    scheduler = SteppedScheduler(database, TERM, fleet.placed)
    await scheduler.run_once()
    size, log = await sizes(database)
    began, of_leader, of_database = time.monotonic(), time.process_time(), sum(map(used, family(server.pid)))
    reporting = asyncio.create_task(fleet.reports.run())
    try:
        # It begins in the morning, when as many come as on the whole.
        for number in range(int(hours * 3600 / ROUND)):
            now = number * ROUND
            with costs.of("submit"):
                await users.ask(now)
            passing = time.monotonic()
            with costs.of("pass"):
                await scheduler.run_once()
            costs.passes.append(time.monotonic() - passing)
            await fleet.settle(now)
            await fleet.end(now)
            await fleet.settle(now)
    finally:
        reporting.cancel()
        await asyncio.gather(reporting, return_exceptions=True)
    wall = time.monotonic() - began
    of_leader, of_database = time.process_time() - of_leader, sum(map(used, family(server.pid))) - of_database
    size_after, log_after = await sizes(database)
    await check(database, users, fleet)
    count = users.submitted
    report("day-sessions", count, "sessions", None)
    report("day-attempts-at-a-time", fleet.running, "attempts", None)
    for phase, seconds in sorted(costs.seconds.items()):
        report(f"day-{phase}", 1000 * seconds / count, "ms/session", None)
    report("day-leader", 1000 * of_leader / count, "ms/session", None)
    report("day-database", 1000 * of_database / count, "ms/session", None)
    report("day-leader-of-a-million", of_leader / count * 1e6 / DAY, "cores", None)
    report("day-database-of-a-million", of_database / count * 1e6 / DAY, "cores", None)
    report("day-pass-p99", 1000 * sorted(costs.passes)[int(0.99 * len(costs.passes))], "ms", None)
    report("day-stored", (size_after - size) / count / 1000, "kB/session", None)
    report("day-log", (log_after - log) / count / 1000, "kB/session", None)
    report("day-memory", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000, "MB", None)
    report("day-faster", hours * 3600 / wall, "times", None)


async def check(database: Database, users: Users, fleet: Fleet) -> None:
    """Nothing is lost: each session has ended, runs or waits, and all that have ended are successes."""
    async with database.transaction() as tx:
        rows = await tx.execute(text("SELECT state || ' ' || result, count(*) FROM session GROUP BY 1"))
        counts = {str(how): int(number) for how, number in rows}
        attempts = await tx.scalar(text("SELECT count(*) FROM kernel WHERE state = 'TERMINATED'"))
    assert sum(counts.values()) == users.submitted, counts
    assert counts.keys() <= {"TERMINATED SUCCESS", "RUNNING UNDEFINED", "PENDING UNDEFINED"}, counts
    assert attempts <= fleet.ended, (attempts, fleet.ended)


async def main(hours: float, sessions_a_day: int) -> None:
    """Simulates on a database of its own."""
    async with own_database() as (server, database):
        await simulate(server, database, hours, sessions_a_day)


if __name__ == "__main__":
    end_politely()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=2.0, help="of the day, from the morning on; 24 are all of it")
    parser.add_argument("--sessions", type=int, default=1_000_000, help="a day")
    parser.add_argument("--quick", action="store_true", help="small, for a look")
    given = parser.parse_args()
    if given.quick:
        given.hours = 0.1
    asyncio.run(main(given.hours, given.sessions))
