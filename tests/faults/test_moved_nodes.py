"""A node gets another address: its agent ends and comes back with that, and gangs go over it, older ones too."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from retinue.client.errors import CallError
from retinue.devtools.cluster import Cluster, ClusterOptions
from retinue.devtools.threads import in_thread
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.aio import Client
    from retinue.client.sessions import Session
    from retinue.devtools.cluster import LocalAgent

pytestmark = pytest.mark.asyncio(loop_scope="module")

# As an agent is started that is given no address.
FOUND_OUT = ("--listen", "0.0.0.0:7450", "--advertise", "", "--underlay-address", "")


@pytest_asyncio.fixture(loop_scope="module")
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(options=ClusterOptions(agents=1, prefix="rt-moved-", heartbeat=0.5)) as cluster:
        await cluster.add_agent({"cpu": "4", "mem": "2g"}, arguments=FOUND_OUT)
        yield cluster


async def gang(client: Client) -> Session:
    session = await client.sessions.create(
        type="interactive",
        cluster_size=2,
        cluster_mode="multi-node",
        # No node has room for both.
        slots={"cpu": "3", "mem": "256m"},
        termination_grace=0,
    )
    return await session.wait("RUNNING", timeout=NEVER)


async def said(session: Session, *command: str) -> str:
    async with session.attach(command) as attachment:
        await attachment.end_input()
        return b"".join([piece.data async for piece in attachment]).decode()


def move(agent: LocalAgent, address: str, gateway: str) -> None:
    assert agent.node is not None
    commands = (
        ("addr", "flush", "dev", "eth0"),
        ("addr", "add", f"{address}/24", "dev", "eth0"),
        ("route", "add", "default", "via", gateway),
    )
    for command in commands:
        subprocess.run(["ip", "-n", agent.node.namespace, *command], check=True)  # noqa: S607


async def test_a_node_gets_another_address(cluster: Cluster) -> None:
    moved = cluster.agents[1]
    assert moved.node is not None
    network, _, last = moved.node.address.rpartition(".")
    there = f"{network}.{int(last) + 100}"
    async with cluster.client() as client:
        before = await gang(client)
        assert {kernel.agent for kernel in before.kernels} == {agent.id for agent in cluster.agents}
        assert await said(before, "ssh", "sub1", "hostname") == "sub1\n"
        await in_thread(move, moved, there, f"{network}.1")
        # What supervises it starts it again.
        await eventually(lambda: moved.process.pid is None)
        assert f"this node's address is {there} and no longer {moved.node.address}" in "\n".join(
            moved.process.last_lines()
        )
        await cluster.start_agent(1)

        async def address() -> str:
            return (await client.agents.get(moved.id)).address

        await eventually(address, f"{there}:7450".__eq__)
        # The network of a gang that ran meanwhile follows.
        asking = lambda: said(before, "ssh", "-o", "ConnectTimeout=5", "sub1", "hostname")  # noqa: E731
        await eventually(asking, "sub1\n".__eq__, ignoring=CallError)
        await before.terminate(force=True)
        await before.wait_ended(NEVER)
        after = await gang(client)
        assert {kernel.agent for kernel in after.kernels} == {agent.id for agent in cluster.agents}
        assert await said(after, "ssh", "sub1", "hostname") == "sub1\n"
        await after.terminate(force=True)
        await after.wait_ended(NEVER)
