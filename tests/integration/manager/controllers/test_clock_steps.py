"""The database's clock is set, forward and back: no session ends by that, and none continues for longer."""

# ruff: noqa: S608  # columns of our own

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from retinue.manager.controllers import deadlines
from retinue.manager.controllers.core.clock_steps import ClockLook
from retinue.manager.controllers.deadlines import DatabaseClock
from retinue.manager.scheduling.strategies import PENDING_TIMEOUT_SECONDS
from retinue.manager.store.leadership.leadership import NotLeader
from retinue.manager.store.leadership.lease import boot_time
from retinue.manager.store.placement.deadlines import read_clock
from tests.integration.manager.reporting_node import TERM
from tests.support.databases import Postgres, fresh_database
from tests.vectors.store_vectors import node_with, submit

if TYPE_CHECKING:
    from retinue.manager.store.postgres.database import Database

HOUR = 3600.0
TIMES = ("schedule_time", "pull_time", "state_time", "start_time", "expire_time", "next_try_time", "end_time")


async def set_clock(database: Database, clock: DatabaseClock, seconds: float) -> None:
    """As if the clock had been set just now: what it said before is by so much another time."""
    async with database.transaction() as tx:
        before = boot_time()
        wall = await read_clock(tx)
        moved = ", ".join(f"{column} = {column} - make_interval(secs => :seconds)" for column in TIMES)
        await tx.execute(text(f"UPDATE session SET {moved}"), {"seconds": seconds})
    clock.keep(ClockLook(before, boot_time(), wall - seconds))


async def states(database: Database) -> list[str]:
    async with database.transaction() as tx:
        return list((await tx.execute(text("SELECT state FROM session ORDER BY create_time"))).scalars())


async def ages(database: Database) -> list[list[float | None]]:
    """How long ago all times are, by the clock as it is, in seconds."""
    columns = ", ".join(f"extract(epoch FROM now() - {column})::float8" for column in TIMES)
    async with database.transaction() as tx:
        rows = await tx.execute(text(f"SELECT {columns} FROM session ORDER BY create_time"))
        return [list(row) for row in rows]


async def times(database: Database) -> list[tuple[object, ...]]:
    async with database.transaction() as tx:
        return [
            tuple(row) for row in await tx.execute(text(f"SELECT {', '.join(TIMES)} FROM session ORDER BY create_time"))
        ]


async def pass_time(database: Database, seconds: float) -> None:
    async with database.transaction() as tx:
        moved = ", ".join(f"{column} = {column} - make_interval(secs => :seconds)" for column in TIMES)
        await tx.execute(text(f"UPDATE session SET {moved}"), {"seconds": seconds})


@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
async def test_a_clock_that_is_set_ends_nothing_and_prolongs_nothing(postgres: Postgres, seconds: float) -> None:
    async with fresh_database(postgres) as url, node_with(url, {"cpu": 1, "mem": 1}) as database:
        waiting, placed, running = [await submit(database, [{"cpu": 2}]) for _ in range(3)]
        async with database.transaction() as tx:
            for statement, session_id in (
                ("state_time = now() - interval '10 min', next_try_time = now() + interval '5 s'", waiting),
                (
                    "state = 'SCHEDULED', state_time = now() - interval '4 min', schedule_time = now() - interval '4 min'",
                    placed,
                ),
                (
                    "state = 'RUNNING', state_time = now() - interval '20 min', start_time = now() - interval '20 min',"
                    " expire_time = now() + interval '10 min'",
                    running,
                ),
            ):
                await tx.execute(text(f"UPDATE session SET {statement} WHERE id = :id"), {"id": session_id})
            await tx.execute(
                text(
                    "UPDATE resource_group SET start_timeout_seconds = 600, options = options || jsonb_build_object(CAST(:option AS text), '1800')"
                ),
                {"option": PENDING_TIMEOUT_SECONDS},
            )
        clock = DatabaseClock()
        for _ in range(2):
            await deadlines.enforce(database, TERM, lambda _: None, clock)
        before = await ages(database)
        await set_clock(database, clock, seconds)
        for _ in range(2):
            await deadlines.enforce(database, TERM, lambda _: None, clock)
        assert await states(database) == ["PENDING", "SCHEDULED", "RUNNING"]
        for session_before, session in zip(before, await ages(database), strict=True):
            for former, present in zip(session_before, session, strict=True):
                assert (former is None) == (present is None)
                if former is not None and present is not None:
                    assert abs(present - former) < HOUR / 2

        # The bounds hold as before: the first to come is that of starts.
        await pass_time(database, 2 * 60)
        await deadlines.enforce(database, TERM, lambda _: None, DatabaseClock())
        assert await states(database) == ["PENDING", "SCHEDULED", "RUNNING"]
        await pass_time(database, 9 * 60)
        await deadlines.enforce(database, TERM, lambda _: None, DatabaseClock())
        found = await states(database)
        assert found[0] == "PENDING"
        assert found[1] != "SCHEDULED"
        assert found[2] != "RUNNING"


async def test_what_began_after_the_step_keeps_its_times(postgres: Postgres) -> None:
    for seconds in (HOUR, -HOUR):
        async with fresh_database(postgres) as url, node_with(url, {"cpu": 1, "mem": 1}) as database:
            clock = DatabaseClock()
            await set_clock(database, clock, seconds)
            await submit(database, [{"cpu": 2}])
            await deadlines.enforce(database, TERM, lambda _: None, clock)
            ((_, _, age, *_),) = await ages(database)
            assert age is not None
            assert 0 <= age < HOUR / 2


async def test_a_manager_that_another_follows_shifts_no_times(postgres: Postgres) -> None:
    async with fresh_database(postgres) as url, node_with(url, {"cpu": 1, "mem": 1}) as database:
        await submit(database, [{"cpu": 2}])
        clock = DatabaseClock()
        await set_clock(database, clock, HOUR)
        before = await times(database)
        with pytest.raises(NotLeader):
            await deadlines.enforce(database, TERM + 1, lambda _: None, clock)
        assert await times(database) == before
        # The leader does.
        await deadlines.enforce(database, TERM, lambda _: None, clock)
        assert await times(database) != before
