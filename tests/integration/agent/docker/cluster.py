"""A cluster of nodes with an engine each, for tests."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from retinue.devtools.cluster import Cluster, ClusterOptions
from tests.integration.agent.docker.engine import IMAGE, TestEngine
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from retinue.devtools.nodes import Node

ENGINE_PORT = 2375
# Registries of tests are on the loopback.
REGISTRIES = ("--registry-allow", "127.0.0.0/8")


class DockerCluster(Cluster):
    """A cluster whose agents each have an engine in their node's network namespace,
    which answers on the node's address as well.

    With `live_restore`, containers run on when their engine ends.
    """

    def __init__(self, agents: int = 2, *, live_restore: bool = False) -> None:
        options = ClusterOptions(
            agents=agents,
            prefix="rt-test-",
            manager_seconds=NEVER,
            agent_seconds=NEVER,
            engine=self._start_engine,
            agent_arguments=REGISTRIES,
            gateway=True,
        )
        super().__init__(options=options)
        self.engines: dict[str, TestEngine] = {}
        self._live_restore = live_restore

    def _start_engine(self, agent_id: str, node: Node | None) -> str:
        assert node is not None
        engine = self.engines[agent_id] = TestEngine(
            node.namespace, live_restore=self._live_restore, listen=f"{node.address}:{ENGINE_PORT}"
        )
        engine.start()
        first = next(iter(self.engines.values()))
        if engine is first:
            engine.make_image()
        else:
            engine.take_image(first, IMAGE)
        return engine.host

    def containers(self) -> list[str]:
        """Names of all containers of all engines."""
        names = []
        for engine in self.engines.values():
            client = engine.client()
            names += [name for container in client.containers(all=True) for name in container["Names"]]
            client.close()
        return names

    async def stop(self) -> None:
        """Stops the cluster, then its engines."""
        try:
            await super().stop()
        finally:
            for engine in self.engines.values():
                await asyncio.to_thread(engine.stop)
            self.engines.clear()
