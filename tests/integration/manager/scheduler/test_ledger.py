"""The ledger verified: nothing is found while sessions come and go, and every kind of damage is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from retinue.manager.store.placement import ledger
from retinue.manager.store.placement.ledger import CAPACITY, CLAIM, SHARE, Ledger, Mismatch
from tests.integration.manager.rows import execute, submit
from tests.integration.manager.scheduled_nodes import CPU, DISK, MEM, finish, one_node

if TYPE_CHECKING:
    from retinue.manager.store.postgres.database import Database


async def verify(database: Database, group: str = "") -> Ledger:
    async with database.transaction() as tx:
        await ledger.freeze(tx)
        return await ledger.verify(tx, group)


async def test_a_sound_ledger_at_every_step(database: Database) -> None:
    async with one_node(database) as (node, scheduler):
        assert await verify(database) == Ledger([], claims=0, shares=0, agents=1)
        await submit(database, "ann")
        await scheduler.run_once()
        assert await verify(database) == Ledger([], claims=3, shares=1, agents=1)
        assert await verify(database, "elsewhere") == Ledger([], claims=0, shares=0, agents=0)
        for _ in range(6):
            await node.step(exit_code=0)
            assert (await verify(database)).mismatches == []
        assert await verify(database) == Ledger([], claims=0, shares=0, agents=1)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        ("UPDATE claim SET amount = 999 WHERE slot = 'cpu'", [(CLAIM, "cpu", 999, CPU), (SHARE, "cpu", CPU, 999)]),
        (
            "DELETE FROM claim",
            [
                (CLAIM, "cpu", None, CPU),
                (CLAIM, "disk", None, DISK),
                (CLAIM, "mem", None, MEM),
                (SHARE, "cpu", CPU, None),
                (SHARE, "disk", DISK, None),
                (SHARE, "mem", MEM, None),
                (SHARE, "", f"{CPU}/{CPU} of cpu, weight 1", None),
            ],
        ),
        (
            "UPDATE claim SET release_time = now() WHERE slot = 'mem'",
            [(CLAIM, "mem", None, MEM), (SHARE, "mem", MEM, None)],
        ),
        (
            "UPDATE claim SET agent_id = 'n9'",
            [
                (CLAIM, "cpu", "ann on n9 in default", "ann on n0 in default"),
                (CLAIM, "disk", "ann on n9 in default", "ann on n0 in default"),
                (CLAIM, "mem", "ann on n9 in default", "ann on n0 in default"),
                (CAPACITY, "cpu", CPU, None),
                (CAPACITY, "disk", DISK, None),
                (CAPACITY, "mem", MEM, None),
            ],
        ),
        ("UPDATE drf_share SET held = '{\"cpu\": 1000}'", [(SHARE, "disk", None, DISK), (SHARE, "mem", None, MEM)]),
        (
            "UPDATE drf_share SET numerator = 7, weight = 2",
            [(SHARE, "", f"7/{CPU} of cpu, weight 2", f"{CPU}/{CPU} of cpu, weight 1")],
        ),
        (
            "DELETE FROM drf_share",
            [
                (SHARE, "cpu", None, CPU),
                (SHARE, "disk", None, DISK),
                (SHARE, "mem", None, MEM),
                (SHARE, "", None, f"{CPU}/{CPU} of cpu, weight 1"),
            ],
        ),
        (
            'UPDATE agent SET capacity = \'{"cpu": 500, "mem": 268435456, "disk": 1073741824}\'',
            [(SHARE, "", f"{CPU}/{CPU} of cpu, weight 1", f"{CPU}/500 of cpu, weight 1"), (CAPACITY, "cpu", CPU, 500)],
        ),
        (
            "UPDATE resource_group SET capacity = capacity || '{\"cpu\": 7}' WHERE name = 'default'",
            [(CAPACITY, "cpu", 7, CPU)],
        ),
        (
            "UPDATE attempt SET end_time = now()",
            [(CLAIM, "cpu", CPU, None), (CLAIM, "disk", DISK, None), (CLAIM, "mem", MEM, None)],
        ),
    ],
)
async def test_damage_is_found(
    database: Database, damage: str, expected: list[tuple[str, str, int | str | None, int | str | None]]
) -> None:
    async with one_node(database) as (_, scheduler):
        await submit(database, "ann")
        await scheduler.run_once()
        await execute(database, damage)
        found: list[Mismatch] = list((await verify(database, "default")).mismatches)
    about = [(item.kind, item.slot, item.recorded, item.derived) for item in found]
    # What follows of a share when an amount in it is wrong.
    shown = [item for item in about if item in expected or item[:2] != (SHARE, "")]
    assert shown == expected


async def test_it_looks_at_one_state(database: Database) -> None:
    async with one_node(database) as (node, scheduler):
        await submit(database, "ann")
        await scheduler.run_once()
        async with database.transaction() as tx:
            await ledger.freeze(tx)
            await tx.execute(text("SELECT 1 FROM claim"))
            await finish(node)
            assert await ledger.verify(tx, "") == Ledger([], claims=3, shares=1, agents=1)
        assert (await verify(database)).claims == 0
