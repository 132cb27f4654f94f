"""Preemption and reservations against a real database: who makes way, what is kept for whom, and what comes of them."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from retinue.manager.store.database import Database
from tests.integration.manager.scheduler.world import World, check, kernel, row, settle


async def configure(database: Database, **options: str) -> None:
    async with database.transaction() as tx:
        pairs = {name.replace("_", "-"): value for name, value in options.items()}
        await tx.execute(
            text("UPDATE resource_group SET options = jsonb_object(CAST(:keys AS text[]), CAST(:values AS text[]))"),
            {"keys": list(pairs), "values": list(pairs.values())},
        )


@pytest.mark.parametrize("mode", ["terminate", "requeue"])
async def test_the_winner_gets_what_it_was_promised(database: Database, mode: str) -> None:
    async with World(database, 1).running() as world:
        await configure(database, preemption=mode)
        filling = [await world.submit(**kernel("4"), priority=5, preemptible=True) for _ in range(2)]
        firm = await world.submit(**kernel("4"), priority=5)
        await settle(world)
        assert {(await row(database, each)).state for each in (*filling, firm)} == {"RUNNING"}

        equal = await world.submit(**kernel("3"), priority=5)
        await settle(world)
        assert (await row(database, equal)).state == "PENDING", "no session is preempted for one of equal priority"
        winner = await world.submit(**kernel("3"), priority=50)
        await world.schedule()
        (victim,) = [each for each in filling if (await row(database, each)).state != "RUNNING"]
        (other,) = [each for each in filling if each != victim]
        lost = await row(database, victim)
        assert (lost.state, lost.reason) == ("TERMINATING" if mode == "terminate" else "PENDING", "PREEMPTED")
        assert str(winner) in lost.message
        assert (await row(database, winner)).nomination["agents"]
        await check(database)

        # Even one of higher priority that would fit does not take the held room.
        thief = await world.submit(**kernel("3"), priority=60)
        await configure(database, preemption="off")
        await settle(world)
        await check(database)
        won = await row(database, winner)
        assert (won.state, won.nomination) == ("RUNNING", {})
        assert (await row(database, thief)).state == "PENDING"
        assert (await row(database, firm)).state == "RUNNING"
        assert (await row(database, other)).state == "RUNNING"
        lost = await row(database, victim)
        if mode == "terminate":
            assert (lost.state, lost.reason) == ("TERMINATED", "PREEMPTED")
        else:
            assert (lost.state, lost.result, lost.epoch) == ("PENDING", "UNDEFINED", 1)
            for each in (winner, thief, equal):
                await world.end(each)
            await settle(world)
            again = await row(database, victim)
            assert (again.state, again.epoch) == ("RUNNING", 2)
        await world.come_to_rest()
        await check(database)


async def test_a_promise_does_not_last_for_ever(database: Database) -> None:
    async with World(database, 2).running() as world:
        await configure(database, preemption="terminate")
        for _ in range(3):
            await world.submit(**kernel("4"), priority=5, preemptible=True)
        await settle(world)
        winner = await world.submit(**kernel("3"), priority=50)
        await world.schedule()
        await configure(database)
        async with database.transaction() as tx:
            await tx.execute(
                text("UPDATE session SET nomination = nomination || '{\"until\": 1}' WHERE nomination <> '{}'")
            )
        thief = await world.submit(**kernel("3"), priority=60)
        await settle(world)
        assert (await row(database, thief)).state == "RUNNING"
        assert (await row(database, winner)).state == "PENDING"
        await world.come_to_rest()


async def test_an_aged_session_is_not_starved_by_backfill(database: Database) -> None:
    async with World(database, 3).running() as world:
        await configure(database, reserve_after_tries="1")
        for limit in (1000.0, 2000.0, 3000.0):
            await world.submit(**kernel("3"), time_limit_seconds=limit)
        await settle(world)
        head = await world.submit(**kernel("4"))
        await settle(world)
        await settle(world)
        assert "has a reservation on agent" in (await row(database, head)).message
        longs = [await world.submit(**kernel("1"), time_limit_seconds=limit) for limit in (5000.0, 6000.0, None)]
        await settle(world)
        (waiting,) = [found for each in longs if (found := await row(database, each)).state == "PENDING"]
        assert waiting.reason == "RESERVED"
        assert str(head) in waiting.message
        short = await world.submit(**kernel("1"), time_limit_seconds=500.0)
        await settle(world)
        assert (await row(database, short)).state == "RUNNING", "it ends before the reservation begins"
        await world.come_to_rest()
        await check(database)
