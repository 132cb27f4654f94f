"""Gangs whose nodes do not reach each other, as a firewall on one of them drops what comes in: they do not start, and
running ones say so.
"""

from __future__ import annotations

import asyncio
import subprocess
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from retinue.manager.v1 import fleet_service_pb2
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.aio import Client
    from retinue.client.sessions import Session
    from retinue.devtools.cluster import Cluster, LocalAgent

pytestmark = pytest.mark.asyncio(loop_scope="session")

BLOCK = """
table inet firewall {
    chain input { type filter hook input priority filter; policy accept; udp dport 4789 drop; }
}
"""


@asynccontextmanager
async def blocked(agent: LocalAgent) -> AsyncIterator[None]:
    """Drops VXLAN that comes to an agent's node, as ufw does by default."""
    assert agent.node is not None
    command = ["ip", "netns", "exec", agent.node.namespace, "nft"]

    async def nft(rules: str) -> None:
        await asyncio.to_thread(subprocess.run, [*command, rules], check=True, timeout=NEVER)

    await nft(BLOCK)
    try:
        yield
    finally:
        await nft("delete table inet firewall")


async def gang(client: Client) -> Session:
    """Two kernels that do not fit on one node."""
    return await client.sessions.create(
        type="interactive", cluster_size=2, cluster_mode="multi-node", slots={"cpu": "3", "mem": "64m"}
    )


async def test_a_gang_starts_once_its_nodes_reach_each_other(client: Client, cluster: Cluster) -> None:
    one, two = cluster.agents
    async with blocked(one):
        session = await gang(client)
        found = await eventually(session.refresh, lambda found: found.view.conditions)
        (condition,) = found.view.conditions
        said = f"{one.id} gets nothing from {two.id}: small packets 0 of 5, packets of "
        assert condition.type == "PATH_BROKEN"
        assert condition.message.startswith(said)
        assert condition.message.endswith(f"is UDP port 4789 open on {one.id} for {two.node and two.node.address}?")
        assert found.state == "PREPARING"
        assert found.view.message == f"waits for packets between its nodes: {condition.message}"
    await session.wait("RUNNING", timeout=NEVER)
    assert not (await session.refresh()).view.conditions
    await session.terminate()
    await session.wait_ended(NEVER)


async def test_a_running_gang_says_which_of_its_nodes_gets_nothing(client: Client, cluster: Cluster) -> None:
    one, two = cluster.agents
    session = await gang(client)
    await session.wait("RUNNING", timeout=NEVER)
    async with blocked(two):
        told: list[str] = []
        async for event in client.sessions.watch(after_revision=session.revision, session_id=session.id):
            if event.HasField("reason_changed"):
                told += [condition.message for condition in event.reason_changed.conditions]
                if told:
                    break
        assert told[0].startswith(f"{two.id} gets nothing from {one.id}: small packets 0 of 5")
        found = await session.refresh()
        assert found.state == "RUNNING"
        assert [(item.type, item.message) for item in found.view.conditions] == [("PATH_BROKEN", told[0])]
        agent = await eventually(lambda: client.agents.get(two.id), lambda agent: agent.conditions)
        assert [item.type for item in agent.conditions] == [fleet_service_pb2.AGENT_CONDITION_TYPE_PATH_BROKEN]
        assert agent.conditions[0].message == told[0]
    await eventually(session.refresh, lambda found: not found.view.conditions)
    await eventually(lambda: client.agents.get(two.id), lambda agent: not agent.conditions)
    await session.terminate()
    await session.wait_ended(NEVER)
