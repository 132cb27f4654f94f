"""Connections of programs to ports through tunnels of the gateway: bytes, ends, lost rights,
and the manager where there is no tunnel.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import ssl
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from retinue.client.command.inside.tunnelled_port import TunnelledPort
from retinue.client.errors import CallError, FailedPrecondition
from retinue.client.kernel.direct_connection import DirectConnection
from retinue.client.kernel.port import LocalPort, PortConnection
from retinue.client.kernel.tunnel import TunnelConnection
from tests.integration.sessions import port_server
from tests.integration.sessions.http_sessions import Lose, agent_of, delete, revoke, stopped
from tests.integration.sessions.journal import accesses
from tests.integration.sessions.port_sessions import PROGRAM, serving
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from retinue.client.aio import Client
    from retinue.client.kernel.port import Remote
    from retinue.client.sessions import Session
    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def session(cluster: Cluster) -> AsyncIterator[Session]:
    async with cluster.client() as client:
        session = await serving(client)
        yield session
        await session.terminate(force=True)
        await session.wait_ended(NEVER)


def tunnelled(session: Session, cluster: Cluster, port: str | int) -> TunnelledPort:
    return TunnelledPort(session, str(port), cluster.settings.endpoint)


async def direct(session: Session, cluster: Cluster, port: str | int) -> TunnelledPort:
    """Returns a port whose tunnel is open, which on a busy machine may take longer than clients wait for it."""
    found = tunnelled(session, cluster, port)
    await eventually(lambda: is_direct(found))
    return found


async def rest(connection: Remote) -> bytes:
    async with asyncio.timeout(NEVER):
        return b"".join([bytes(data) async for data in connection.views()])


async def test_bytes_pass_no_python_and_each_direction_ends_by_itself(session: Session, cluster: Cluster) -> None:
    port = await direct(session, cluster, "digest")
    data, agent = os.urandom(8 << 20), cluster.agents[await agent_of(cluster, session)]
    async with port.connect() as first, stopped(cluster.manager.signal, agent.process.signal):
        assert isinstance(first, TunnelConnection)
        # Another one while it is open: the tunnel stays.
        async with asyncio.timeout(NEVER), port.connect() as second:
            for connection in (first, second):
                await connection.write(data)
                await connection.end_data()
                assert await rest(connection) == hashlib.sha256(data).hexdigest().encode()


async def test_both_directions_at_once(session: Session, cluster: Cluster) -> None:
    data = os.urandom(24 << 20)
    async with LocalPort((await direct(session, cluster, "echo")).connect) as local:
        reader, writer = await asyncio.open_connection(*local.address)

        async def send() -> None:
            writer.write(data)
            await writer.drain()
            writer.write_eof()

        async with asyncio.timeout(NEVER), asyncio.TaskGroup() as group:
            group.create_task(send())
            came = await reader.read()
        assert came == data + b"%020d" % len(data)
        writer.close()


@pytest.mark.parametrize("lose", [revoke, delete])
async def test_connections_end_with_the_right(session: Session, client: Client, cluster: Cluster, lose: Lose) -> None:
    user = await client.users.create(f"tunnel-{lose.__name__}", role="admin")
    token = await client.tokens.create(user=user.name, description="tunnel")
    try:
        async with cluster.client(token.secret) as other:
            theirs = await direct(await other.sessions.get(session.id), cluster, "echo")
            ours = await direct(session, cluster, "echo")
            async with theirs.connect() as lost, ours.connect() as kept:
                assert isinstance(lost, TunnelConnection)
                await lose(client, user.name)
                with pytest.raises(CallError):
                    await rest(lost)
                # Another tunnel to the same port has its own connections.
                await kept.write(b"on")
                assert await anext(aiter(kept.views())) == b"on"
            with pytest.raises(CallError):
                async with theirs.connect() as after:
                    await drained(after)
    finally:
        with contextlib.suppress(Exception):
            await client.users.delete(user.name)


async def test_connections_end_with_the_session(client: Client, cluster: Cluster) -> None:
    # Its kernel has minutes to end, and does not.
    stays = PROGRAM.replace(
        "import socket\n", "import signal, socket\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n", 1
    )
    session = await serving(client, command=["python3", "-c", stays], termination_grace=300)
    async with (await direct(session, cluster, "endless")).connect() as connection:
        assert isinstance(connection, TunnelConnection)
        await anext(aiter(connection.views()))
        await session.terminate()
        with pytest.raises(CallError):
            await drained(connection)
    await session.terminate(force=True)
    await session.wait_ended(NEVER)


async def drained(connection: Remote) -> None:
    async with asyncio.timeout(NEVER):
        async for _ in connection.views():
            pass


@pytest.mark.parametrize(
    "attempt", [lambda port: port.connect(), lambda port: LocalPort(port.connect)], ids=["connection", "local"]
)
async def test_where_nothing_listens_is_said_as_before(
    session: Session, cluster: Cluster, attempt: Callable[[TunnelledPort], object]
) -> None:
    failures: list[CallError] = []
    port = tunnelled(session, cluster, "closed")
    if isinstance(made := attempt(port), LocalPort):
        async with LocalPort(port.connect, failed=failures.append) as local:
            reader, writer = await asyncio.open_connection(*local.address)
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()
    else:
        with pytest.raises(FailedPrecondition) as refused:
            async with made:  # type: ignore[attr-defined]
                pass
        failures.append(refused.value)
    assert [error.reason for error in failures] == ["PORT_CLOSED"]


async def test_what_no_tunnel_reaches_is_reached_past_the_gateway(session: Session, cluster: Cluster) -> None:
    async with tunnelled(session, cluster, port_server.V6).connect() as connection:
        assert isinstance(connection, DirectConnection | PortConnection)
        await connection.write(b"hello")
        await connection.end_data()
        assert await rest(connection) == b"hello%020d" % 5


async def test_a_tunnel_that_ended_is_opened_again(session: Session, cluster: Cluster) -> None:
    port = await direct(session, cluster, "echo")
    await cluster.manager.kill()
    await cluster.start_manager()
    await eventually(lambda: is_direct(port), ignoring=CallError)


async def is_direct(port: TunnelledPort) -> bool:
    async with port.connect() as connection:
        return isinstance(connection, TunnelConnection)


async def test_no_other_caller_is_let_in(session: Session, tmp_path: Path) -> None:
    first, second = await session.create_port_tunnel("echo"), await session.create_port_tunnel("echo")
    address = ("127.0.0.1", first.port)

    def context(shown: bytes) -> ssl.SSLContext:
        made = ssl.create_default_context(cadata=first.identity.decode())
        if shown:
            (tmp_path / "key.pem").write_bytes(shown)
            made.load_cert_chain(tmp_path / "key.pem")
        return made

    async def entered(name: str, shown: bytes) -> bool:
        async with await TunnelConnection.connect(address, name, context(shown)) as connection:
            await connection.write(b"x")
            await connection.end_data()
            return await rest(connection) == b"x%020d" % 1

    assert await entered(first.server_name, first.identity)
    # No key, the key of another tunnel to the same port, and a name that is none.
    for name, shown in ((first.server_name, b""), (first.server_name, second.identity), ("0.tunnel.localhost", b"")):
        with pytest.raises((CallError, OSError)):
            await entered(name, shown)


async def test_it_is_in_the_journal(client: Client, cluster: Cluster) -> None:
    session = await serving(client)
    try:
        assert await accesses(client, session) == []
        for _ in range(2):
            await direct(session, cluster, "echo")
        # Like connections through the manager, those to one port are one entry in ten minutes.
        assert await accesses(client, session) == [("PORT", "admin", "main1", port_server.ECHO)]
    finally:
        await session.terminate(force=True)
        await session.wait_ended(NEVER)
