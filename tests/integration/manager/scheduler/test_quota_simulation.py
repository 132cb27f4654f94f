"""Sessions, nodes and quotas that change all the time: no pass goes beyond a quota,
and the ledger is sound after every step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from retinue.manager.store.placement import ledger, quotas
from retinue.manager.store.placement.quotas import QuotaRecord, Subject, Use
from tests.integration.manager.scheduler.world import World

if TYPE_CHECKING:
    from retinue.manager.store.postgres.database import Database

SUBJECTS: list[Subject] = [
    ("USER", "ann"),
    ("USER", "ben"),
    ("PROJECT", "default"),
    ("RESOURCE_GROUP", "default"),
]


async def limits_and_use(database: Database) -> tuple[dict[Subject, QuotaRecord], dict[Subject, Use]]:
    async with database.transaction() as tx:
        found = await quotas.read(tx, SUBJECTS)
        return {(quota.kind, quota.name): quota for quota in found}, await quotas.read_use(tx, SUBJECTS)


def check_growth(before: dict[Subject, Use], after: dict[Subject, Use], limits: dict[Subject, QuotaRecord]) -> int:
    """What has grown is within its limits; returns how many limits are reached."""
    reached = 0
    for subject, quota in limits.items():
        most = quota.max_sessions
        if most is not None:
            assert after[subject].sessions <= max(most, before[subject].sessions), subject
            reached += after[subject].sessions >= most
        for slot, limit in quota.slots.items():
            held = after[subject].slots.get(slot, 0)
            assert held <= max(limit, before[subject].slots.get(slot, 0)), (subject, slot)
            reached += held >= limit
    return reached


async def reasons_are_true(database: Database, limits: dict[Subject, QuotaRecord], use: dict[Subject, Use]) -> int:
    """Checks that each session that waits for a quota exceeds one; returns how many wait."""
    async with database.transaction() as tx:
        rows = await tx.execute(
            text("""
                SELECT s.owner, s.project, s.resource_group, c.slots FROM session s JOIN LATERAL (
                    SELECT jsonb_object_agg(slot, amount) AS slots FROM (
                        SELECT each.key AS slot, sum(each.value::bigint) AS amount
                        FROM kernel k CROSS JOIN LATERAL jsonb_each_text(k.slots) AS each WHERE k.session_id = s.id GROUP BY each.key
                    ) sums
                ) c ON TRUE WHERE s.state = 'PENDING' AND s.reason = 'QUOTA'
            """)
        )
        waiting = rows.all()
    for owner, project, group, asked in waiting:
        mine = [("USER", owner), ("PROJECT", project), ("RESOURCE_GROUP", group)]
        assert any(
            ((most := limits[subject].max_sessions) is not None and use[subject].sessions >= most)
            or any(
                use[subject].slots.get(slot, 0) + asked.get(slot, 0) > limit
                for slot, limit in limits[subject].slots.items()
            )
            for subject in mine
            if subject in limits
        )
    return len(waiting)


@pytest.mark.parametrize("seed", range(2))
async def test_quotas_hold_whatever_happens(database: Database, seed: int) -> None:
    reached = waited = 0
    async with World(database, seed).running() as world:
        for _ in range(100):
            if world.random.random() < 0.1:
                kind, name = world.random.choice(SUBJECTS)
                slots = world.random.choice([{}, {"cpu": 3000}, {"cpu": 6000, "mem": 2**30}])
                values = quotas.Limits(slots, world.random.choice([None, None, 0, 2, 5]))
                async with database.transaction() as tx:
                    await quotas.put(tx, kind, name, values)
            await world.act()
            limits, before = await limits_and_use(database)
            await world.schedule()
            _, after = await limits_and_use(database)
            reached += check_growth(before, after, limits)
            waited += await reasons_are_true(database, limits, after)
            async with database.transaction() as tx:
                await ledger.freeze(tx)
                assert (await ledger.verify(tx, "")).mismatches == []
        await world.come_to_rest()
        _, use = await limits_and_use(database)
        assert set(map(repr, use.values())) == {repr(Use())}
    assert reached > 10
    assert waited > 10
