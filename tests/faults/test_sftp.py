"""SFTP while an agent, the manager, the database, the session or the client goes: what is there of a file is seen as
such, the rest follows, and nothing is left of who went.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from functools import partial
from typing import TYPE_CHECKING

import pytest

from retinue.client.errors import Unavailable
from retinue.manager.v1 import session_pb2 as pb
from tests.faults.counting import agent_of
from tests.faults.sftp_clients import children, kill, launch, paused, pid_of, pipes, printed, serving, start
from tests.integration.client.command.inside.sftp_sessions import companions, listener
from tests.support.eventually import NEVER, eventually
from tests.support.postmaster import kill_database

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from retinue.client.aio import Client
    from retinue.client.sessions import Session
    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")

MIB = 1 << 20
# Kbit/s of the client: a transfer takes two minutes and is never over before it is cut.
SLOW = "500"
# What of a file is there when it is cut.
BEGUN = MIB // 16


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
    agent = agent_of(cluster, await session.refresh())

    async def end_session() -> None:
        await session.terminate(force=True)
        await session.wait_ended(NEVER)

    async def another_session() -> None:
        nonlocal session
        session = await serving(client, shared)

    def begun(process: asyncio.subprocess.Process) -> bool:
        return process.returncode is not None or received.stat().st_size >= BEGUN

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
            async with asyncio.timeout(NEVER):
                assert await process.wait() != 0, "a client knows that it was cut"
        finally:
            await kill(process)
        part = received.stat().st_size
        assert part < len(content)
        await mend()
        async with asyncio.timeout(NEVER):
            while True:
                process = await start(environment, session, tmp_path / "reput")
                if await process.wait() == 0:
                    break
        assert received.read_bytes() == content
    await session.terminate(force=True)
    await session.wait_ended(NEVER)


async def test_a_database_that_is_killed_cuts_no_transfer(
    client: Client, cluster: Cluster, environment: dict[str, str], shared: Path, tmp_path: Path
) -> None:
    content = os.urandom(MIB // 4)
    (tmp_path / "whole").write_bytes(content)
    (tmp_path / "put").write_text(f"put {tmp_path}/whole received\n")
    received = shared / "received"
    session = await serving(client, shared)

    def begun(process: asyncio.subprocess.Process) -> bool:
        return process.returncode is not None or received.stat().st_size >= BEGUN

    async def cut_short() -> bool:
        """Kills the database in the middle of a transfer, which ends well; one that had ended before does not count."""
        received.unlink(missing_ok=True)
        process = await start(environment, session, tmp_path / "put", "-l", SLOW)
        try:
            await eventually(partial(begun, process), ignoring=FileNotFoundError)
            if process.returncode is not None:
                assert process.returncode == 0
                return False
            # It stands still until the database is dead, with all that it started.
            with paused([-process.pid]):
                if received.stat().st_size == len(content):
                    return False
                await kill_database(cluster)
                assert received.stat().st_size < len(content)
            async with asyncio.timeout(NEVER):
                _, errors = await process.communicate()
            assert process.returncode == 0, errors
        finally:
            await kill(process)
        return True

    await eventually(cut_short, ignoring=ProcessLookupError)
    assert received.read_bytes() == content
    # The manager starts it again.
    await eventually(session.refresh, lambda found: found.state == "RUNNING", ignoring=Unavailable)
    await session.terminate(force=True)
    await session.wait_ended(NEVER)


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
# Descriptors of the two pipes of a connection that an agent carries.
PIPES = 4


async def test_nothing_is_left_of_clients_that_are_ended(
    client: Client, cluster: Cluster, environment: dict[str, str], shared: Path, tmp_path: Path
) -> None:
    (tmp_path / "whole").write_bytes(bytes(MIB))
    # A server of this memory takes four connections at a time: none stays counted.
    session = await serving(client, shared, "64m")
    nodes, server = [pid_of(agent.process) for agent in cluster.agents], await listener(session.id)
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
            async with asyncio.timeout(NEVER):
                await asyncio.gather(*(process.wait() for process in clients))
            if stopped != [server]:
                # They do not wait for what has stopped.
                await eventually(lambda: not companions(session.id))
        await eventually(lambda: not companions(session.id))
        await eventually(lambda: pipes(nodes) == before)
        await eventually(lambda: not children(server))
    clients = await start_clients()
    async with asyncio.timeout(NEVER):
        assert [(await process.communicate(), process.returncode)[1] for process in clients] == [0] * len(SIGNALS)
    await session.terminate(force=True)
    await session.wait_ended(NEVER)
