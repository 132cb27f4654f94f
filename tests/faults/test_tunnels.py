"""Connections into kernels while an agent or the manager goes: they end, those that come after it work,
and local ports stay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from retinue.client.errors import CallError, Unavailable
from retinue.client.kernel.port import LocalPort, PortConnection
from tests.faults.counting import agent_of
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from retinue.client.aio import Client
    from retinue.client.sessions import Session
    from retinue.devtools.cluster import Cluster

Happening = Callable[[], Awaitable[object]]

pytestmark = pytest.mark.asyncio(loop_scope="session")

ECHO = """
import socket, threading
def echo(c):
    while data := c.recv(4096):
        c.sendall(data)
listening = socket.create_server(("127.0.0.1", 7000))
while True:
    threading.Thread(target=echo, args=(listening.accept()[0],), daemon=True).start()
"""


@pytest_asyncio.fixture(loop_scope="session")
async def session(client: Client) -> Session:
    session = await client.sessions.create(
        type="interactive",
        command=["python3", "-c", ECHO],
        ports=[("echo", "tcp", 7000)],
        slots={"cpu": "0.5", "mem": "128m"},
        termination_grace=0,
    )
    return await session.wait("RUNNING", timeout=NEVER)


async def answered(connection: PortConnection) -> bytes:
    await connection.write(b"on")
    async for data in connection:
        return data
    raise AssertionError("it has ended")


async def connected(session: Session) -> bytes:
    """What a new connection answers, once there can be one."""

    async def look() -> bytes | str:
        try:
            async with session.open_port("echo") as connection:
                return await answered(connection)
        except CallError as error:
            return error.reason

    found = await eventually(look, lambda found: found not in {"PORT_CLOSED", "AGENT_NOT_REACHED", "UNAVAILABLE", ""})
    assert isinstance(found, bytes), found
    return found


async def through(local: LocalPort) -> bytes:
    """What a new connection to a local port answers; empty when it was closed."""
    reader, writer = await asyncio.open_connection(*local.address)
    try:
        writer.write(b"on")
        return await reader.read(2)
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_tunnels_over_restarts(client: Client, cluster: Cluster, session: Session) -> None:
    assert await connected(session) == b"on"
    agent = agent_of(cluster, await session.refresh())
    ends: tuple[tuple[Happening, Happening], ...] = (
        (cluster.agents[agent].process.stop, lambda: cluster.start_agent(agent)),
        (cluster.agents[agent].process.kill, lambda: cluster.start_agent(agent)),
        (cluster.manager.stop, cluster.start_manager),
        (cluster.manager.kill, cluster.start_manager),
    )
    async with LocalPort(lambda: session.open_port("echo")) as local:
        for stop, start in ends:
            async with session.open_port("echo") as connection:
                assert await answered(connection) == b"on"
                assert await through(local) == b"on"
                await stop()
                try:
                    with pytest.raises(Unavailable):
                        async with asyncio.timeout(NEVER):
                            await answered(connection)
                finally:
                    await start()
            assert await connected(session) == b"on"
            await eventually(lambda: through(local), b"on".__eq__)
    await session.terminate(force=True)
    await session.wait_ended(NEVER)
    assert not await cluster.wait_clean(NEVER)
