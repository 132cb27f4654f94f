"""SFTP while an agent, the manager, the database, the session or the client goes: what is there of a file is seen as
such, the rest follows, and nothing is left of who went.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from retinue.client.aio import Client
from retinue.client.errors import Unavailable
from retinue.client.session import Session
from retinue.devtools.cluster import Cluster
from retinue.devtools.process import ChildProcess
from retinue.manager.v1 import fleet_service_pb2
from retinue.manager.v1 import session_pb2 as pb
from tests.integration.client.command.sftp_sessions import companions, listener
from tests.support.eventually import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

WAIT = 60.0
MIB = 1 << 20
# Kbit/s of the client: so slow that a transfer is never over before it is cut.
SLOW = "4000"
PROGRAM = str(Path(sys.executable).with_name("retinue"))


@pytest_asyncio.fixture(loop_scope="session")
async def shared(client: Client, tmp_path: Path) -> AsyncIterator[Path]:
    directory = tmp_path / "shared"
    directory.mkdir()
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(path.stat().st_mode | 0o055)
    directory.chmod(0o777)
    roots = [fleet_service_pb2.MountRoot(path=str(tmp_path), writable=True)]
    await client.resource_groups.update("default", mount_roots=roots)
    yield directory
    await client.resource_groups.update("default", mount_roots=[])


async def serving(client: Client, shared: Path, memory: str = "256m") -> Session:
    session = await client.sessions.create(
        type="system",
        mounts=[(str(shared), "/data", True)],
        slots={"cpu": "0.5", "mem": memory},
        termination_grace=0,
    )
    return await session.wait("RUNNING", timeout=WAIT)


async def start(
    environment: dict[str, str], session: Session, batch: Path, *options: str
) -> asyncio.subprocess.Process:
    return await launch(environment, PROGRAM, "sftp", session.id, *options, "-b", str(batch))


async def launch(environment: dict[str, str], *command: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *command,
        env=environment,
        # As a shell starts it: what a terminal sends reaches it and what it started, and nothing else.
        process_group=0,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )


@pytest.fixture
def environment(cluster: Cluster, tmp_path: Path) -> dict[str, str]:
    settings = cluster.settings
    return {
        **os.environ,
        "RETINUE_ENDPOINT": settings.endpoint,
        "RETINUE_TOKEN": settings.token or "",
        "RETINUE_CA": settings.ca or "",
        "RETINUE_CONTEXTS": str(tmp_path / "contexts.yaml"),
    }


async def kill(process: asyncio.subprocess.Process) -> None:
    """Ends a program that runs."""
    if process.returncode is None:
        process.kill()
        await process.wait()


async def printed(environment: dict[str, str], *arguments: str) -> bytes:
    """Returns what the program prints."""
    process = await asyncio.create_subprocess_exec(PROGRAM, *arguments, env=environment, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(WAIT):
        out, _ = await process.communicate()
    assert process.returncode == 0
    return out


def pid_of(child: ChildProcess) -> int:
    """Returns the id of a process that runs."""
    assert child.pid is not None
    return child.pid


@contextlib.contextmanager
def paused(processes: Sequence[int]) -> Iterator[None]:
    """Has processes do nothing for as long as the block lasts."""
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            os.kill(process, signal.SIGCONT)


def pipes(processes: Sequence[int]) -> int:
    """Returns how many ends of pipes processes have open."""
    found = 0
    for process in processes:
        for entry in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                found += os.readlink(entry).startswith("pipe:")
    return found


def children(process: int) -> list[str]:
    """Returns the processes that one has started and that run."""
    return Path(f"/proc/{process}/task/{process}/children").read_text().split()


async def count_opened(client: Client, session: Session) -> int:
    """Returns how many connections by SFTP the journal has; each of its entries is whole."""
    me, end = (await client.users.caller()).name, (await session.refresh()).revision or 0
    found = 0
    async with contextlib.aclosing(client.sessions.watch(after_revision=0, session_id=session.id)) as events:
        async for event in events:
            accessed = event.kernel_accessed
            if event.WhichOneof("change") == "kernel_accessed" and accessed.method == pb.ACCESS_METHOD_SFTP:
                assert (accessed.user, bool(accessed.connection_address), accessed.port) == (me, True, 2022)
                found += 1
            if event.revision >= end:
                break
    return found


async def test_what_is_cut_continues(
    client: Client, cluster: Cluster, environment: dict[str, str], shared: Path, tmp_path: Path
) -> None:
    content = os.urandom(8 * MIB)
    (tmp_path / "whole").write_bytes(content)
    (tmp_path / "put").write_text(f"put {tmp_path}/whole received\n")
    (tmp_path / "reput").write_text(f"reput {tmp_path}/whole received\n")
    received = shared / "received"
    session = await serving(client, shared)
    agent = [agent.id for agent in cluster.agents].index((await session.refresh()).kernels[0].agent)

    async def end_session() -> None:
        await session.terminate(force=True)
        await session.wait_ended(WAIT)

    async def another_session() -> None:
        nonlocal session
        session = await serving(client, shared)

    def begun(process: asyncio.subprocess.Process) -> bool:
        return process.returncode is not None or received.stat().st_size >= MIB // 4

    cuts: tuple[tuple[Callable[[], Awaitable[object]], Callable[[], Awaitable[object]]], ...] = (
        (cluster.agents[agent].process.kill, lambda: cluster.start_agent(agent)),
        (cluster.manager.kill, cluster.start_manager),
        (end_session, another_session),
    )
    for cut, mend in cuts:
        received.unlink(missing_ok=True)
        process = await start(environment, session, tmp_path / "put", "-l", SLOW)
        try:
            await eventually(partial(begun, process), ignoring=FileNotFoundError)
            assert process.returncode is None
            await cut()
            async with asyncio.timeout(WAIT):
                assert await process.wait() != 0, "a client knows that it was cut"
        finally:
            await kill(process)
        part = received.stat().st_size
        assert part < len(content)
        await mend()
        async with asyncio.timeout(WAIT):
            while True:
                process = await start(environment, session, tmp_path / "reput")
                if await process.wait() == 0:
                    break
        assert received.read_bytes() == content
    await session.terminate(force=True)
    await session.wait_ended(WAIT)


async def test_a_database_that_is_killed_cuts_no_transfer(
    client: Client, cluster: Cluster, environment: dict[str, str], shared: Path, tmp_path: Path
) -> None:
    content = os.urandom(2 * MIB)
    (tmp_path / "whole").write_bytes(content)
    (tmp_path / "put").write_text(f"put {tmp_path}/whole received\n")
    received = shared / "received"
    session = await serving(client, shared)
    process = await start(environment, session, tmp_path / "put", "-l", SLOW)
    try:
        await eventually(lambda: received.stat().st_size >= MIB // 4, ignoring=FileNotFoundError)
        file = cluster.directory / "manager" / "postgres" / "postmaster.pid"
        server = int((await asyncio.to_thread(file.read_text)).splitlines()[0])
        os.kill(server, signal.SIGKILL)
        assert received.stat().st_size < len(content)
        async with asyncio.timeout(WAIT):
            _, errors = await process.communicate()
        assert process.returncode == 0, errors
    finally:
        await kill(process)
    assert received.read_bytes() == content
    # The manager starts it again.
    await eventually(session.refresh, lambda found: found.state == "RUNNING", ignoring=Unavailable)
    await session.terminate(force=True)
    await session.wait_ended(WAIT)


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
# Descriptors of the two pipes of a connection that an agent carries.
PIPES = 4


async def test_nothing_is_left_of_clients_that_are_ended(
    client: Client, cluster: Cluster, environment: dict[str, str], shared: Path, tmp_path: Path
) -> None:
    (tmp_path / "whole").write_bytes(bytes(MIB))
    # A server of this memory takes four connections at a time: none stays counted.
    session = await serving(client, shared, "64m")
    nodes, server = [pid_of(agent.process) for agent in cluster.agents], listener(session.id)
    config = tmp_path / "config"
    config.write_bytes(await printed(environment, "ssh-config", session.id))

    async def start_clients(*options: str) -> list[asyncio.subprocess.Process]:
        return [
            await launch(
                environment,
                *("sftp", "-F", str(config), *options, "-b", str(tmp_path / f"put-{number}")),
                f"{session.name}.retinue",
            )
            for number in range(len(SIGNALS))
        ]

    for number in range(len(SIGNALS)):
        (tmp_path / f"put-{number}").write_text(f"put {tmp_path}/whole received-{number}\n")
    before, opened = pipes(nodes), 0

    async def wait_for_manager() -> None:
        # Each consists of two processes until the client has its socket.
        await eventually(lambda: len(companions(session.id)) == 2 * len(SIGNALS))

    async def wait_for_node() -> None:
        await eventually(lambda: count_opened(client, session), (opened + len(SIGNALS)).__eq__)

    async def wait_for_server() -> None:
        await eventually(lambda: pipes(nodes) >= before + PIPES * len(SIGNALS))

    async def wait_for_transfer() -> None:
        await eventually(lambda: len(list(shared.glob("received-*"))) == len(SIGNALS))

    steps: tuple[tuple[list[int], Callable[[], Awaitable[None]]], ...] = (
        ([pid_of(cluster.manager)], wait_for_manager),
        (nodes, wait_for_node),
        ([server], wait_for_server),
        ([], wait_for_transfer),
    )
    for stopped, reached in steps:
        opened = await count_opened(client, session)
        with paused(stopped):
            clients = await start_clients("-l", SLOW)
            try:
                await reached()
            finally:
                for process, number in zip(clients, SIGNALS, strict=True):
                    os.killpg(process.pid, number)
            async with asyncio.timeout(WAIT):
                await asyncio.gather(*(process.wait() for process in clients))
            if stopped != [server]:
                # They do not wait for what has stopped.
                await eventually(lambda: not companions(session.id))
        await eventually(lambda: not companions(session.id))
        await eventually(lambda: pipes(nodes) == before)
        await eventually(lambda: not children(server))
    clients = await start_clients()
    async with asyncio.timeout(WAIT):
        assert [(await process.communicate(), process.returncode)[1] for process in clients] == [0] * len(SIGNALS)
    await session.terminate(force=True)
    await session.wait_ended(WAIT)
