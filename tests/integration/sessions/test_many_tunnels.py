"""Hundreds of tunnels of one user: all open, and what is left unread in them fills no memory."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from retinue.client.errors import CallError
from retinue.client.kernel.port import DEFAULT_MESSAGE_BYTES, MAX_MESSAGE_BYTES, PortConnection
from retinue.manager.agent_rpc.data_sizes import LARGE_AFTER_BYTES, MAX_LARGE_TUNNELS_PER_USER
from tests.integration.sessions.inside import until_printed
from tests.integration.sessions.memory import memory_of
from tests.integration.sessions.port_sessions import stuffed
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.sessions import Session
    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")

# More than a connection of HTTP/2 carries where nothing is said.
TUNNELS = 150
UNREAD = 64
# Of memory for a tunnel in one process: a window and two copies of a message (96 KiB), and what the allocator keeps.
BOUND = 192 * 1024
# What a process takes for other things meanwhile. Without a bound, what is sent all the time fills that in a moment.
SLACK = 16 << 20
PORTS = [("echo", "tcp", 7000), ("deaf", "tcp", 7001), ("endless", "tcp", 7002), ("count", "tcp", 7003)]
PROGRAM = """
import asyncio, socket
kept = []
async def echo(reader, writer):
    while data := await reader.read(4096):
        writer.write(data)
        await writer.drain()
async def deaf(reader, writer):
    reader._transport.pause_reading()
    kept.append(writer)
    await asyncio.Event().wait()
async def endless(reader, writer):
    await reader.read(1)
    while True:
        writer.write(bytes(16384))
        await writer.drain()
async def count(reader, writer):
    total = 0
    while data := await reader.read(1 << 20):
        total += len(data)
    writer.write(str(total).encode())
    writer.close()
async def main():
    await asyncio.start_server(count, "127.0.0.1", 7003)
    for port, serve in ((7000, echo), (7001, deaf), (7002, endless)):
        listening = socket.create_server(("127.0.0.1", port), backlog=512)
        # Sockets take little, so that less has to be sent before they are full.
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            listening.setsockopt(socket.SOL_SOCKET, option, 4096)
        await asyncio.start_server(serve, sock=listening, backlog=512)
    print("listening", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def session(cluster: Cluster) -> AsyncIterator[Session]:
    """Of a user who is no administrator."""
    async with cluster.client() as client:
        user = await client.users.create("tunnel-user", projects={"default": "member"})
        token = await client.tokens.create(user=user.name, description="tunnels")
    async with cluster.client(token.secret) as own:
        found = await own.sessions.create(
            type="interactive",
            command=["python3", "-c", PROGRAM],
            slots={"cpu": "0.5", "mem": "256m"},
            termination_grace=0,
            ports=PORTS,
        )
        try:
            await found.wait("RUNNING", timeout=NEVER)
            await until_printed(found, b"listening")
            yield found
        finally:
            await found.terminate(force=True)
            await found.wait_ended(NEVER)
    async with cluster.client() as client:
        await client.users.delete(user.name)


async def test_all_open_at_once(session: Session) -> None:
    async with contextlib.AsyncExitStack() as stack:
        opened = await asyncio.gather(
            *(stack.enter_async_context(session.open_port("echo")) for _ in range(TUNNELS)), return_exceptions=True
        )
        refused = [error for error in opened if isinstance(error, BaseException)]
        assert refused == []
        answers = await asyncio.gather(*(_answer(tunnel) for tunnel in opened if isinstance(tunnel, PortConnection)))
    assert answers == [b"hello"] * TUNNELS


async def _echoed(session: Session) -> None:
    async with session.open_port("echo") as tunnel:
        assert await _answer(tunnel) == b"hello"


async def _answer(tunnel: PortConnection) -> bytes:
    await tunnel.write(b"hello")
    async with asyncio.timeout(NEVER):
        return await anext(aiter(tunnel))


@pytest.mark.attack("unread-tunnels")
@pytest.mark.parametrize("port", ["deaf", "endless"])
async def test_unread_tunnels_hold_little(session: Session, cluster: Cluster, port: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        opening = (stack.enter_async_context(session.open_port(port)) for _ in range(UNREAD))
        opened = await asyncio.gather(*opening)
        before = await memory_of(cluster)
        if port == "deaf":
            await stack.enter_async_context(stuffed(*opened, another=lambda: _echoed(session)))
        else:
            await asyncio.gather(*(tunnel.write(b"g") for tunnel in opened))
            # Others are served while these are not read.
            for _ in range(10):
                await _echoed(session)
        after = await memory_of(cluster)
    grown = [now - then for now, then in zip(after, before, strict=True)]
    assert max(grown) <= UNREAD * BOUND + SLACK, grown


async def test_messages_grow_for_the_first_tunnels_whose_data_are_taken(session: Session) -> None:
    async with contextlib.AsyncExitStack() as stack:
        opening = (stack.enter_async_context(session.open_port("count")) for _ in range(MAX_LARGE_TUNNELS_PER_USER + 1))
        tunnels = [await tunnel for tunnel in opening]
        assert {tunnel.max_message for tunnel in tunnels} == {DEFAULT_MESSAGE_BYTES}
        for tunnel in (tunnels[0], tunnels[-1]):
            await tunnel.write(bytes(LARGE_AFTER_BYTES))
            await tunnel.write(bytes(3 * MAX_MESSAGE_BYTES))
            await tunnel.end_data()
            async with asyncio.timeout(NEVER):
                counted = b"".join([data async for data in tunnel])
            assert int(counted) == LARGE_AFTER_BYTES + 3 * MAX_MESSAGE_BYTES
        assert [tunnels[0].max_message, tunnels[-1].max_message] == [MAX_MESSAGE_BYTES, DEFAULT_MESSAGE_BYTES]


async def test_a_large_message_is_refused_before_the_data_are_taken(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with session.open_port("deaf") as tunnel:
        # As of a client that does not keep to it.
        monkeypatch.setattr(tunnel, "_small", DEFAULT_MESSAGE_BYTES + 1)
        await tunnel.write(bytes(DEFAULT_MESSAGE_BYTES + 1))
        async with asyncio.timeout(NEVER):
            with pytest.raises(CallError, match=r"^data: ") as refused:
                await anext(aiter(tunnel))
        assert [violation.field for violation in refused.value.violations] == ["data"]
