"""Sessions of containers on two nodes, each with an engine of its own, from request to end."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING

import pytest_asyncio

from retinue.client.local.cluster import Cluster, ClusterOptions
from retinue.client.local.leftovers import network_namespaces
from retinue.client.local.nodes import links_of_kind
from retinue.manager.v1 import session_pb2
from tests.integration.docker.engine import IMAGE, TestEngine, install

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client import Client
    from retinue.client.local.nodes import Node

NAMES = ("main1", "sub1", "sub2")
TALK = """
while :; do hostname | nc -l -p 7000; done &
for host in main1 sub1 sub2; do
    [ $host = $(hostname) ] && continue
    until answer=$(nc $host 7000 </dev/null 2>/dev/null) && [ -n "$answer" ]; do sleep 0.05; done
    echo $host is $answer
done
cat /sys/class/net/*/mtu | sort -n | head -n 1
env | grep BACKENDAI_CLUSTER_ | sort
echo done
sleep 1000
"""


class DockerCluster(Cluster):
    """A cluster whose agents each have an engine in their node's network namespace."""

    def __init__(self) -> None:
        options = ClusterOptions(agents=2, prefix="rt-test-", heartbeat=0.5, engine=self._start_engine)
        super().__init__(options=options)
        self.engines: dict[str, TestEngine] = {}

    def _start_engine(self, agent_id: str, node: Node | None) -> str:
        assert node is not None
        engine = self.engines[agent_id] = TestEngine(node.namespace)
        engine.start()
        engine.make_image()
        return engine.host

    def containers(self) -> list[str]:
        """Names of all containers of all engines."""
        names = []
        for engine in self.engines.values():
            client = engine.client()
            names += [name for container in client.containers(all=True) for name in container["Names"]]
            client.close()
        return names


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[DockerCluster]:
    install()
    cluster = DockerCluster()
    try:
        async with cluster:
            yield cluster
    finally:
        for engine in cluster.engines.values():
            engine.stop()


async def printed(client: Client, session: str, hostname: str) -> str:
    return b"".join([chunk.data async for chunk in client.sessions.logs(session, hostname)]).decode()


async def test_session_of_containers_on_two_nodes(cluster: DockerCluster) -> None:
    async with cluster.client() as client:
        agents = [agent async for agent in client.agents.list()]
        assert [sorted(agent.backends) for agent in agents] == [["docker", "process"]] * 2
        session = await client.sessions.create(
            type="batch",
            image=IMAGE,
            command=["sh", "-c", TALK],
            sub_command=["sh", "-c", TALK],
            cluster_size=3,
            cluster_mode="multi-node",
            slots={"cpu": "2", "mem": "64m"},
        )
        await session.wait("RUNNING", timeout=60)
        assert len({kernel.agent for kernel in session.kernels}) == 2
        assert session.view.network == session_pb2.NETWORK_KIND_VXLAN
        outputs = dict.fromkeys(NAMES, "")
        deadline = time.monotonic() + 30
        while not all(text.endswith("done\n") for text in outputs.values()):
            assert time.monotonic() < deadline, outputs
            await asyncio.sleep(0.1)
            outputs = {name: await printed(client, session.id, name) for name in NAMES}
        for one, other in itertools.permutations(NAMES, 2):
            assert f"{other} is {other}\n" in outputs[one]
        for name in NAMES:
            lines = outputs[name].splitlines()
            assert "1450" in lines
            assert f"BACKENDAI_CLUSTER_HOST={name}" in lines
            assert "BACKENDAI_CLUSTER_HOSTS=main1,sub1,sub2" in lines
        assert sorted(cluster.containers()) == sorted(f"/retinue-{kernel.id}.1" for kernel in session.kernels)
        networks = [name for agent in cluster.agents for name in network_namespaces(agent.id)]
        assert len(networks) == 2
        for name in networks:
            assert await asyncio.to_thread(links_of_kind, name, "vxlan")

        # An agent's death leaves the containers, and the next one ends them.
        await cluster.kill_agent(0)
        assert len(cluster.containers()) == 3
        await cluster.start_agent(0)
        await session.terminate()
        await session.wait_ended(60)
        left = await cluster.wait_clean(20)
        assert all(found.is_clean for found in left.values()), left
        assert not cluster.containers()


async def test_result_and_failure_of_containers(cluster: DockerCluster) -> None:
    async with cluster.client() as client:
        good = await client.sessions.create(
            type="batch", image=IMAGE, command=["sh", "-c", "echo out; exit 3"], slots={"cpu": "1", "mem": "64m"}
        )
        bad = await client.sessions.create(
            type="batch", image="127.0.0.1:1/no/such:image", command=["true"], slots={"cpu": "1", "mem": "64m"}
        )
        await good.wait_ended(60)
        assert (good.result, good.exit_code) == ("FAILURE", 3)
        assert await printed(client, good.id, "main1") == "out\n"
        await bad.refresh()
        async with asyncio.timeout(30):
            while "IMAGE_PULL_FAILED" not in str(bad.view):
                await asyncio.sleep(0.1)
                await bad.refresh()
        if not bad.is_ended:
            await bad.terminate(force=True)
            await bad.wait_ended(60)
        left = await cluster.wait_clean(20)
        assert all(found.is_clean for found in left.values()), left
