"""Preemption and reservations against a real database: who makes way, what is kept for whom, and what comes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from retinue.manager.domain.session.admission import MAX_PREEMPTIBLE_GRACE_SECONDS
from retinue.manager.domain.session.states import SessionType
from tests.integration.manager.scheduler.world import World, check, kernel, row, settle

if TYPE_CHECKING:
    from retinue.manager.store.postgres.database import Database


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


async def test_an_aged_session_is_not_starved_where_nothing_has_a_time_limit(database: Database) -> None:
    async with World(database, 4).running() as world:
        await configure(database, reserve_after_tries="1")
        batch = {"type": SessionType.BATCH, "retry": None}
        kept = await world.submit(**kernel("4"), type=SessionType.INTERACTIVE)
        await settle(world)
        filling = []
        for _ in range(2):
            filling.append(await world.submit(**kernel("3"), **batch))
            await settle(world)
        assert {(await row(database, each)).state for each in (kept, *filling)} == {"RUNNING"}
        head = await world.submit(**kernel("4"))
        await settle(world)
        await settle(world)
        oldest = await row(database, filling[0])
        drained = f"has a reservation on agent {oldest.agent_id} once what runs there has ended"
        assert drained in (await row(database, head)).message
        # Each would fit beside what runs there, whatever its time limit.
        small = [await world.submit(**kernel("1"), **batch, time_limit_seconds=limit) for limit in (500.0, None, 900.0)]
        await settle(world)
        found = [await row(database, each) for each in small]
        assert {each.agent_id for each in found if each.state == "RUNNING"} == {
            (await row(database, filling[1])).agent_id
        }
        assert {each.reason for each in found if each.state == "PENDING"} >= {"RESERVED"}
        await world.end(filling[0])
        await settle(world)
        started = await row(database, head)
        assert (started.state, started.agent_id) == ("RUNNING", oldest.agent_id)
        await world.come_to_rest()
        await check(database)


async def test_room_is_held_for_the_winner_until_the_last_victim_has_had_its_grace(database: Database) -> None:
    async with World(database, 5).running() as world:
        await configure(database, preemption="requeue", preemption_hold_seconds="30")
        victims = [
            await world.submit(**kernel("4"), priority=5, preemptible=True, retry=None, grace_seconds=grace)
            for grace in (5.0, MAX_PREEMPTIBLE_GRACE_SECONDS, 10.0)
        ]
        await settle(world)
        slow = (await row(database, victims[1])).agent_id
        winner = await world.submit(**{**kernel("4"), "cluster_size": 3, "single_node": False}, priority=50, retry=None)
        await world.schedule()
        async with database.transaction() as tx:
            held = await tx.execute(
                text("""
                    SELECT (nomination->>'until')::float8 - extract(epoch FROM now())::float8 FROM session WHERE id = :id
                """),
                {"id": winner},
            )
            # The clock has gone on since it was written, by far less than the hold.
            assert held.scalar_one() > MAX_PREEMPTIBLE_GRACE_SECONDS
        # The first victims have ended, and are not placed where room is held.
        quick = [node for node in world.nodes if node.name != slow]
        for _ in range(3):
            for node in quick:
                await node.step()
            await world.schedule()
        assert [(found.state, found.epoch) for found in [await row(database, each) for each in victims]] == [
            ("PENDING", 1)
        ] * 3
        assert (await row(database, winner)).state == "PENDING"
        await settle(world)
        assert (await row(database, winner)).state == "RUNNING"
        await world.come_to_rest()
        await check(database)
