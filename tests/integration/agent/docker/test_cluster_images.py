"""Images of sessions on two nodes with an engine each: what they may lack, where they come from,
and that a gang has one.
"""

from __future__ import annotations

import asyncio
import io
import tarfile
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from retinue.client.errors import CallError
from retinue.manager.v1 import endpoint_pb2, fleet_service_pb2, session_pb2
from retinue.types.v1 import pull_policy_pb2
from tests.integration.agent.docker.engine import BUSYBOX, IMAGE, TestEngine, install
from tests.integration.agent.docker.registry import Registry, make_image
from tests.integration.agent.output import printed
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from retinue.client.aio import Session
    from tests.integration.agent.docker.cluster import DockerCluster

OPENSSH = """
ssh -V 2>&1 | cut -c 1-7
ssh sub1 hostname
echo main1 >copied && scp -q sub1:/etc/hostname copied && cat copied
cat /opt/tool
ssh sub1 cat /opt/tool
"""
pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_image_of_one_static_program(cluster: DockerCluster) -> None:
    """Nothing else is in it: no shell, no directories, no accounts."""
    first, second = cluster.engines.values()

    def make() -> None:
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w") as archive:
            archive.add(BUSYBOX.resolve(), "busybox")
        api = first.client()
        api.import_image_from_data(content.getvalue(), repository="retinue-test/single", tag="1")
        api.close()
        second.take_image(first, "retinue-test/single:1")

    await asyncio.to_thread(make)
    async with cluster.client() as client:
        session = await client.sessions.create(
            type="batch",
            image="retinue-test/single:1",
            command=[
                "/busybox",
                "sh",
                "-c",
                "until /busybox nc sub1 7000 2>/dev/null; do /busybox sleep 0.1; done; ssh sub1 /busybox hostname; "
                "srun -l /busybox hostname | /busybox sort; scontrol show hostlist main1,sub1,sub2",
            ],
            sub_command=[
                "/busybox",
                "sh",
                "-c",
                "/busybox nc -l -p 7000 -e /busybox hostname; exec /busybox sleep 1000",
            ],
            cluster_size=2,
            cluster_mode="multi-node",
            slots={"cpu": "2.5", "mem": "64m"},
            termination_grace=0,
        )
        await session.wait_ended(NEVER)
        assert (session.result, await printed(client, session.id, "main1")) == (
            "SUCCESS",
            "sub1\nsub1\n0: main1\n1: sub1\nmain1,sub[1-2]\n",
        )


async def test_image_with_a_client_of_its_own_and_a_mount_over_opt(cluster: DockerCluster, tmp_path: Path) -> None:
    """The image's own OpenSSH finds the session's keys; a volume and a mount at /opt hide nothing of ours."""
    first, second = cluster.engines.values()
    name = "retinue-test/openssh:1"

    def make() -> None:
        install({"ssh": "openssh-client"})
        first.make_image(name, ("ssh", "scp"), ("VOLUME /opt",))
        second.take_image(first, name)
        tmp_path.chmod(0o755)
        (tmp_path / "tool").write_text("a tool\n")

    await asyncio.to_thread(make)
    async with cluster.client() as client:
        roots = [fleet_service_pb2.MountRoot(path=str(tmp_path))]
        await client.resource_groups.update("default", mount_roots=roots)
        session = await client.sessions.create(
            type="interactive",
            image=name,
            mounts=[(str(tmp_path), "/opt", False)],
            cluster_size=2,
            cluster_mode="multi-node",
            slots={"cpu": "2.5", "mem": "64m"},
            termination_grace=0,
        )
        try:
            await session.wait("RUNNING", timeout=NEVER)
            async with session.attach(["sh", "-c", OPENSSH]) as command:
                await command.end_input()
                said = b"".join([piece.data async for piece in command]).decode()
            assert said.splitlines() == ["OpenSSH", "sub1", "sub1", "a tool", "a tool"], said
        finally:
            await session.terminate(force=True)
            await session.wait_ended(NEVER)
            await client.resource_groups.update("default", mount_roots=[])


@pytest.fixture(scope="module")
def registries(cluster: DockerCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """One registry, by the same name on the loopback of each node."""
    directory = tmp_path_factory.mktemp("registry")
    nodes = [agent.node for agent in cluster.agents]
    proxies = [
        Registry(directory / node.namespace, namespace=node.namespace, port=5000, images=directory / "images")
        for node in nodes
        if node is not None
    ]
    yield proxies[0]
    for proxy in proxies:
        proxy.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def allowed(cluster: DockerCluster, registries: Registry) -> AsyncIterator[Registry]:
    """The registry, while the group lets images come from it."""
    async with cluster.client() as client:
        await client.resource_groups.update("default", image_registries=[registries.address])
        yield registries
        await client.resource_groups.update("default", image_registries=[])


async def test_images_come_from_where_the_group_allows(cluster: DockerCluster) -> None:
    async with cluster.client() as client:
        for patterns, image in (
            ([], "127.0.0.1:5000/big:1"),
            (["*"], "127.0.0.1:5000/big:1"),
            (["cr.example"], "big:1"),
        ):
            await client.resource_groups.update("default", image_registries=patterns)
            with pytest.raises(CallError) as denied:
                await client.sessions.create(type="batch", image=image, command=["true"])
            assert denied.value.reason == "IMAGE_NOT_ALLOWED"
        await client.resource_groups.update("default", image_registries=[])


async def test_images_of_a_session(cluster: DockerCluster, allowed: Registry) -> None:
    """Fetched on each node with progress in the journal; one image for all kernels, whatever becomes of its tag."""
    first, _ = cluster.engines.values()
    labels = {"ai.backend.service-ports": "jupyter:http:8081"}

    def push(number: int) -> str:
        make_image(first, "retinue-test/big:1", size=4 << 20, labels={**labels, "number": str(number)})
        return allowed.push(first, "retinue-test/big:1", "big")

    def forget(engine: TestEngine) -> None:
        api = engine.client()
        for image in api.images():
            for name in image["RepoTags"] or []:
                if "big" in name:
                    api.remove_image(name, force=True)
        api.close()

    reference = await asyncio.to_thread(push, 1)
    await asyncio.to_thread(forget, first)
    async with cluster.client() as client:

        async def start() -> Session:
            session = await client.sessions.create(
                type="interactive",
                image=reference,
                cluster_size=3,
                cluster_mode="multi-node",
                slots={"cpu": "2", "mem": "64m"},
                termination_grace=0,
            )
            return await session.wait("RUNNING", timeout=NEVER)

        session = await start()
        moves, pulls = [], []
        async with aclosing(client.sessions.watch(after_revision=0, session_id=session.id)) as watched:
            async for event in watched:
                if event.HasField("kernel_moved"):
                    moves.append(event.kernel_moved.to_state)
                elif event.HasField("image_pull"):
                    pulls.append(event.image_pull)
                elif event.session_moved.to_state == session_pb2.SESSION_STATE_RUNNING:
                    break
        assert moves.count(session_pb2.KERNEL_STATE_PULLING) == 3
        assert {pull.agent for pull in pulls} == {kernel.agent for kernel in session.kernels}
        assert {pull.image for pull in pulls} == {reference}
        assert all(pull.progress.layers for pull in pulls)
        await session.refresh()
        (digest,) = {kernel.image_digest for kernel in session.kernels}
        assert digest.startswith("sha256:")
        for kernel in session.kernels:
            assert [(port.name, list(port.ports)) for port in kernel.service_ports] == [("jupyter", [8081])]
            assert not kernel.HasField("pull")
        await session.terminate()
        await session.wait_ended(NEVER)

        # The tag moves on while one node has the old image: the session waits for one that both can have.
        await asyncio.to_thread(push, 2)
        await asyncio.to_thread(forget, first)
        session = await start()
        assert len({kernel.image_digest for kernel in session.kernels}) == 1
        found = {
            engine.image_of(f"retinue-{kernel.id}.{kernel.attempt}")
            for kernel in session.kernels
            for agent_id, engine in cluster.engines.items()
            if agent_id == kernel.agent
        }
        assert len(found) == 1
        await session.terminate()
        await session.wait_ended(NEVER)

        # What is not there is not tried again, and leaves nothing.
        missing = await client.sessions.create(
            type="batch", image=f"{allowed.address}/big:none", command=["true"], slots={"cpu": "1", "mem": "64m"}
        )
        await missing.wait_ended(NEVER)
        assert (missing.result, missing.view.reason) == ("FAILED", "IMAGE_NOT_FOUND")
        assert "big:none" in missing.view.message
        assert [kernel.attempt for kernel in missing.kernels] == [1]
        assert not await cluster.wait_clean(NEVER)


async def test_pull_policies_and_the_command_of_an_image(cluster: DockerCluster, allowed: Registry) -> None:
    """A moved tag is followed where that is asked for; without a command the image's own runs, as by `docker run`."""
    (agent, engine), (other, pusher) = cluster.engines.items()
    slots = {"cpu": "0.5", "mem": "64m"}

    def push(number: int) -> str:
        changes = ['ENTRYPOINT ["sh", "-c", "echo $0 $1 $PWD"]', f'CMD ["tag", "{number}"]', "WORKDIR /bin"]
        pusher.make_image("retinue-test/moving:1", changes=changes)
        return allowed.push(pusher, "retinue-test/moving:1", "moving")

    def run_by_docker(reference: str) -> str:
        api = engine.client()
        try:
            container = api.create_container(reference)
            api.start(container)
            api.wait(container)
            said = api.logs(container).decode()
            api.remove_container(container)
        finally:
            api.close()
        return str(said)

    reference = await asyncio.to_thread(push, 1)
    async with cluster.client() as client:

        async def ran(policy: Any, on: str = agent) -> Session:
            session = await client.sessions.create(
                type="batch", image=reference, pull_policy=policy, slots=slots, agents=[on], agent_choice="strict"
            )
            await session.wait_ended(NEVER)
            return session

        async def said(session: Session) -> str:
            assert session.result == "SUCCESS", session.view
            return await printed(client, session.id, "main1")

        first = await ran("")
        assert await said(first) == "tag 1 /bin\n" == await asyncio.to_thread(run_by_docker, reference)
        await asyncio.to_thread(push, 2)
        assert await said(await ran("missing")) == "tag 1 /bin\n"
        assert await said(await ran("never")) == "tag 1 /bin\n"
        moved = await ran("always")
        assert await said(moved) == "tag 2 /bin\n" == await asyncio.to_thread(run_by_docker, reference)
        assert moved.kernels[0].image_digest != first.kernels[0].image_digest
        absent = await ran("never", other)
        assert (absent.result, absent.view.reason) == ("FAILED", "IMAGE_NOT_PRESENT"), absent.view
        # The default of a group is that of what asks for none, from then on.
        await client.resource_groups.update("default", default_pull_policy="always")
        try:
            asked, unasked = await ran("missing"), await ran("")
            policies = [session.view.spec.kernel.pull_policy for session in (asked, unasked)]
            assert policies == [pull_policy_pb2.PULL_POLICY_MISSING, pull_policy_pb2.PULL_POLICY_ALWAYS]
        finally:
            await client.resource_groups.update("default", default_pull_policy="")
        with pytest.raises(CallError, match="needs an image"):
            await client.sessions.create(type="batch", command=["true"], pull_policy="always")
        # The test's own image has no command.
        bare = await asyncio.to_thread(allowed.push, pusher, IMAGE, "bare")
        idle = await client.sessions.create(type="batch", image=bare, slots=slots)
        await idle.wait_ended(NEVER)
        assert (idle.result, idle.view.reason) == ("FAILED", "IMAGE_INVALID")
        assert "has no command of its own" in idle.view.message


async def test_replicas_of_a_revision_have_one_image_though_its_tag_moves(
    cluster: DockerCluster, allowed: Registry
) -> None:
    first, second = cluster.engines.values()

    def push(number: int) -> str:
        """Moves the tag, and lets both nodes forget what it was."""
        make_image(first, "retinue-test/model:1", size=1 << 16, labels={"number": str(number)})
        reference = allowed.push(first, "retinue-test/model:1", "model")
        for engine in (first, second):
            api = engine.client()
            try:
                for image in api.images():
                    for name in [name for name in image["RepoTags"] or [] if "/model:" in name]:
                        api.remove_image(name, force=True)
            finally:
                api.close()
        return reference

    reference = await asyncio.to_thread(push, 1)
    kernel = session_pb2.KernelSpec(
        image=reference,
        command=["sh", "-c", "while :; do nc -l -p 8000 </dev/null; done"],
        slots={"cpu": "0.5", "mem": "64m"},
    )
    session = session_pb2.SessionSpec(kernel=kernel)
    session.termination_grace.SetInParent()
    revision = endpoint_pb2.RevisionSpec(port=8000, session=session)
    async with cluster.client() as client:
        await client.endpoints.create(endpoint_pb2.EndpointSpec(name="pinned", revision=revision))

        async def ready() -> list[tuple[str, str]]:
            """The node and the image of each replica that is ready."""
            found = (await client.endpoints.get("pinned")).replicas
            sessions = [
                await client.sessions.get(item.session_id)
                for item in found
                if item.state == endpoint_pb2.REPLICA_STATE_READY
            ]
            return [(item.kernels[0].agent, item.kernels[0].image_digest) for item in sessions]

        async def pinned() -> dict[str, str]:
            return dict((await client.endpoints.revision("pinned")).image_digests)

        try:
            ((_, digest),) = await eventually(ready, lambda found: len(found) == 1)
            assert await eventually(pinned) == {reference: digest}

            await asyncio.to_thread(push, 2)
            bounds = endpoint_pb2.EndpointSpec(scaling=endpoint_pb2.ScalingPolicy(min=2, max=2))
            await client.endpoints.update("pinned", bounds)
            found = await eventually(ready, lambda found: len(found) == 2)
            assert len({agent for agent, _ in found}) == 2
            assert {image for _, image in found} == {digest}

            # Another revision finds out again what the tag is.
            await client.endpoints.deploy("pinned", revision)
            after = await eventually(
                ready, lambda found: len(found) == 2 and digest not in {image for _, image in found}
            )
            ((_, other),) = (await pinned()).items()
            assert {image for _, image in after} == {other}
        finally:
            made = await client.endpoints.delete("pinned")
            await eventually(
                lambda: client.endpoints.get(made.id),
                lambda found: found.endpoint.state == endpoint_pb2.ENDPOINT_STATE_DELETED,
            )
