"""Work that asks for no accelerator keeps away from agents that have some, from the request to the placement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.manager.domain.session.spec import KernelSpec
from tests.integration.manager.scheduler.world import World, check, kernel, row, settle

if TYPE_CHECKING:
    from retinue.manager.store.postgres.database import Database


async def test_cpu_work_leaves_accelerators_to_those_who_ask(database: Database) -> None:
    world = World(database, 5)
    world.nodes[0].capacity["cuda.device"] = 2000
    world.nodes[0].backends = ("process", "docker")
    async with world.running():
        plain = [await world.submit(**kernel("4")) for _ in range(2)]
        await settle(world)
        assert {(await row(database, each)).agent_id for each in plain} == {"n1", "n2"}
        spec = KernelSpec(image="x", command=("x",), slots={"cpu": "1", "mem": "256m", "cuda.device": "1"})
        asking = await world.submit(**{**kernel("1"), "kernel": spec})
        last = await world.submit(**kernel("1"))
        await settle(world)
        assert (await row(database, asking)).agent_id == "n0"
        assert (await row(database, last)).agent_id == "n0", "rather there than nowhere"
        await world.come_to_rest()
        await check(database)
