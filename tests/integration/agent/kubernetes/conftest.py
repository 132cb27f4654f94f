"""A cluster of one node, pods of an agent of their own for each test, and nothing left of them after."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from retinue.agent.attempts import AttemptSpec, Isolation
from retinue.agent.kubernetes import cluster as kernel_cluster
from retinue.agent.kubernetes import pods as kernel_pods
from retinue.agent.kubernetes.options import KubernetesOptions
from retinue.agent.kubernetes.runtime import KubernetesRuntime
from tests.integration.agent.kubernetes.kube_cluster import IMAGE, NODE, KubeCluster
from tests.integration.agent.opened import Runtimes
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.integration.agent.conftest import Place


# Not longer than for a module: a cluster that does nothing takes more of the processors in minutes than its start does.
@pytest.fixture(scope="module")
def cluster() -> Iterator[KubeCluster]:
    cluster = KubeCluster()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


class KubePods(Runtimes[KubernetesRuntime]):
    """Opens runtimes of pods at one place, one after another, as an agent does when it is restarted."""

    def __init__(self, place: Place, cluster: KubeCluster) -> None:
        super().__init__(place)
        self.cluster = cluster

    def options(self, **values: object) -> KubernetesOptions:
        settings: dict[str, object] = {
            "agent_id": self.place.agent_id,
            "state_dir": self.place.directory / "state",
            "scratch_dir": self.place.directory / "scratch",
            "boot_id": "this-boot",
            "node_name": NODE,
            "config": self.cluster.config,
            "runtime": self.cluster.runtime,
        }
        return KubernetesOptions(**(settings | values))  # type: ignore[arg-type]

    async def open(self, **values: object) -> KubernetesRuntime:
        runtime = await self.open_anyhow(**values)
        await eventually(lambda: runtime.statuses[0].available)
        return runtime

    async def open_anyhow(self, **values: object) -> KubernetesRuntime:
        """Opens the next runtime, whether or not the API answers."""
        if self.current is not None:
            await self.current.close()
        self.current = KubernetesRuntime(self.options(**values))
        await self.current.open(self._changed)
        return self.current

    def spec(self, name: str, *command: str, **values: object) -> AttemptSpec:
        settings: dict[str, object] = {
            "slots": {"cpu": 100, "mem": 64 << 20},
            "hostname": "main1",
            "command": command,
            "image": IMAGE,
            "isolation": Isolation.CONTAINER,
        }
        return AttemptSpec(f"{name}.1", "session", name, 1, **(settings | values))  # type: ignore[arg-type]

    def left(self) -> set[str]:
        """Returns the names of all that is left of attempts."""
        found = self.cluster.pods()
        for directory in ("scratch", "state/kubernetes/attempts"):
            found |= {entry.name for entry in (self.place.directory / directory).iterdir() if entry.is_dir()}
        return found


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What kubelet and the API say is awaited, however late it is: for tests that stop neither."""
    for bound in ("WITNESS_TIMEOUT", "SETTLE_TIMEOUT"):
        monkeypatch.setattr(kernel_pods, bound, NEVER)
    monkeypatch.setattr(kernel_cluster, "CALL_TIMEOUT", NEVER)


@pytest.fixture
async def pods(place: Place, cluster: KubeCluster) -> AsyncIterator[KubePods]:
    pods = KubePods(place, cluster)
    yield pods
    if pods.current is not None:
        await pods.current.close()
    await asyncio.to_thread(cluster.remove_pods)
