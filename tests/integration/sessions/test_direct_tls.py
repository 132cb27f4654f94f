"""Connections to ports past the stream, by TLS to the node or by the manager's port: what they carry is what the stream
carries, and they end with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from retinue.client.errors import CallError
from retinue.client.kernel import direct_connection
from retinue.manager.agent_rpc.data_sizes import MAX_LARGE_TUNNELS_PER_USER
from retinue.rpc import direct_port
from retinue.rpc.tls_socket import NAME, TlsSocket, tls_context
from tests.integration.sessions.direct_ways import WAYS, isolate, restrict
from tests.integration.sessions.http_sessions import Lose, delete, revoke
from tests.integration.sessions.port_sessions import serving
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from retinue.client.aio import Client
    from retinue.client.kernel.direct_connection import DirectConnection
    from retinue.client.kernel.port import PortConnection
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


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory in which nothing is kept of what was not reached."""
    isolate(tmp_path, monkeypatch)


@contextlib.asynccontextmanager
async def connected(
    session: Session, cluster: Cluster, port: str, way: str = "node"
) -> AsyncIterator[DirectConnection | PortConnection]:
    """A connection by a way, on which those before it are not reached."""
    endpoint = cluster.settings.endpoint
    async with session.open_port(port, direct=True) as stream:
        restrict(stream, endpoint, way)
        async with direct_connection.encrypted(stream, endpoint) as past:
            assert (past is None) == (way == "stream")
            yield past or stream


async def rest(connection: DirectConnection | PortConnection) -> bytes:
    async with asyncio.timeout(NEVER):
        return b"".join([bytes(data) async for data in connection.views()])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [0, 1, 100_001, 24 << 20])
async def test_all_ways_carry_the_same(session: Session, cluster: Cluster, way: str, size: int) -> None:
    data = os.urandom(size)
    async with asyncio.timeout(NEVER), connected(session, cluster, "digest", way) as connection:
        await connection.write(data)
        await connection.end_data()
        assert await rest(connection) == hashlib.sha256(data).hexdigest().encode()
        await connection.finish()
    async with asyncio.timeout(NEVER), connected(session, cluster, "echo", way) as connection:
        sending = asyncio.create_task(connection.write(data))
        back = asyncio.create_task(rest(connection))
        await sending
        await connection.end_data()
        assert await back == data + b"%020d" % size


@pytest.mark.parametrize("way", WAYS)
async def test_a_reset_is_said(session: Session, cluster: Cluster, way: str) -> None:
    async with asyncio.timeout(NEVER), connected(session, cluster, "reset", way) as connection:
        await connection.write(b"x")
        with pytest.raises(CallError) as said:
            await rest(connection)
        assert said.value.reason == "CONNECTION_RESET"


@pytest.mark.parametrize("way", WAYS[:2])
@pytest.mark.parametrize("lose", [revoke, delete])
async def test_they_end_with_the_right(
    session: Session, client: Client, cluster: Cluster, lose: Lose, way: str
) -> None:
    user = await client.users.create(f"direct-{lose.__name__}-{way}", role="admin")
    token = await client.tokens.create(user=user.name, description="direct")
    try:
        async with cluster.client(token.secret) as other:
            theirs = await other.sessions.get(session.id)
            async with connected(theirs, cluster, "echo", way) as lost, connected(session, cluster, "echo") as kept:
                await lost.write(b"on")
                assert bytes(await anext(aiter(lost.views()))) == b"on"
                await lose(client, user.name)
                with pytest.raises(CallError):
                    await rest(lost)
                await kept.write(b"on")
                assert bytes(await anext(aiter(kept.views()))) == b"on"
    finally:
        with contextlib.suppress(Exception):
            await client.users.delete(user.name)


@pytest.mark.attack("read-tickets")
async def test_who_has_the_ticket_and_no_key_is_not_let_in(session: Session, cluster: Cluster) -> None:
    async with session.open_port("echo", direct=True) as stream, session.open_port("echo", direct=True) as other:
        port, another = stream.direct_port, other.direct_port
        assert port is not None
        assert another is not None
        assert port.identity != another.identity
        with await direct_port.connect(port) as taken:
            tls = TlsSocket(taken, tls_context(another.identity), NAME)
            with pytest.raises(OSError, match=r"."):
                async with asyncio.timeout(NEVER):
                    await tls.shake_hands()
        with pytest.raises(CallError):
            async with asyncio.timeout(NEVER):
                await stream.finish()


async def test_a_few_of_each_user_only(session: Session) -> None:
    async with contextlib.AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(session.open_port("echo", direct=True))
            for _ in range(MAX_LARGE_TUNNELS_PER_USER + 1)
        ]
        assert [stream.direct_port is not None for stream in opened] == [True] * MAX_LARGE_TUNNELS_PER_USER + [False]


async def test_who_reads_nothing_stops_the_sender(session: Session, cluster: Cluster) -> None:
    """By the manager's port: what it keeps of a connection is bounded, so the sender has to wait."""
    async with connected(session, cluster, "deaf", "manager") as connection:
        written = 0

        async def write() -> None:
            nonlocal written
            while True:
                await connection.write(bytes(1 << 18))
                written += 1 << 18

        writing = asyncio.create_task(write())
        before = -1
        while before < written:
            before = written
            for _ in range(10):
                async with connected(session, cluster, "digest", "manager") as another:
                    await another.end_data()
                    await rest(another)
        assert not writing.done()
        # Sockets and pipes on the way: the sender's, the manager's two, the agent's two, the receiver's.
        assert written < 64 << 20
        writing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await writing
