"""The scheduler's cache equals the rows after any change; and what a commit refuses costs only itself."""

from __future__ import annotations

import asyncio
import ipaddress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from sqlalchemy import text

from retinue.manager.domain.session.spec import KernelSpec
from retinue.manager.scheduler.cache_sync import CacheSync
from retinue.manager.store.fleet import agents, groups
from retinue.manager.store.placement import quotas, shares
from tests.integration.manager.reporting_node import TERM
from tests.integration.manager.rows import hold, limit, states, waits
from tests.integration.manager.rows import submit as submit_to
from tests.integration.manager.scheduled_nodes import before_the_commit, roomy_node
from tests.integration.manager.scheduler.world import GIB, World, check
from tests.support.eventually import eventually
from tests.support.sent_statements import sent_statements
from tests.support.stepped_scheduler import SteppedScheduler

if TYPE_CHECKING:
    from retinue.manager.scheduler.core.cache import Cache
    from retinue.manager.store.postgres.database import Database

SMALL = {"single_node": True, "cluster_size": 1, "kernel": KernelSpec(command=("x",), slots={"cpu": "1"})}


def facts(cache: Cache) -> dict[str, Any]:
    """All that a pass may read, without the order in which it was learned."""

    def amounts(row: Any) -> dict[str, int]:
        return {cache.slots.names[column]: int(row[column]) for column in np.flatnonzero(row).tolist()}

    table, accounts, queue = cache.agents, cache.accounts, cache.queue
    cache.widen()
    waiting = {}
    for session_id, row in queue.row_of.items():
        kernels, _ = queue.kernels_of(np.array([row]))
        note = queue.reasons[queue.written_reason[row]]
        assert note is not None
        waiting[session_id] = (
            queue.groups[queue.group[row]],
            accounts.names[queue.account[row]],
            [getattr(queue, name)[row].item() for name in ("sequence", "priority", "single_node", "clearing", "size")],
            [getattr(queue, name)[row].item() for name in ("next_try", "created", "nominated_until", "written_tries")],
            [amounts(queue.requests[kernel]) for kernel in kernels.tolist()],
            queue.needs[kernels].tolist(),
            queue.hostname_sets[queue.hostnames[row]],
            (note.code, note.message),
            replace(queue.constrained[row], tries=0, reason="", message="") if row in queue.constrained else None,
        )
    return {
        "waiting": waiting,
        "agents": {
            name: (
                table.groups[row],
                table.architectures[row],
                table.underlays[row],
                amounts(table.capacity[row]),
                amounts(table.used[row]),
                [getattr(table, column)[row].item() for column in ("kernels", "offers", "counts", "schedulable")],
            )
            for name, row in table.row_of.items()
        },
        "accounts": {
            name: (amounts(accounts.held[row]), int(accounts.sessions[row]))
            for name, row in accounts.row_of.items()
            if accounts.held[row].any() or accounts.sessions[row]
        },
        "groups": {name: replace(group, round_robin_cursor="") for name, group in cache.groups.items()},
        "quotas": cache.quotas,
        "networks": (cache.subnets, cache.vnis),
    }


async def compare(database: Database, scheduler: SteppedScheduler) -> None:
    """Takes in what is new and reads everything again, from rows that do not change meanwhile."""
    await scheduler.catch_up()
    kept = facts(scheduler._cache_sync.cache)  # noqa: SLF001  # the one thing that this is about
    again = CacheSync(database, TERM)
    await again.catch_up()
    assert kept == facts(again.cache)


async def disturb(world: World) -> None:
    """What administrators and other replicas do."""
    database, choice = world.database, world.random.random()
    agent = world.random.choice(world.nodes)
    async with database.transaction() as tx:
        if choice < 0.25:
            await agents.set_drained(tx, agent.name, drained=world.random.random() < 0.5)
        elif choice < 0.5:
            limits = quotas.Limits({"cpu": world.random.choice([1000, 6000])}, world.random.choice([None, 2]))
            name = world.random.choice(["ann", "ben"])
            await quotas.put(tx, "USER", name, limits)
        elif choice < 0.6:
            await quotas.remove(tx, "USER", "ann")
        elif choice < 0.8:
            strategy = world.random.choice(["drf", "fifo", "lifo"])
            await groups.change(tx, "default", {"session_strategy": strategy, "owner_weights": {"ann": 3}})
        else:
            capacity = {"cpu": world.random.choice([3000, 4000, 8000]), "mem": 4 * GIB}
            agent.capacity = capacity
            await tx.execute(
                text(
                    "UPDATE agent SET capacity = capacity || jsonb_build_object('cpu', :cpu, 'mem', :mem) WHERE id = :id"
                ),
                {**capacity, "id": agent.name},
            )
            await shares.refresh_group(tx, "default")


@pytest.mark.parametrize("seed", range(2))
async def test_it_equals_the_rows_after_every_step(database: Database, seed: int) -> None:
    async with World(database, seed + 100).running() as world:
        for step in range(60):
            await (disturb(world) if world.random.random() < 0.2 else world.act())
            await compare(database, world.scheduler)
            if step % 23 == 22:
                # A manager that starts again.
                world.scheduler = SteppedScheduler(database, TERM, lambda _: None)
                await world.schedule()
                await compare(database, world.scheduler)


async def test_statements_of_a_pass_do_not_depend_on_its_size(database: Database) -> None:
    async with roomy_node(database) as (_, scheduler):
        numbers: list[int] = []
        # Reading everything at first costs more.
        for size in (1, 40, 1):
            for number in range(size):
                await submit_to(database, "ann", f"s{len(numbers)}-{number}", cluster_size=2)
            await database.dispose()
            with sent_statements() as sent:
                await scheduler.run_once()
            numbers.append(len(sent))
        assert 10 < numbers[1] == numbers[2] <= 16
        assert set((await states(database)).values()) == {"SCHEDULED"}


async def test_a_lost_race_costs_only_that_session(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    async with World(database, 1).running() as world:
        ids = [await world.submit(**SMALL) for _ in range(12)]
        await world.terminate()

        async def change() -> None:
            async with database.transaction() as tx:
                await tx.execute(text("UPDATE agent SET capacity = capacity || '{\"cpu\": 1000}' WHERE id = 'n0'"))
                await shares.refresh_group(tx, "default")
            await world.end(ids[-1])

        await before_the_commit(monkeypatch, world.scheduler, change)
        await check(database)
        await compare(database, world.scheduler)
        async with database.transaction() as tx:
            rows = await tx.execute(text("SELECT agent_id, count(*) FROM attempt GROUP BY agent_id ORDER BY agent_id"))
            assert dict(tuple(row) for row in rows)["n0"] == 1
        await world.schedule()
        await check(database)
        async with database.transaction() as tx:
            rows = await tx.execute(text("SELECT state, count(*) FROM session GROUP BY state"))
            found = dict(tuple(row) for row in rows)
        # Eight more cores on the other agents; two were cancelled.
        assert found == {"SCHEDULED": 9, "PENDING": 1, "CANCELLED": 2}


@pytest.mark.parametrize("change", ["drained = TRUE", "revoked = TRUE", "state = 'SUSPECT'"])
async def test_an_agent_that_takes_nothing_any_more_gets_nothing(
    database: Database, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    async def set_agent(what: str) -> None:
        async with database.transaction() as tx:
            await tx.execute(text(f"UPDATE agent SET {what}"))  # noqa: S608  # the tests' own

    async with roomy_node(database) as (_, scheduler):
        await submit_to(database, "ann", "s")
        await before_the_commit(monkeypatch, scheduler, lambda: set_agent(change))
        assert set((await states(database)).values()) == {"PENDING"}
        await compare(database, scheduler)
        await set_agent("drained = FALSE, revoked = FALSE, state = 'ALIVE'")
        await scheduler.run_once()
        assert set((await states(database)).values()) == {"SCHEDULED"}


async def test_a_session_that_is_held_meanwhile_is_not_placed(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with roomy_node(database) as (_, scheduler):
        session = await submit_to(database, "ann", "s")
        await before_the_commit(monkeypatch, scheduler, lambda: hold(database, session))
        assert await states(database) == {"s": "PENDING"}
        await scheduler.run_once()
        await compare(database, scheduler)
        assert (await waits(database, "s"))[0] == "HELD"
        await hold(database, session, held=False)
        await scheduler.run_once()
        assert await states(database) == {"s": "SCHEDULED"}


async def test_subnets_are_outside_the_networks_that_kernels_reach(database: Database) -> None:
    async def reach(networks: str) -> None:
        async with database.transaction() as tx:
            await tx.execute(text("UPDATE agent SET reachable_networks = CAST(:it AS jsonb)"), {"it": networks})

    async with roomy_node(database) as (_, scheduler):
        await reach('["10.128.0.0/10"]')
        await submit_to(database, "ann", "gang", cluster_size=2)
        await scheduler.run_once()
        async with database.transaction() as tx:
            (subnet,) = (await tx.execute(text("SELECT subnet FROM network"))).scalars()
        assert ipaddress.IPv4Network(str(subnet)).subnet_of(ipaddress.IPv4Network("10.192.0.0/10"))
        # Nothing is left for a gang; a session without a network is not held up by it.
        await reach('["10.128.0.0/10", "10.192.0.0/10"]')
        await submit_to(database, "ann", "second", cluster_size=2)
        await submit_to(database, "ann", "single")
        await scheduler.run_once()
        assert await states(database) == {"gang": "SCHEDULED", "second": "PENDING", "single": "SCHEDULED"}
        reason, message, tier, _ = await waits(database, "second")
        assert (reason, tier) == ("NO_SUBNET", "CONFIGURATION")
        assert "--session-subnets" in message
        await reach("[]")
        await scheduler.run_once()
        assert (await states(database))["second"] == "SCHEDULED"


async def test_a_quota_lowered_meanwhile_is_not_exceeded(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    async with roomy_node(database) as (_, scheduler):
        await limit(database, "USER", "ann", slots={"cpu": 5000})
        for number in range(5):
            await submit_to(database, "ann", f"s{number}")
        await before_the_commit(monkeypatch, scheduler, lambda: limit(database, "USER", "ann", slots={"cpu": 2000}))
        assert sorted((await states(database)).values()) == ["PENDING"] * 3 + ["SCHEDULED"] * 2
        await compare(database, scheduler)
        await scheduler.run_once()
        assert sorted((await states(database)).values()) == ["PENDING"] * 3 + ["SCHEDULED"] * 2


async def test_changes_wake_it_and_a_pass_is_planned_during_a_commit(database: Database) -> None:
    async with roomy_node(database) as (_, scheduler):
        await limit(database, "USER", "ann", slots={"cpu": 0})
        task = asyncio.create_task(scheduler.run())
        try:
            for number in range(20):
                await submit_to(database, "ann", f"s{number}")
                scheduler.wake()
            await limit(database, "USER", "ann", slots={"cpu": 20_000})
            # No mark says that the quota has changed.
            await eventually(lambda: states(database), lambda found: set(found.values()) == {"SCHEDULED"})
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await scheduler.run_once()
