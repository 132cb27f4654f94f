"""`retinue dev` and the cluster behind it: up, used, gone; also after it was killed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from retinue.client.settings import Settings, read_contexts, write_context
from retinue.devtools import process, state
from retinue.devtools.cluster import DIRECTORIES, Cluster, ClusterError, ClusterOptions, free_ports
from retinue.rpc import network_namespaces
from tests.integration.client.command.conftest import Program, line_with
from tests.support.eventually import NEVER, eventually
from tests.support.planted_modules import plant

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory that the database's user can reach; what a cluster left in it goes with it."""
    DIRECTORIES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="test-", dir=DIRECTORIES) as made:
        yield Path(made)
        state.clear(Path(made))


@pytest.fixture
def program(tmp_path: Path) -> Program:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RETINUE_")}
    # No daemon takes a module from the directory that it is started in.
    return Program({**kept, "RETINUE_CONTEXTS": str(tmp_path / "contexts.yaml")}, plant(tmp_path / "planted"))


@pytest.fixture
def port() -> int:
    return free_ports()[0]


@pytest_asyncio.fixture(loop_scope="session")
async def dev(program: Program, directory: Path, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    running = await program.start("dev", "--agents", "1", "--port", str(port), "--data-dir", str(directory), "--vm")
    try:
        await line_with(running.stdout, "Ctrl-C stops it")
        yield running
    finally:
        if running.returncode is None:
            running.kill()
        await running.communicate()


def _servers(directory: Path) -> list[Path]:
    """What running database servers have in the directory."""
    return list(directory.glob("**/postmaster.pid"))


def _commands_with(text: str) -> list[str]:
    """Command lines of running processes that hold the text."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if text in command:
                found.append(command)
    return found


def _namespaces(made: state.ClusterState) -> set[tuple[str, int, int]]:
    """Namespaces by the names of a cluster: another one may get its number, and with it these names, when it is gone.
    So each goes with its inode and the time at which that was made.
    """
    assert made.underlay is not None
    found = set()
    for prefix in (f"{made.underlay.prefix}{made.underlay.number}-", f"rt-{made.agents[0]}-"):
        for name in network_namespaces.names(prefix):
            with suppress(FileNotFoundError):
                status = os.stat(network_namespaces.DIRECTORY / name)
                found.add((name, status.st_ino, status.st_ctime_ns))
    return found


def _links(made: state.ClusterState) -> set[int]:
    """Indexes of links by the name of a cluster's own: the machine gives none of them again."""
    assert made.underlay is not None
    return {index for index, name in socket.if_nameindex() if name == made.underlay.link}


def _control_groups(agent: str) -> list[Path]:
    return [path for name in (agent, f"{agent}.vm") for path in Path("/sys/fs/cgroup").glob(f"*/retinue/{name}")]


def _listens(pids: set[int], ports: range) -> set[tuple[str, int]]:
    """Addresses and ports at which processes, or whatever has one of the ports, take connections here."""
    found = set()
    for row in subprocess.check_output(["ss", "-ltnpH"], text=True).splitlines():  # noqa: S607
        host, _, number = row.split()[3].rpartition(":")
        if int(number) in ports or pids & set(map(int, re.findall(r"pid=(\d+)", row))):
            # An address of IPv4 at a socket of IPv6.
            found.add((host.removeprefix("[::ffff:").removesuffix("]"), int(number)))
    return found


def _facts(directory: Path) -> dict[str, str]:
    found = json.loads((directory / "manager" / "dev.json").read_text())
    assert isinstance(found, dict)
    return found


def _alive(processes: dict[str, tuple[int, int]]) -> list[str]:
    return [name for name, (pid, started) in processes.items() if process.start_time(pid) == started]


async def test_dev_is_used_by_its_context_and_leaves_nothing(
    dev: asyncio.subprocess.Process, program: Program, directory: Path, port: int
) -> None:
    made = state.ClusterState.read(directory)
    assert made is not None
    assert made.underlay is not None
    assert sorted(_alive(made.processes)) == sorted(["manager", "router", *made.agents])
    # The router and its Envoy.
    await eventually(lambda: _commands_with(f"{directory}/router"), lambda found: len(found) == 2)
    links = _links(made)
    assert len(links) == 1
    # Nothing is there for other machines: users come by the loopback, and nodes by their own network.
    pids = {pid for pid, _ in made.processes.values()}
    listens = await asyncio.to_thread(_listens, pids, range(port, port + 4))
    hosts = ("127.0.0.1", made.underlay.host_address)
    assert listens >= {*((host, number) for host in hosts for number in (port, port + 1)), ("127.0.0.1", port + 3)}
    assert {host for host, _ in listens} == set(hosts)
    path = Path(program.environment["RETINUE_CONTEXTS"])
    current, contexts = read_contexts(path)
    assert (current, contexts["dev"].endpoint) == ("dev", f"127.0.0.1:{port}")
    release = ("sh", "-c", "uname -r; exit 5")
    native = await program("run", "--isolation", "process", "--", *release)
    assert (native.code, native.out) == (5, f"{os.uname().release}\n")
    machine = await program("run", "--", *release)
    assert machine.code == 5
    assert machine.out not in (native.out, "")
    assert (await program("run", "--type", "interactive", "--size", "2", "--isolation", "process")).code == 0
    namespaces = _namespaces(made)
    assert namespaces

    dev.send_signal(signal.SIGINT)
    async with asyncio.timeout(NEVER):
        assert await dev.wait() == 0
    assert _alive(made.processes) == []
    assert _commands_with(f"{directory}/router") == []
    assert not namespaces & _namespaces(made)
    assert not links & _links(made)
    assert read_contexts(path) == (None, {})
    # The data stays where it was asked to.
    assert "manager" in os.listdir(directory)
    assert _servers(directory) == []
    # The default isolation was the other cluster's, and goes with it.
    again = await program.start("dev", "--agents", "1", "--port", str(port), "--data-dir", str(directory))
    try:
        await line_with(again.stdout, "Ctrl-C stops it")
        assert (await program("run", "--", *release)).out == native.out
        again.send_signal(signal.SIGINT)
        async with asyncio.timeout(NEVER):
            assert await again.wait() == 0
    finally:
        if again.returncode is None:
            again.kill()
        await again.communicate()


async def test_a_killed_dev_is_cleaned_up_by_the_next(
    dev: asyncio.subprocess.Process, program: Program, directory: Path
) -> None:
    assert (await program("run", "--type", "interactive", "--size", "2")).code == 0
    made = state.ClusterState.read(directory)
    assert made is not None
    assert made.underlay is not None
    dev.kill()
    await dev.wait()
    assert len(_alive(made.processes)) == 3
    namespaces = _namespaces(made)
    assert any(name.startswith(f"rt-{made.agents[0]}-") for name, _, _ in namespaces)
    machines = f"{made.agents[0]}/vm-mount"
    await eventually(lambda: _commands_with(machines))

    await asyncio.to_thread(state.clear, directory)
    assert _commands_with(machines) == []
    assert _alive(made.processes) == []
    assert _commands_with(f"{directory}/router") == []
    assert not namespaces & _namespaces(made)
    assert _servers(directory) == []
    assert _control_groups(made.agents[0]) == []
    assert state.ClusterState.read(directory) is None
    await asyncio.to_thread(state.clear, directory)


async def test_what_killed_clusters_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    sleeping = await asyncio.create_subprocess_exec("sleep", "600")
    started = process.start_time(sleeping.pid)
    assert started is not None
    locks: dict[str, int] = {}
    for name in ("local-killed", "local-runs", "kept"):
        (tmp_path / name).mkdir()
        descriptor = state.lock(tmp_path / name)
        assert descriptor is not None
        locks[name] = descriptor
    (tmp_path / "local-other").mkdir()
    made = state.ClusterState(processes={"manager": (sleeping.pid, started)})
    made.write(tmp_path / "local-killed")
    for name in ("local-killed", "kept"):
        os.close(locks[name])
    created, descriptor = state.create(tmp_path)
    # However soon after the kill.
    removed = await asyncio.to_thread(state.sweep, tmp_path)
    assert removed == [tmp_path / "local-killed"]
    assert await sleeping.wait() != 0
    assert sorted(os.listdir(tmp_path)) == sorted(["kept", "local-other", "local-runs", created.name])
    os.close(locks["local-runs"])
    os.close(descriptor)
    assert sorted(await asyncio.to_thread(state.sweep, tmp_path)) == sorted([created, tmp_path / "local-runs"])


async def test_one_that_cannot_start_leaves_the_one_that_runs_alone(
    program: Program, dev: asyncio.subprocess.Process, directory: Path, port: int
) -> None:
    path = Path(program.environment["RETINUE_CONTEXTS"])
    written = read_contexts(path)
    busy = await program("dev", "--agents", "1", "--port", str(port))
    assert busy.code == 1
    assert f"one of the ports {port}-{port + 3} is in use" in busy.err
    same = await program("dev", "--agents", "1", "--port", str(port), "--data-dir", str(directory))
    assert same.code == 1
    assert f"another cluster runs in {directory}" in same.err
    assert read_contexts(path) == written == ("dev", {"dev": written[1]["dev"]})
    assert (await program("run", "--isolation", "process", "--", "true")).code == 0

    # What another has written since is not taken back.
    other = Settings("127.0.0.1:1", "rtn_other", None)
    write_context(path, "dev", other)
    dev.send_signal(signal.SIGINT)
    async with asyncio.timeout(NEVER):
        assert await dev.wait() == 0
    assert read_contexts(path) == ("dev", {"dev": other})


@pytest.mark.parametrize("moment", ["starting the manager", "starting agent"])
async def test_interrupting_the_start_leaves_nothing(program: Program, directory: Path, port: int, moment: str) -> None:
    running = await program.start("dev", "--port", str(port), "--data-dir", str(directory))
    await line_with(running.stderr, moment)
    running.send_signal(signal.SIGINT)
    async with asyncio.timeout(NEVER):
        await running.communicate()
    assert running.returncode == 130
    assert state.ClusterState.read(directory) is None
    assert _servers(directory) == []
    assert _commands_with(str(directory)) == []


async def test_an_agent_that_does_not_come_up_ends_the_start_with_its_words(directory: Path) -> None:
    cluster = Cluster(directory, ClusterOptions(agents=1, slots={"cpu": "nonsense"}, prefix="rt-test-"))
    with pytest.raises(ClusterError, match="does not come up: it ended with") as caught:
        await cluster.start()
    assert "nonsense" in str(caught.value)
    assert state.ClusterState.read(directory) is None


async def test_one_agent_without_a_node(directory: Path) -> None:
    """For machines where namespaces cannot be joined; the session network of one node needs none."""
    async with Cluster(directory, ClusterOptions(agents=0, prefix="rt-test-")) as cluster:
        async with cluster.client() as client:
            command = ["sh", "-c", "getent ahostsv4 sub1 | grep -c STREAM"]
            session = await client.sessions.create(type="batch", command=command, cluster_size=2)
            await session.wait_ended(timeout=NEVER)
            output = b"".join([chunk.data async for chunk in session.logs()])
        assert (session.result, output) == ("SUCCESS", b"1\n")


async def test_a_cluster_whose_agents_are_gone_waits_for_no_sessions(directory: Path) -> None:
    said: list[str] = []
    async with Cluster(directory, ClusterOptions(agents=1, prefix="rt-test-"), say=said.append) as cluster:
        async with cluster.client() as client:
            await client.sessions.create(type="batch", command=["sleep", "infinity"])
        (agent,) = cluster.agents
        assert agent.process.pid is not None
        os.kill(agent.process.pid, signal.SIGKILL)
        await eventually(lambda: agent.process.exit_status is not None)
    assert "no agent runs any more; removing what is left of sessions by force" in said
    assert not [text for text in said if "not ended in time" in text]
    assert cluster.find_leftovers(agent).is_clean


async def test_the_manager_keeps_its_data_and_secrets_over_a_restart(directory: Path) -> None:
    options = ClusterOptions(agents=1, prefix="rt-test-")
    async with Cluster(directory, options) as first:
        token = first.settings.token
        async with first.client() as client:
            await client.projects.create("kept")
        facts = _facts(directory)
    async with Cluster(directory, options) as second:
        assert second.settings.token == token == facts["token"]
        async with second.client() as client:
            assert "kept" in [project.name async for project in client.projects.list()]


async def test_dev_says_at_once_who_died_and_of_what(dev: asyncio.subprocess.Process, directory: Path) -> None:
    made = state.ClusterState.read(directory)
    assert made is not None
    os.kill(made.processes["manager"][0], signal.SIGSEGV)
    await line_with(dev.stderr, "The manager was killed by SIGSEGV (11); the end of")
    await line_with(dev.stderr, "Fatal Python error: Segmentation fault")
    await line_with(dev.stderr, "Nothing answers until the cluster is started again.")
    agent = made.agents[0]
    os.kill(made.processes[agent][0], signal.SIGKILL)
    await line_with(dev.stderr, f"Agent {agent} was killed by SIGKILL (9); the end of")
    await line_with(dev.stderr, "nothing starts or stops there")
    # It is still there for the logs, and cleans up.
    dev.send_signal(signal.SIGINT)
    async with asyncio.timeout(NEVER):
        assert await dev.wait() == 0
    assert _alive(made.processes) == []
