"""A group's bound on waiting: what counts is the time in which a session could have had a place."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sqlalchemy import text

from retinue.manager.controllers import deadlines, dependencies
from retinue.manager.domain.scheduling.policy import Policy
from retinue.manager.scheduling.strategies import PENDING_TIMEOUT_SECONDS, validate_policy
from tests.integration.manager.reporting_node import TERM
from tests.integration.manager.rows import hold
from tests.support.databases import Postgres, fresh_database
from tests.vectors.store_vectors import node_with, submit

if TYPE_CHECKING:
    import uuid

    from retinue.manager.store.postgres.database import Database

HOUR = 3600
BOUND = {PENDING_TIMEOUT_SECONDS: str(HOUR)}


async def make_older(database: Database, hours: float) -> None:
    async with database.transaction() as tx:
        await tx.execute(
            text(
                "UPDATE session SET state_time = state_time - make_interval(secs => :age),"
                " end_time = end_time - make_interval(secs => :age)"
            ),
            {"age": hours * HOUR},
        )


async def cancelled(database: Database) -> set[uuid.UUID]:
    await deadlines.enforce(database, TERM, lambda _: None)
    async with database.transaction() as tx:
        rows = await tx.execute(
            text(
                "SELECT id FROM session WHERE state = 'CANCELLED' AND reason = 'PENDING_TIMEOUT' AND end_time IS NOT NULL"
            )
        )
    return set(rows.scalars())


async def test_only_time_in_which_a_session_could_have_had_a_place_counts(postgres: Postgres) -> None:
    assert validate_policy(Policy(options=BOUND)).pending_timeout_seconds == HOUR
    async with fresh_database(postgres) as url, node_with(url, {"cpu": 1, "mem": 1}) as database:
        plain, held = [await submit(database, [{"cpu": 2}]) for _ in range(2)]
        await hold(database, held)
        later = await submit(database, [{"cpu": 2}], earliest_start_time=time.time() - HOUR / 2)
        parent, finished = [await submit(database, [{"cpu": 2}]) for _ in range(2)]
        child, grown = await submit(database, [{"cpu": 2}], [parent]), await submit(database, [{"cpu": 2}], [finished])
        async with database.transaction() as tx:
            await tx.execute(
                text("UPDATE session SET state = 'TERMINATED', result = 'SUCCESS', end_time = now() WHERE id = :id"),
                {"id": finished},
            )
        await dependencies.settle(database, TERM, lambda _: None)
        await make_older(database, 0.9)
        assert await cancelled(database) == set()

        async with database.transaction() as tx:
            await tx.execute(
                text("UPDATE resource_group SET options = CAST(:options AS jsonb)"),
                {"options": f'{{"{PENDING_TIMEOUT_SECONDS}": "{HOUR}"}}'},
            )
            await tx.execute(text("UPDATE session SET state = 'RUNNING' WHERE id = :id"), {"id": parent})
            # It began to wait long before what it needed was there.
            await tx.execute(
                text("UPDATE session SET state_time = state_time - interval '1 day' WHERE id IN (:later, :grown)"),
                {"later": later, "grown": grown},
            )
        assert await cancelled(database) == set()
        await make_older(database, 0.2)
        assert await cancelled(database) == {plain, grown}
        assert child not in await cancelled(database)
        # One that is released waits from then on.
        await hold(database, held, held=False)
        assert held not in await cancelled(database)
        await make_older(database, 1.1)
        assert held in await cancelled(database)
