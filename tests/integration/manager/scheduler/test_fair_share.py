"""Past usage: counted by the day in the commit that releases claims, faded, and what the scheduler makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from retinue.manager.domain.scheduling.policy import Policy
from retinue.manager.scheduler.cache_sync import USAGE_SECONDS, UsageReader
from retinue.manager.scheduling.fair_share import DAY_SECONDS
from retinue.manager.scheduling.strategies import Settings, validate_policy
from retinue.manager.store.placement import usage
from tests.integration.manager.rows import execute, state_of, submit
from tests.integration.manager.scheduled_nodes import CPU, finish, one_node
from tests.support.decayed_usage import decayed_usage

if TYPE_CHECKING:
    from retinue.manager.store.postgres.database import Database


async def test_a_released_claim_is_usage_of_the_days_it_spanned(database: Database) -> None:
    async with one_node(database) as (node, scheduler):
        await submit(database, "ann")
        await scheduler.run_once()
        # Yesterday and the day before, 18:00 to 06:00 and on to now.
        start = "date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' - interval '30 hours'"
        await execute(database, f"UPDATE claim SET claim_time = {start}")  # noqa: S608
        await finish(node)
    rows = await execute(
        database,
        "SELECT slot, (now() AT TIME ZONE 'UTC')::date - day AS age, amount_seconds FROM usage WHERE slot = 'cpu' ORDER BY age DESC",
    )
    assert [(slot, age) for slot, age, _ in rows] == [("cpu", 2), ("cpu", 1), ("cpu", 0)]
    assert [float(str(amount)) for *_, amount in rows[:2]] == [CPU * 6 * 3600, CPU * 24 * 3600]
    total = await execute(
        database,
        "SELECT (SELECT sum(amount * extract(epoch FROM release_time - claim_time)) FROM claim) = (SELECT sum(amount_seconds) FROM usage)",
    )
    assert total == [(True,)]


async def test_usage_fades_as_the_pure_function_says(database: Database) -> None:
    days = {0: 5.0, 1: 7.0, 6: 11.0, 20: 13.0, 21: 1000.0}
    for age, amount in days.items():
        await execute(
            database,
            "INSERT INTO usage VALUES ('default', 'ann', 'cpu', (now() AT TIME ZONE 'UTC')::date - CAST(:age AS int), :amount)",
            age=age,
            amount=amount,
        )
    async with database.transaction() as tx:
        found = await usage.read_decayed(tx, "default", ["ann", "ben"], half_life_days=3, look_back_days=21)
    within = [(float(age), amount) for age, amount in days.items() if age < 21]
    assert found == {"ann": {"cpu": pytest.approx(decayed_usage(within, 3.0))}}


async def test_a_live_claim_counts_and_fades_while_it_lives(database: Database) -> None:
    async with one_node(database) as (_, scheduler):
        await submit(database, "ann")
        await scheduler.run_once()
        await execute(database, "UPDATE claim SET claim_time = now() - interval '10 days'")
        async with database.transaction() as tx:
            found = await usage.read_decayed(tx, "default", ["ann"], half_life_days=2, look_back_days=28)
    # The integral, by the sum of a thousand steps a day.
    steps = [(step / 1000, CPU * DAY_SECONDS / 1000) for step in range(10_000)]
    assert found["ann"]["cpu"] == pytest.approx(decayed_usage(steps, 2.0), rel=1e-3)


@pytest.mark.parametrize(("strategy", "first"), [("drf", "ann"), ("fair-share", "ben")])
async def test_who_used_less_goes_first(database: Database, strategy: str, first: str) -> None:
    await execute(database, "UPDATE resource_group SET session_strategy = :strategy", strategy=strategy)
    async with one_node(database) as (node, scheduler):
        await submit(database, "ann")
        await scheduler.run_once()
        await execute(database, "UPDATE claim SET claim_time = now() - interval '1 hour'")
        await finish(node)
        # Ann came first again, and neither holds anything now.
        sessions = {owner: await submit(database, owner) for owner in ("ann", "ben")}
        await scheduler.run_once()
        states = {owner: await state_of(database, session_id) for owner, session_id in sessions.items()}
    other = "ben" if first == "ann" else "ann"
    assert states == {first: "SCHEDULED", other: "PENDING"}


async def test_weights_make_usage_count_less(database: Database) -> None:
    await execute(
        database,
        "UPDATE resource_group SET session_strategy = 'fair-share', owner_weights = CAST(:weights AS jsonb)",
        weights='{"ann": 10}',
    )
    for owner, amount in (("ann", 5), ("ben", 1)):
        await execute(
            database,
            "INSERT INTO usage VALUES ('default', :owner, 'cpu', (now() AT TIME ZONE 'UTC')::date, :amount)",
            owner=owner,
            amount=amount * CPU * 3600,
        )
    async with one_node(database) as (_, scheduler):
        sessions = {owner: await submit(database, owner) for owner in ("ben", "ann")}
        await scheduler.run_once()
        assert await state_of(database, sessions["ann"]) == "SCHEDULED"


async def test_usage_is_read_again_when_it_is_old_or_says_too_little(database: Database) -> None:
    reader = UsageReader(database, "default")
    settings = validate_policy(Policy("fair-share", "concentrated"))
    slower = validate_policy(Policy("fair-share", "concentrated", {"half-life-days": "100"}))

    async def use(owner: str) -> None:
        await execute(
            database,
            """
            INSERT INTO usage VALUES ('default', :owner, 'cpu', (now() AT TIME ZONE 'UTC')::date, 1)
            ON CONFLICT (resource_group, owner, slot, day) DO UPDATE SET amount_seconds = usage.amount_seconds + 1
            """,
            owner=owner,
        )

    async def read(owners: set[str], policy: Settings, now: float) -> dict[str, float]:
        found = await reader.read(owners, policy, now)
        return {owner: slots["cpu"] for owner, slots in found.usage.items()}

    await use("ann")
    assert await read({"ann", "ben"}, settings, 100.0) == {"ann": 1}
    await use("ann")
    assert await read({"ann", "ben"}, settings, 100.0 + USAGE_SECONDS - 0.1) == {"ann": 1}
    assert await read({"ben"}, settings, 100.0 + USAGE_SECONDS - 0.1) == {"ann": 1}
    assert await read({"ann", "ben"}, settings, 100.0 + USAGE_SECONDS) == {"ann": 2}
    # Its age counts from then on; other settings and other owners do not wait.
    await use("ben")
    assert await read({"ann"}, settings, 119.9) == {"ann": 2}
    assert await read({"ann"}, slower, 119.9) == {"ann": 2}
    assert await read({"ann", "ben"}, slower, 119.9) == {"ann": 2, "ben": 1}
    await use("ben")
    assert await read({"ben"}, slower, 119.9) == {"ann": 2, "ben": 1}
