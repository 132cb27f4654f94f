"""Sessions of containers on two nodes, each with an engine of its own, from request to end."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.agent.host.users import UserRange
from retinue.agent.kernel.core.ssh import HOST_KEY
from retinue.agent.kernel.paths import FILES
from retinue.agent.kernel.python_runtime import build_runtime
from retinue.agent.state import checked
from retinue.client.aio import session_spec
from retinue.client.errors import CallError, FailedPrecondition, InvalidRequest, NotFound
from retinue.devtools.leftovers import network_namespaces
from retinue.devtools.nodes import links_of_kind
from retinue.manager.v1 import session_pb2
from retinue.types.v1 import app_pb2, isolation_pb2
from tests.integration.agent.docker import accounts
from tests.integration.agent.docker.engine import IMAGE
from tests.integration.agent.docker.registry import make_image
from tests.integration.agent.inside.keys import Keys, host_keys
from tests.integration.agent.output import printed
from tests.integration.sessions.http_sessions import opened, opened_directly, status, stopped
from tests.integration.sessions.web import browser
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from retinue.client.aio import Session
    from retinue.client.kernel.port import PortConnection
    from tests.integration.agent.docker.cluster import DockerCluster

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
LOOK = "hostname; uname -r; ls -d /usr/bin/apt-get 2>/dev/null || echo; id -un; id -u; id -g; touch here"
pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_session_of_containers_on_two_nodes(cluster: DockerCluster) -> None:
    async with cluster.client() as client:
        agents = [agent async for agent in client.agents.list()]
        assert len(agents) == 2
        assert all({"docker", "process", "sftp"} <= set(agent.available_runtimes) for agent in agents)
        session = await client.sessions.create(
            type="batch",
            image=IMAGE,
            command=["sh", "-c", TALK],
            sub_command=["sh", "-c", TALK],
            cluster_size=3,
            cluster_mode="multi-node",
            slots={"cpu": "2", "mem": "64m"},
        )
        await session.wait("RUNNING", timeout=NEVER)
        assert len({kernel.agent for kernel in session.kernels}) == 2
        assert session.view.network == session_pb2.NETWORK_KIND_VXLAN

        async def printed_by_all() -> dict[str, str]:
            return {name: await printed(client, session.id, name) for name in NAMES}

        outputs = await eventually(
            printed_by_all, lambda found: all(text.endswith("done\n") for text in found.values())
        )
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
        await cluster.agents[0].process.kill()
        assert len(cluster.containers()) == 3
        await cluster.start_agent(0)
        await session.terminate()
        await session.wait_ended(NEVER)
        assert not await cluster.wait_clean(NEVER)
        assert not cluster.containers()


async def test_a_gang_mixes_a_virtual_machine_a_container_and_a_process(cluster: DockerCluster) -> None:
    """In all directions by ssh, over two nodes; each with the Linux, the root and the user that it should have: that of
    their image in the machine and in the container.
    """
    first, *others = cluster.engines.values()
    accounts.make_image(first, "users:app", "app")
    for other in others:
        other.take_image(first, "users:app")
    isolations = {"main": "VM", "sub": "CONTAINER", "helper": "PROCESS"}
    hosts = [f"{role}1" for role in isolations]
    look = f"for host in {' '.join(hosts)}; do ssh $host '{LOOK}' || exit 1; done"
    spec = session_spec(
        type="interactive", cluster_mode="multi-node", slots={"cpu": "2", "mem": "256m"}, termination_grace=0
    )
    spec.cluster_size = 0
    for role, isolation in isolations.items():
        kernel = session_pb2.KernelSpec(isolation=isolation_pb2.Isolation.Value(f"ISOLATION_{isolation}"))
        kernel.image = "" if isolation == "PROCESS" else "users:app"
        spec.roles.add(role=role, kernel=kernel)
    async with cluster.client() as client:
        session = await client.sessions.create_from(spec)
        try:
            await session.wait("RUNNING", timeout=NEVER)
            shown = [isolation_pb2.Isolation.Name(kernel.isolation) for kernel in session.kernels]
            assert shown == [f"ISOLATION_{isolation}" for isolation in isolations.values()]
            assert len({kernel.agent for kernel in session.kernels}) == 2
            assert cluster.containers() == [f"/retinue-{session.kernels[1].id}.1"]
            ours, machine = os.uname().release, None
            for hostname in hosts:
                async with session.attach(["sh", "-c", look], hostname=hostname) as command:
                    await command.end_input()
                    said = b"".join([piece.data async for piece in command]).decode().splitlines()
                machine = machine or said[1]
                assert said == [
                    *("main1", machine, "", "app", "1234", "99"),
                    *("sub1", ours, "", "app", "1234", "99"),
                    *("helper1", ours, "/usr/bin/apt-get", "work", said[-2], "60000"),
                ], hostname
                assert int(said[-2]) in UserRange()
            assert machine != ours
        finally:
            await session.terminate(force=True)
            await session.wait_ended(NEVER)


async def test_result_of_a_container(cluster: DockerCluster) -> None:
    async with cluster.client() as client:
        good = await client.sessions.create(
            type="batch", image=IMAGE, command=["sh", "-c", "echo out; exit 3"], slots={"cpu": "1", "mem": "64m"}
        )
        await good.wait_ended(NEVER)
        assert (good.result, good.exit_code) == ("FAILED", 3)
        assert await printed(client, good.id, "main1") == "out\n"


async def test_a_shell_by_ssh(cluster: DockerCluster, tmp_path: Path) -> None:
    """`retinue ssh` leads into a container of any image: the server and the keys come from outside."""
    settings = cluster.settings
    variables = {
        "RETINUE_ENDPOINT": settings.endpoint,
        "RETINUE_TOKEN": settings.token or "",
        "RETINUE_CA": settings.ca or "",
        "RETINUE_CONTEXTS": str(tmp_path / "contexts.yaml"),
        "HOME": str(tmp_path),
    }
    async with cluster.client() as client:
        session = await client.sessions.create(
            type="interactive", image=IMAGE, name="shell", environment={"SAID": "yes"}, slots={"cpu": "1", "mem": "64m"}
        )
        await session.wait("RUNNING", timeout=NEVER)
        try:
            process = await asyncio.create_subprocess_exec(
                *(
                    Path(sys.executable).with_name("retinue"),
                    "ssh",
                    "shell",
                    "echo $SAID; id -un; cat >got; cat got; exit 7",
                ),
                env={**os.environ, **variables},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            out, err = await process.communicate(b"typed")
            assert (process.returncode, out) == (7, b"yes\nwork\ntyped"), err
        finally:
            await session.terminate(force=True)
            await session.wait_ended(NEVER)


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
        await session.wait("RUNNING", timeout=NEVER)

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
        await session.wait_ended(NEVER)


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
        await session.wait_ended(NEVER)
        assert (session.result, session.exit_code) == ("FAILED", 7)
        assert [kernel.attempt for kernel in session.kernels] == [2]
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
        await session.wait("RUNNING", timeout=NEVER)
        agent = next(agent for agent in cluster.agents if agent.id == session.kernels[0].agent)
        file = agent.state_directory / "fence.json"
        agent.process.signal(signal.SIGSTOP)
        try:
            known = checked.load(await asyncio.to_thread(file.read_bytes))
            (pid, _), (attempt,) = known["processes"][f"{session.kernels[0].id}.1"], known["limits"]
            assert known["limits"][attempt] < 60
            # As it would be after that time; no other task writes it now.
            known["contact"] -= known["limits"][attempt] * 1.2
            await asyncio.to_thread(file.with_suffix(".new").write_bytes, checked.dump(known))
            await asyncio.to_thread(file.with_suffix(".new").replace, file)
            await eventually(lambda: not Path(f"/proc/{pid}/cmdline").exists())
        finally:
            agent.process.signal(signal.SIGCONT)
        # That was no failure of the command: there is another try.
        await eventually(session.refresh, lambda found: (found.kernels[0].attempt, found.state) == (2, "RUNNING"))
        assert session.view.retries == 1
        await session.terminate(force=True)
        await session.wait_ended(NEVER)
        assert not await cluster.wait_clean(NEVER)


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
            apps=[
                session_pb2.AppDefinition(
                    name="web",
                    command=["httpd", "-f", "-p", "127.0.0.1:{port}", "-h", "/home/work"],
                    allowed_arguments=["-v"],
                )
            ],
        )
        await session.wait("RUNNING", timeout=NEVER)
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
        await session.wait_ended(NEVER)
        with pytest.raises(FailedPrecondition):
            await served(session)
    assert not await cluster.wait_clean(NEVER)


async def _broken(connection: PortConnection) -> None:
    """What came may look like the end of all; that the kernel has ended is sent after it."""
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
            await session.wait("RUNNING", timeout=NEVER)
            async with session.code() as code:
                result = await code.execute("import os, ssl, sqlite3, sys; x = 42; print(os.getuid(), sys.executable)")
                uid, executable = result.stdout.split()
                assert (int(uid) in UserRange(), executable) == (True, "/run/kernel/python/bin/python3"), result
                looped = await code.execute("import time\nwhile True: time.sleep(0.01)", timeout=2)
                assert looped.status == "TIMED_OUT"
                assert (await code.execute("x")).value == "42"
                events = [event async for event in code.batch(execute="cat /proc/1/comm; exit 4")]
                assert events[-1].finished.exit_code == 4
        finally:
            await session.terminate(force=True)
            await session.wait_ended(NEVER)
    assert not await cluster.wait_clean(NEVER)


async def test_browsers_reach_a_container_past_manager_and_agent(cluster: DockerCluster) -> None:
    async with cluster.client() as client, browser() as web:
        session = await client.sessions.create(
            type="interactive",
            image=IMAGE,
            command=["sh", "-c", "echo it is >index.html; exec httpd -f -p 127.0.0.1:8080"],
            slots={"cpu": "0.2", "mem": "64m"},
            ports=[("web", "http", 8080)],
            termination_grace=0,
        )
        await session.wait("RUNNING", timeout=NEVER)
        origin = await opened(web, session)
        await eventually(lambda: status(web, origin), lambda found: found == (200, "it is\n"))
        processes = [cluster.manager, *(agent.process for agent in cluster.agents)]
        async with browser() as fresh:
            await opened_directly(fresh, session, cluster)
            async with stopped(*(process.signal for process in processes)):
                assert await status(fresh, origin) == (200, "it is\n")
        await session.terminate(force=True)
        await session.wait_ended(NEVER)
