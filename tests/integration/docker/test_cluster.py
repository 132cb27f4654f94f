"""Sessions of containers on two nodes, each with an engine of its own, from request to end."""

from __future__ import annotations

import asyncio
import io
import itertools
import signal
import tarfile
import time
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from retinue.agent.host.users import UserRange
from retinue.agent.kernel.core.ssh import HOST_KEY
from retinue.agent.kernel.paths import FILES
from retinue.agent.kernel.python_runtime import build_runtime
from retinue.agent.state import checked
from retinue.client.errors import CallError, FailedPrecondition, InvalidRequest, NotFound
from retinue.devtools.leftovers import network_namespaces
from retinue.devtools.nodes import links_of_kind
from retinue.manager.v1 import fleet_service_pb2, session_pb2
from retinue.types.v1 import app_pb2
from tests.integration.docker.engine import BUSYBOX, IMAGE, TestEngine, install
from tests.integration.docker.registry import Registry, make_image
from tests.integration.inside.keys import Keys, host_keys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from retinue.client import Client, Session
    from retinue.client.port import PortConnection
    from tests.integration.docker.cluster import DockerCluster

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
for host in main1 sub1 sub2; do
    [ $host = $(hostname) ] || ssh $host 'echo ssh to $(hostname) as $(id -un) with rank $BACKENDAI_CLUSTER_LOCAL_RANK'
done
echo done
sleep 1000
"""
OPENSSH = """
ssh -V 2>&1 | cut -c 1-7
ssh sub1 hostname
echo main1 >copied && scp -q sub1:/etc/hostname copied && cat copied
cat /opt/tool
ssh sub1 cat /opt/tool
"""
pytestmark = pytest.mark.asyncio(loop_scope="module")


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
            for rank, other in enumerate(NAMES):
                assert other == name or f"ssh to {other} as work with rank {rank}" in lines
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
        assert not await cluster.wait_clean(20)
        assert not cluster.containers()


async def test_result_of_a_container(cluster: DockerCluster) -> None:
    async with cluster.client() as client:
        good = await client.sessions.create(
            type="batch", image=IMAGE, command=["sh", "-c", "echo out; exit 3"], slots={"cpu": "1", "mem": "64m"}
        )
        await good.wait_ended(60)
        assert (good.result, good.exit_code) == ("FAILURE", 3)
        assert await printed(client, good.id, "main1") == "out\n"


async def test_keys_are_nowhere_but_in_containers(cluster: DockerCluster) -> None:
    async with cluster.client() as client:
        session = await client.sessions.create(
            type="interactive",
            image=IMAGE,
            cluster_size=2,
            cluster_mode="multi-node",
            slots={"cpu": "2.5", "mem": "64m"},
            termination_grace=0,
        )
        await session.wait("RUNNING", timeout=60)

        def look() -> tuple[list[str], list[str]]:
            keys, described, pids = Keys(cluster, session), [], []
            for engine in cluster.engines.values():
                api = engine.client()
                for container in api.containers(filters={"label": f"retinue.session={session.id}"}):
                    description = api.inspect_container(container["Id"])
                    pids.append(description["State"]["Pid"])
                    if keys.are_in(repr(description).encode() + api.logs(container["Id"])):
                        described.append(container["Id"])
                api.close()
            # The search would have found them: there they are, inside.
            assert host_keys(Path(f"/proc/{pid}/root{FILES}/{HOST_KEY}") for pid in pids) == {keys.files.host_key}
            # What the engines keep of containers, their writable layers, and all that is the agents' and the manager's.
            return described, keys.found(cluster.directory, *(engine.directory for engine in cluster.engines.values()))

        assert await asyncio.to_thread(look) == ([], [])
        await session.terminate(force=True)
        await session.wait_ended(60)


async def test_bootstrap_and_retries_of_containers(cluster: DockerCluster) -> None:
    async with cluster.client() as client:
        session = await client.sessions.create(
            type="batch",
            image=IMAGE,
            bootstrap_script="hostname >made",
            # Each try begins with a home of its own: what it made is not there the next time.
            command=["sh", "-c", "cat made; [ ! -e again ] || exit 3; touch again; exit 7"],
            max_attempts=2,
            retry_on_failure=True,
            retry_backoff=0.1,
            slots={"cpu": "1", "mem": "64m"},
        )
        await session.wait_ended(60)
        assert (session.result, session.exit_code) == ("FAILURE", 7)
        assert [kernel.epoch for kernel in session.kernels] == [2]
        assert await printed(client, session.id, "main1") == "main1\n"


async def test_a_container_of_an_agent_that_stands_still_is_ended_in_time(cluster: DockerCluster) -> None:
    async with cluster.client() as client:
        session = await client.sessions.create(
            type="batch",
            image=IMAGE,
            command=["sleep", "1000"],
            slots={"cpu": "0.5", "mem": "32m"},
            max_attempts=2,
            retry_backoff=0.0,
            termination_grace=0,
        )
        await session.wait("RUNNING", timeout=60)
        agent = next(agent for agent in cluster.agents if agent.id == session.kernels[0].agent)
        file = agent.state_directory / "fence.json"
        agent.process.signal(signal.SIGSTOP)
        try:
            known = checked.load(await asyncio.to_thread(file.read_bytes))
            (pid, _), (attempt,) = known["processes"][f"{session.kernels[0].id}.1"], known["limits"]
            assert known["limits"][attempt] < 60
            # As it would be after that time; nobody else writes it now.
            known["contact"] -= known["limits"][attempt] * 1.2
            await asyncio.to_thread(file.with_suffix(".new").write_bytes, checked.dump(known))
            await asyncio.to_thread(file.with_suffix(".new").replace, file)
            async with asyncio.timeout(20):
                while await asyncio.to_thread(Path(f"/proc/{pid}/cmdline").exists):
                    await asyncio.sleep(0.05)
        finally:
            agent.process.signal(signal.SIGCONT)
        # That was no failure of the command: there is another try.
        async with asyncio.timeout(30):
            while (await session.refresh()).kernels[0].epoch != 2 or session.state != "RUNNING":
                await asyncio.sleep(0.1)
        assert session.view.retries == 1
        await session.terminate(force=True)
        await session.wait_ended(30)
        assert not await cluster.wait_clean(20)


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
                "until /busybox nc sub1 7000 2>/dev/null; do /busybox sleep 0.1; done; ssh sub1 /busybox hostname",
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
        await session.wait_ended(60)
        assert (session.result, await printed(client, session.id, "main1")) == ("SUCCESS", "sub1\nsub1\n")


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
            await session.wait("RUNNING", timeout=60)
            async with asyncio.timeout(30), session.attach(["sh", "-c", OPENSSH]) as command:
                await command.end_input()
                said = b"".join([piece.data async for piece in command]).decode()
            assert said.splitlines() == ["OpenSSH", "sub1", "sub1", "a tool", "a tool"], said
        finally:
            await session.terminate(force=True)
            await session.wait_ended(60)
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
            return await session.wait("RUNNING", timeout=60)

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
        await session.wait_ended(60)

        # The tag moves on while one node has the old image: the session waits for one that both can have.
        await asyncio.to_thread(push, 2)
        await asyncio.to_thread(forget, first)
        session = await start()
        assert len({kernel.image_digest for kernel in session.kernels}) == 1
        found = {
            engine.image_of(f"retinue-{kernel.id}.{kernel.epoch}")
            for kernel in session.kernels
            for agent_id, engine in cluster.engines.items()
            if agent_id == kernel.agent
        }
        assert len(found) == 1
        await session.terminate()
        await session.wait_ended(60)

        # What is not there is not tried again, and leaves nothing.
        missing = await client.sessions.create(
            type="batch", image=f"{allowed.address}/big:none", command=["true"], slots={"cpu": "1", "mem": "64m"}
        )
        await missing.wait_ended(60)
        assert (missing.result, missing.view.reason) == ("FAILURE", "IMAGE_NOT_FOUND")
        assert "big:none" in missing.view.message
        assert [kernel.epoch for kernel in missing.kernels] == [1]
        assert not await cluster.wait_clean(20)


async def test_ports_programs_and_files_of_a_container(cluster: DockerCluster, tmp_path: Path) -> None:
    image = "retinue-test/web:1"
    first, *others = cluster.engines.values()
    await asyncio.to_thread(make_image, first, image, labels={"retinue.service-ports": "web:http:8081"})
    for other in others:
        await asyncio.to_thread(other.take_image, first, image)
    page, back = tmp_path / "page.html", tmp_path / "back.html"
    page.write_bytes(b"served from a container\n" * 100_000)

    async def served(session: Session, port: str = "web") -> bytes:
        async with session.open_port(port) as connection:
            await connection.write(b"GET /page.html HTTP/1.0\r\n\r\n")
            answer = b"".join([data async for data in connection])
        return answer.partition(b"\r\n\r\n")[2]

    async with cluster.client() as client:
        session = await client.sessions.create(
            type="interactive",
            image=image,
            slots={"cpu": "0.5", "mem": "64m"},
            termination_grace=0,
            services=[
                session_pb2.ServiceDefinition(
                    name="web",
                    command=["httpd", "-f", "-p", "127.0.0.1:{port}", "-h", "/home/work"],
                    allowed_arguments=["-v"],
                )
            ],
        )
        await session.wait("RUNNING", timeout=60)
        assert [(port.name, list(port.ports)) for port in session.kernels[0].service_ports] == [("web", [8081])]
        with pytest.raises(FailedPrecondition) as closed:
            await served(session)
        assert closed.value.reason == "PORT_CLOSED"
        await session.files().upload(page, "page.html")
        with pytest.raises(InvalidRequest):
            await session.start_app("web", ["-c", "/etc/httpd.conf"])
        started = await session.start_app("web", ["-v"])
        assert (started.state, started.port) == (app_pb2.APP_STATE_RUNNING, 8081)
        for port in ("web", "8081"):
            assert await served(session, port) == page.read_bytes()
        await session.files().download("page.html", back)
        assert back.read_bytes() == page.read_bytes()
        for undeclared in ("8082", "22", "2200", "docker"):
            with pytest.raises(NotFound, match="there is web"):
                await served(session, undeclared)
        user = await client.users.create("container-user", projects={"default": "admin"})
        token = await client.tokens.create(user=user.name, description="ports of containers")
        async with cluster.client(token.secret) as stranger:
            seen = await stranger.sessions.get(session.id)
            for refused in (served(seen), seen.start_app("web"), seen.files().list(), _code_of(seen)):
                with pytest.raises(NotFound, match="no such session"):
                    await refused
        await client.users.delete(user.name)
        assert (await session.stop_app("web")).state == app_pb2.APP_STATE_STOPPED
        with pytest.raises(FailedPrecondition):
            await served(session)
        await session.start_app("web")
        async with session.open_port("web") as connection:
            await session.terminate(force=True)
            with pytest.raises(CallError) as ended:
                await _broken(connection)
            assert ended.value.reason in {"STATE_FORBIDS", "CONNECTION_RESET"}
        await session.wait_ended(60)
        with pytest.raises(FailedPrecondition):
            await served(session)
    assert not await cluster.wait_clean(20)


async def _broken(connection: PortConnection) -> None:
    """What came may look like the end of all; that the kernel has ended is told after it."""
    async with asyncio.timeout(60):
        while True:
            await connection._exchange.receive()  # noqa: SLF001


async def _code_of(session: Session) -> None:
    async with session.code() as code:
        await code.execute("1")


async def test_code_in_a_container_whose_image_has_no_python(cluster: DockerCluster) -> None:
    await asyncio.to_thread(build_runtime)
    async with cluster.client() as client:
        session = await client.sessions.create(
            type="interactive", image=IMAGE, slots={"cpu": "1", "mem": "512m"}, termination_grace=0
        )
        try:
            await session.wait("RUNNING", timeout=60)
            async with asyncio.timeout(60), session.code() as code:
                result = await code.execute("import os, ssl, sqlite3, sys; x = 42; print(os.getuid(), sys.executable)")
                uid, executable = result.stdout.split()
                assert (int(uid) in UserRange(), executable) == (True, "/run/kernel/python/bin/python3"), result
                looped = await code.execute("import time\nwhile True: time.sleep(0.01)", timeout=0.2)
                assert looped.status == "TIMED_OUT"
                assert (await code.execute("x")).value == "42"
                events = [event async for event in code.batch(execute="cat /proc/1/comm; exit 4")]
                assert events[-1].finished.exit_code == 4
        finally:
            await session.terminate(force=True)
            await session.wait_ended(60)
    assert not await cluster.wait_clean(20)
