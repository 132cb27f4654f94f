"""What a node of a cluster offers beside pods of others, and sessions that it refuses."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from retinue.manager.v1 import fleet_service_pb2
from tests.integration.agent.docker.engine import IMAGE
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.aio import Client
    from tests.integration.sessions.kubernetes.pod_cluster import PodCluster

pytestmark = pytest.mark.asyncio(loop_scope="session")


@contextlib.asynccontextmanager
async def foreign_pod(cluster: PodCluster, cpu: str) -> AsyncIterator[None]:
    pod = cluster.kube.foreign_pod(cpu)
    await asyncio.to_thread(pod.__enter__)
    try:
        yield
    finally:
        await asyncio.to_thread(pod.__exit__, None, None, None)


async def cpu_of(client: Client, agent_id: str) -> float:
    return float((await client.agents.get(agent_id)).capacity["cpu"])


async def test_capacity_follows_pods_of_others(client: Client, cluster: PodCluster) -> None:
    async def cpu() -> float:
        return await cpu_of(client, cluster.pods.id)

    whole = await cpu()
    async with foreign_pod(cluster, "0.7"):
        await eventually(cpu, lambda left: left == pytest.approx(whole - 0.7))
        # Pods of kernels are counted by the manager.
        session = await client.sessions.create(
            type="interactive",
            image=IMAGE,
            agents=[cluster.pods.id],
            agent_choice="strict",
            slots={"cpu": "0.5", "mem": "64m"},
        )
        await session.wait("RUNNING", timeout=NEVER)
        assert await cpu() == pytest.approx(whole - 0.7)
    await eventually(cpu, lambda left: left == pytest.approx(whole))


async def test_a_disk_that_kubelet_finds_full_is_a_condition(client: Client, cluster: PodCluster) -> None:
    async def conditions() -> list[tuple[int, str]]:
        agent = await client.agents.get(cluster.pods.id)
        return [(each.type, each.message) for each in agent.conditions]

    async def said() -> list[tuple[int, str]]:
        # Kubelet corrects it within seconds.
        await asyncio.to_thread(cluster.kube.say_disk_is_full)
        return await conditions()

    full = (fleet_service_pb2.AGENT_CONDITION_TYPE_DISK_FULL, "kubelet has disk pressure")
    await eventually(said, lambda found: full in found)
    await eventually(conditions, lambda found: full not in found)


async def test_a_session_that_a_node_refuses_goes_elsewhere(client: Client, cluster: PodCluster) -> None:
    """Its agent offers by hand what the node does not have any more, as one that has not seen the last pod would."""
    offering = await cluster.add_pods_agent({"cpu": "1.5", "mem": "1g"})
    await client.agents.drain(cluster.docker.id)
    try:
        async with foreign_pod(cluster, "1"):
            session = await client.sessions.create(
                type="interactive",
                image=IMAGE,
                slots={"cpu": "1.4", "mem": "64m"},
                agents=[cluster.docker.id, offering.id],
            )
            async with asyncio.timeout(NEVER):
                async for step in session.progress():
                    if "NODE_REFUSED" in step.view.message or "OutOfcpu" in step.view.message:
                        break
            assert session.kernels[0].reason == "NODE_REFUSED"
            await client.agents.undrain(cluster.docker.id)
            await session.wait("RUNNING", timeout=NEVER)
            assert session.kernels[0].agent == cluster.docker.id
    finally:
        await client.agents.undrain(cluster.docker.id)
        await client.agents.drain(offering.id)
