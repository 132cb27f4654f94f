"""A cluster of one node with a Docker engine and one whose containers are pods of a Kubernetes, for tests."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from retinue.devtools.cluster import Cluster, ClusterOptions, LocalAgent
from retinue.devtools.nodes import Underlay, links_of_kind
from tests.integration.agent.docker.engine import IMAGE, TestEngine
from tests.integration.agent.kubernetes.kube_cluster import NODE, KubeCluster

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retinue.devtools.nodes import Node

PREFIX = "rt-test-"
SLOTS = {"cpu": "1.5", "mem": "1g"}
KUBE_HOST = 251
"""The last number of the API's address on the underlay; nodes have those before."""
_UPLINKS = {"up0", "up1"}


class PodCluster(Cluster):
    """An agent with a Docker engine, then one with pods; both nodes are on one underlay, and have the same image."""

    def __init__(self) -> None:
        super().__init__(
            options=ClusterOptions(
                agents=1,
                slots=SLOTS,
                prefix=PREFIX,
                engine=self._start_engine,
            )
        )
        self.kube = KubeCluster()
        self._engine: TestEngine | None = None
        self._arguments: tuple[str, ...] = ()

    @property
    def docker(self) -> LocalAgent:
        """Returns the agent whose containers are an engine's."""
        return self.agents[0]

    @property
    def pods(self) -> LocalAgent:
        """Returns the agent whose containers are pods."""
        return self.agents[1]

    async def start(self) -> None:
        """Starts everything, and waits until both agents are alive."""
        try:
            await asyncio.gather(asyncio.to_thread(self.kube.start), super().start())
            config = await asyncio.to_thread(self._join)
            self._arguments = ("--containers", "kubernetes", "--kube-config", config, "--kube-node", NODE)
            self._arguments += ("--kube-runtime", str(self.kube.runtime))
            await self.add_pods_agent({})
        except BaseException:
            await self.stop()
            raise

    async def add_pods_agent(self, slots: Mapping[str, str]) -> LocalAgent:
        """Adds an agent of the node of Kubernetes; without `slots` it offers what the cluster leaves there."""
        return self.agents[await self.add_agent(slots, arguments=self._arguments)]

    def _start_engine(self, agent_id: str, node: Node | None) -> str:
        del agent_id
        assert node is not None
        if self._engine is not None:
            return ""
        self._engine = TestEngine(node.namespace)
        self._engine.start()
        self._engine.make_image()
        return self._engine.host

    def _join(self) -> str:
        assert self._engine is not None
        assert self.docker.node is not None
        engine = self._engine.client()
        try:
            self.kube.import_image(b"".join(engine.get_image(IMAGE)))
        finally:
            engine.close()
        network, _, _ = self.docker.node.address.rpartition(".")
        switch = Underlay(PREFIX, int(network.rpartition(".")[2])).switch
        return str(self.kube.join(switch, f"{network}.{KUBE_HOST}"))

    def pods_left(self) -> dict[str, object]:
        """Returns what is there of pods: in the API, as processes, and as links to their networks. Blocks."""
        found: dict[str, object] = {
            "pods": self.kube.pods(),
            "processes": self.kube.kernel_processes(),
            "links": set(links_of_kind(self.kube.namespace, "veth")) - _UPLINKS,
        }
        return {name: value for name, value in found.items() if value}

    async def stop(self) -> None:
        """Stops the cluster, then Kubernetes and the engine."""
        try:
            await super().stop()
        finally:
            await asyncio.to_thread(self.kube.stop)
            if self._engine is not None:
                await asyncio.to_thread(self._engine.stop)
                self._engine = None
