"""A switch fails, and most nodes of a group with it: nothing that runs there is given up until they are back."""

from __future__ import annotations

import asyncio
import urllib.request
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from retinue.devtools.cluster import Cluster, ClusterOptions, free_ports
from retinue.manager.v1 import fleet_service_pb2 as pb
from tests.faults.cutting import cut_off
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.aio import Client
    from retinue.client.sessions import Session

pytestmark = pytest.mark.asyncio(loop_scope="session")

NODES, CUT_OFF = 4, 3
HELD = pb.AGENT_CONDITION_TYPE_LOSS_HELD


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def metrics() -> str:
    return f"127.0.0.1:{free_ports().users}"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared_cluster(metrics: str) -> AsyncIterator[Cluster]:
    # As in `loss`: one that runs says something forty times before it is lost.
    options = ClusterOptions(
        agents=NODES,
        prefix="rt-mass-",
        heartbeat=0.5,
        suspect_after=10.0,
        lost_after=20.0,
        manager_arguments=("--metrics", metrics),
    )
    async with Cluster(options=options) as cluster:
        yield cluster


async def start(client: Client, agent_id: str, **fields: object) -> Session:
    session = await client.sessions.create(
        command=["sleep", "1000"],
        agents=[agent_id],
        agent_choice="strict",
        **fields,  # type: ignore[arg-type]
    )
    return await session.wait("RUNNING", timeout=NEVER)


def held_by_metrics(address: str) -> float:
    """How many agents the metric says on which the alert is."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=NEVER) as answer:
        lines = answer.read().decode().splitlines()
    name = 'retinue_agent_conditions{condition="LOSS_HELD",resource_group="default"} '
    return float(next(line.removeprefix(name) for line in lines if line.startswith(name)))


async def held(client: Client) -> set[str]:
    return {agent.id async for agent in client.agents.list() if HELD in {found.type for found in agent.conditions}}


async def alive(client: Client) -> set[str]:
    return {agent.id async for agent in client.agents.list() if agent.state == pb.AGENT_STATE_ALIVE}


@pytest.mark.attack("mass-loss")
async def test_what_most_nodes_run_is_left_alone_until_they_are_back(
    client: Client, cluster: Cluster, metrics: str
) -> None:
    gone = cluster.agents[:CUT_OFF]
    others = cluster.agents[CUT_OFF:]
    shells = [await start(client, agent.id, type="interactive") for agent in cluster.agents]
    once = await start(client, gone[0].id, type="batch")
    # Elsewhere, too, once its node is given up.
    again = await client.sessions.create(
        type="batch", command=["sleep", "1000"], agents=[gone[0].id], agent_choice="preferred", max_attempts=2
    )
    await again.wait("RUNNING", timeout=NEVER)
    assert again.kernels[0].agent == gone[0].id
    async with AsyncExitStack() as stack:
        for agent in gone:
            await stack.enter_async_context(cut_off(agent))
        await eventually(lambda: held(client), {agent.id for agent in gone}.__eq__)
        await eventually(lambda: asyncio.to_thread(held_by_metrics, metrics), float(CUT_OFF).__eq__)
        # The next leader has it from the first one's record.
        await cluster.manager.kill()
        await cluster.start_manager()
        # It places sessions meanwhile where nodes are.
        placed = await client.sessions.create(type="batch", command=["true"])
        await placed.wait_ended(NEVER)
        assert (placed.result, placed.kernels[0].agent) == ("SUCCESS", others[0].id)
        assert await held(client) == {agent.id for agent in gone}
        for session in (*shells, once, again):
            await session.refresh()
            assert (session.state, session.kernels[0].attempt) == ("RUNNING", 1)
        for session in (*shells[:CUT_OFF], once, again):
            assert "AGENT_LOST" in {condition.type for condition in session.view.conditions}
    await eventually(lambda: alive(client), {agent.id for agent in cluster.agents}.__eq__)
    assert not await held(client)
    await eventually(lambda: asyncio.to_thread(held_by_metrics, metrics), (0.0).__eq__)
    # What its node has ended by itself, as it may run again, does so now.
    await eventually(again.refresh, lambda found: (found.state, found.kernels[0].attempt) == ("RUNNING", 2))
    for session in (*shells, once):
        await eventually(session.refresh, lambda found: not found.view.conditions)
        assert (session.state, session.kernels[0].attempt) == ("RUNNING", 1)
        await session.terminate(force=True)
    await again.terminate(force=True)
    for session in (*shells, once, again):
        await session.wait_ended(NEVER)
    assert not await cluster.wait_clean(NEVER)
