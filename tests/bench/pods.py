"""Pods of kernels against bare pods of the same image and limits on the same node, in turns. Run as root, with the
programs that `make kubernetes` builds; each line is `name value unit peer ratio`.

Ours is from the request to the start barrier, without the cluster's network and with all that a kernel finds inside;
the peer is from its creation until a watch shows it running. A gang of four counts until the last one is there. From
the release of the command to its first output on the node, there is no peer.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from contextlib import aclosing, suppress
from pathlib import Path

from lightkube import ApiError, AsyncClient, KubeConfig
from lightkube.models.core_v1 import Container, PodSpec, ResourceRequirements
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod, ServiceAccount

from retinue.agent.attempts import AttemptSpec, Isolation, Phase
from retinue.agent.kubernetes.core.pod_spec import resources
from retinue.agent.kubernetes.options import KubernetesOptions
from retinue.agent.kubernetes.runtime import KubernetesRuntime
from tests.bench import end_politely, report
from tests.integration.agent.kubernetes.kube_cluster import IMAGE, NODE, KubeCluster
from tests.integration.agent.kubernetes.kube_programs import NoProgramsError, kube_programs
from tests.support.eventually import eventually

TIMEOUT = 300.0
GANG = 4
SLOTS = {"cpu": 100, "mem": 64 << 20}
COMMAND = ("sh", "-c", "echo here; exec sleep 1000")
NAMESPACE = "default"


class Kernels:
    """The runtime of an agent whose kernels are pods of the cluster."""

    def __init__(self, cluster: KubeCluster, directory: Path) -> None:
        self._changed = asyncio.Event()
        self.runtime = KubernetesRuntime(
            KubernetesOptions(
                f"rt-test-bench-{os.getpid()}",
                directory / "state",
                directory / "scratch",
                "boot",
                node_name=NODE,
                config=cluster.config,
                starts=GANG,
            )
        )

    async def open(self) -> None:
        await self.runtime.open(self._changed.set)
        await eventually(lambda: self.runtime.statuses[0].available)

    async def until(self, attempt_id: str, *phases: Phase) -> None:
        async with asyncio.timeout(TIMEOUT):
            while (observed := self.runtime.observe()[attempt_id]).phase not in phases:
                if observed.phase.ended:
                    raise RuntimeError(observed.message)
                self._changed.clear()
                await self._changed.wait()

    async def held(self, name: str, count: int) -> tuple[float, float]:
        """Seconds until so many are at their barriers, and from the release of the first to its output;
        nothing is left of them.
        """
        specs = [
            AttemptSpec(
                f"{name}-{number}.1",
                "bench",
                f"{name}-{number}",
                1,
                "main1",
                image=IMAGE,
                command=COMMAND,
                slots=SLOTS,
                isolation=Isolation.CONTAINER,
            )
            for number in range(count)
        ]
        try:
            began = time.perf_counter()
            await asyncio.gather(*(self.runtime.prepare(spec, "127.0.0.1\tlocalhost\n") for spec in specs))
            for spec in specs:
                await self.until(spec.id, Phase.CREATED)
            took, began = time.perf_counter() - began, time.perf_counter()
            await self.runtime.start(specs[0].id)
            async with asyncio.timeout(TIMEOUT):
                while (piece := self.runtime.output(specs[0].id).read(0)) is None or not piece.data:
                    await asyncio.sleep(0.0005)
            return took, time.perf_counter() - began
        finally:
            for spec in specs:
                await self.runtime.kill(spec.id)
                await self.until(spec.id, Phase.EXITED, Phase.FAILED)
                await self.runtime.remove(spec.id)


class Bare:
    """Pods as anyone makes them."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def running(self, name: str, count: int) -> float:
        """Seconds until so many run; nothing is left of them."""
        limits = resources(SLOTS)
        spec = PodSpec(
            containers=[
                Container(
                    name="c",
                    image=IMAGE,
                    command=list(COMMAND),
                    imagePullPolicy="IfNotPresent",
                    resources=ResourceRequirements(limits=dict(limits), requests=dict(limits)),
                )
            ],
            nodeName=NODE,
            restartPolicy="Never",
            enableServiceLinks=False,
            terminationGracePeriodSeconds=0,
        )
        names = {f"{name}-{number}" for number in range(count)}
        listing = self._client.list(Pod, namespace=NAMESPACE)
        _ = [pod async for pod in listing]
        changes = self._client.watch(Pod, namespace=NAMESPACE, resource_version=listing.resourceVersion)
        began, left = time.perf_counter(), set(names)
        async with asyncio.timeout(TIMEOUT), aclosing(changes) as events:  # type: ignore[type-var]
            await asyncio.gather(
                *(
                    self._client.create(Pod(metadata=ObjectMeta(name=each, namespace=NAMESPACE), spec=spec))
                    for each in names
                )
            )
            async for _, pod in events:
                if pod.metadata is not None and pod.status is not None and pod.status.phase == "Running":
                    left.discard(str(pod.metadata.name))
                if not left:
                    break
        took = time.perf_counter() - began
        for each in names:
            await self._client.delete(Pod, each, namespace=NAMESPACE, grace_period=1)
        await eventually(self._none, seconds=TIMEOUT)
        return took

    async def ready(self) -> bool:
        """Whether pods can be made."""
        with suppress(ApiError):
            await self._client.get(ServiceAccount, "default", namespace=NAMESPACE)
            return True
        return False

    async def _none(self) -> bool:
        return not [pod async for pod in self._client.list(Pod, namespace=NAMESPACE)]


async def compare(kernels: Kernels, bare: Bare, name: str, count: int, rounds: int) -> list[float]:
    """Prints a line; returns the seconds from each release to the first output."""
    ours, theirs, outputs = [], [], []
    # The first round, which fills caches, does not count.
    for number in range(-1, rounds):
        took, output = await kernels.held(f"{name}{number + 1}", count)
        peer = await bare.running(f"{name}{number + 1}", count)
        if number >= 0:
            ours.append(took * 1000)
            theirs.append(peer * 1000)
            outputs.append(output * 1000)
    report(name, statistics.median(ours), "ms", statistics.median(theirs), spread=ours)
    return outputs


async def main(*, quick: bool) -> None:
    """Prints all lines."""
    cluster = KubeCluster()
    started = asyncio.create_task(asyncio.to_thread(cluster.start))
    try:
        await asyncio.shield(started)
        client = AsyncClient(KubeConfig.from_file(cluster.directory / "admin.kc"), namespace=NAMESPACE)
        with tempfile.TemporaryDirectory(prefix="rb-", dir="/tmp") as name:
            directory = Path(name)
            directory.chmod(0o755)
            kernels, bare = Kernels(cluster, directory), Bare(client)
            await kernels.open()
            try:
                await eventually(bare.ready, seconds=TIMEOUT)
                outputs = await compare(kernels, bare, "pod-held", 1, 3 if quick else 15)
                report("pod-release-to-output", statistics.median(outputs), "ms", None, spread=outputs)
                await compare(kernels, bare, f"pod-gang-of-{GANG}", GANG, 2 if quick else 7)
            finally:
                await kernels.runtime.close()
                await client.close()
    finally:
        # A thread that starts it cannot be interrupted.
        await asyncio.wait([started])
        await asyncio.to_thread(cluster.stop)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds")
    given = parser.parse_args()
    try:
        kube_programs()
    except NoProgramsError as error:
        # As `make test` leaves the tests of pods out.
        parser.exit(0, f"pods are left out: {error}\n")
    end_politely()
    asyncio.run(main(quick=given.quick))
