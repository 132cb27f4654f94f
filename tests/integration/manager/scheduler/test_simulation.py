"""Sessions on nodes that come, go, fail and get lost, against a real database: the invariants hold after every step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from tests.integration.manager.scheduler.world import World, check, check_claims, check_journal

if TYPE_CHECKING:
    from retinue.manager.store.postgres.database import Database


@pytest.mark.parametrize("seed", range(4))
async def test_invariants_hold_whatever_happens(database: Database, seed: int) -> None:
    async with World(database, seed).running() as world:
        for step in range(120):
            await world.act()
            await check_claims(database)
            if step % 10 == 0:
                # Each of its entries says what was before: what is wrong once stays wrong.
                await check_journal(database)
        await world.come_to_rest()
        await check(database)
        async with database.transaction() as tx:
            states = set((await tx.execute(text("SELECT state FROM session"))).scalars())
            assert states <= {"TERMINATED", "CANCELLED"}
            for table in ("network", "network_site", "drf_share"):
                assert (await tx.execute(text(f"SELECT count(*) FROM {table}"))).scalar_one() == 0, table  # noqa: S608
            assert (await tx.execute(text("SELECT count(*) FROM claim WHERE release_time IS NULL"))).scalar_one() == 0
            assert (await tx.execute(text("SELECT count(*) FROM attempt WHERE end_time IS NULL"))).scalar_one() == 0
        assert not any(node.attempts or node.networks for node in world.nodes)
