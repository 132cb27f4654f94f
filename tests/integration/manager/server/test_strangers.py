"""Floods and crowds of strangers: their connections end, those with credentials stay, and memory is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import ssl
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from retinue.manager.server.connection_watch import Sockets
from tests.integration.manager.call_server import STRANGERS, TUNNEL
from tests.integration.manager.rig import Service, bearer, served
from tests.integration.manager.server.test_call_ends import METADATA, Running, serving
from tests.integration.manager.server.test_unfinished_requests import megabytes
from tests.support.eventually import NEVER, eventually
from tests.support.floods import FLOODS
from tests.support.http2_frames import PREFACE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

pytestmark = pytest.mark.asyncio(loop_scope="session")

CONNECTIONS = 2
# Without an end, each connection has the library take some 50 a second.
MEGABYTES = 200


async def flood(address: str, pieces: Iterator[bytes], **options: Any) -> None:
    """Sends until the connection has ended. How much that is depends on who else uses the processors."""
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port), **options)

    async def send() -> None:
        for piece in itertools.chain([PREFACE], pieces):
            writer.write(piece)
            await writer.drain()

    sending = asyncio.create_task(send())
    try:
        reading = asyncio.create_task(drained(reader))
        await asyncio.wait((sending, reading), timeout=NEVER, return_when=asyncio.FIRST_COMPLETED)
        assert sending.done() or reading.done(), "it is not ended"
        async with asyncio.timeout(NEVER):
            await reading
    finally:
        sending.cancel()
        writer.transport.abort()
        await asyncio.gather(sending, return_exceptions=True)


async def drained(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(1 << 20):
            pass


@asynccontextmanager
async def tunnels(running: Running, count: int) -> AsyncIterator[list[Any]]:
    """Streams of callers with credentials, each by a connection of its own; at the end, all still have data."""
    async with AsyncExitStack() as stack:
        streams = []
        for _ in range(count):
            channel = await stack.enter_async_context(running.channel())
            streams.append(channel.stream_stream(TUNNEL)(metadata=METADATA))
            assert await streams[-1].read()
        yield streams
        for stream in streams:
            assert await stream.read()
            stream.cancel()


@pytest.mark.attack("floods-at-the-manager")
@pytest.mark.parametrize("kind", list(FLOODS))
async def test_floods_end_their_own_connections(kind: str) -> None:
    async with serving() as running, tunnels(running, 1):
        await running.answers()
        before = megabytes(running)
        await asyncio.gather(*(flood(running.address, FLOODS[kind]()) for _ in range(CONNECTIONS)))
        await eventually(running.answers_or_not)
        assert megabytes(running) - before < MEGABYTES


@asynccontextmanager
async def opening(address: tuple[str, int], source: str) -> AsyncIterator[tuple[socket.socket, asyncio.Task[None]]]:
    """A connection from an address of this machine, and what opens it."""
    with socket.socket(socket.AF_INET6 if ":" in source else socket.AF_INET) as own:
        own.setblocking(False)
        own.bind((source, 0))
        begun = asyncio.create_task(asyncio.get_running_loop().sock_connect(own, address))
        try:
            yield own, begun
        finally:
            begun.cancel()
            await asyncio.gather(begun, return_exceptions=True)


@pytest.mark.parametrize(
    ("listens", "network", "kept_out", "source", "other"),
    [
        ("127.0.0.1", "127.0.0.2", "127.0.0.1", "127.0.0.2", "127.0.0.3"),
        # By a dual-stack socket, as gRPC has.
        ("::", "127.0.0.2", "127.0.0.1", "127.0.0.2", "127.0.0.3"),
        ("::", "::/64", "::1", "::1", "127.0.0.1"),
    ],
)
async def test_linux_drops_what_comes_from_networks_that_are_kept_out(
    listens: str, network: str, kept_out: str, source: str, other: str
) -> None:
    family = socket.AF_INET6 if ":" in listens else socket.AF_INET
    async with AsyncExitStack() as stack:
        listener = stack.enter_context(
            socket.create_server((listens, 0), family=family, dualstack_ipv6=family is socket.AF_INET6)
        )
        port = listener.getsockname()[1]
        # Beside others: the last of a full list counts like the first.
        others = [f"198.51.100.{number}" for number in range(60)] + [
            f"2001:db8:0:{number:x}::/64" for number in range(60)
        ]
        sockets = Sockets({port})
        before, open_before = await stack.enter_async_context(opening((kept_out, port), source))
        await open_before
        connection = stack.enter_context(listener.accept()[0])
        sockets.keep_out([*others, network])
        _, begun = await stack.enter_async_context(opening((kept_out, port), source))
        _, open_later = await stack.enter_async_context(opening(("127.0.0.1", port), other))
        await open_later
        assert not begun.done()
        # The one from before is as it was.
        before.send(b"x")
        assert connection.recv(1) == b"x"
        sockets.keep_out([])
        # Linux tries again.
        await begun


@pytest.mark.attack("many-connections")
async def test_of_many_connections_the_oldest_without_credentials_end() -> None:
    async with serving() as running, tunnels(running, STRANGERS + 6):
        host, port = running.address.split(":")
        pairs = []
        try:
            pairs += [await asyncio.open_connection(host, int(port)) for _ in range(3 * STRANGERS)]
            ends = [asyncio.create_task(drained(reader)) for reader, _ in pairs]
            async with asyncio.timeout(NEVER):
                await asyncio.gather(*ends[: 2 * STRANGERS])
            # Later ones are served.
            await running.answers()
        finally:
            for _, writer in pairs:
                writer.transport.abort()
            await asyncio.gather(*ends)


@pytest_asyncio.fixture(loop_scope="session")
async def service(database_url: str, tmp_path: Path) -> AsyncIterator[Service]:
    async with served(database_url, tmp_path, max_strangers=2) as service:
        yield service


@pytest.mark.attack("floods-at-the-manager")
async def test_floods_over_tls_end_beside_users(service: Service) -> None:
    context = ssl.create_default_context(cadata=service.authority.certificate.decode())
    context.set_alpn_protocols(["h2"])
    metadata = bearer(await service.user("ada"))
    async with service.channel() as channel:
        caller: Any = channel.unary_unary("/retinue.manager.v1.AccountService/GetCaller")
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        await watch.read()
        await caller(b"", metadata=metadata)
        await flood(service.endpoint, FLOODS["settings"](), ssl=context, server_hostname="manager.retinue")
        # By the same connection.
        await caller(b"", metadata=metadata)
        assert not watch.done()
        watch.cancel()


@pytest.mark.attack("floods-at-the-manager")
async def test_who_floods_is_kept_out_for_longer_each_time_unless_somebody_has_authenticated_there(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    context = ssl.create_default_context(cadata=service.authority.certificate.decode())
    context.set_alpn_protocols(["h2"])
    metadata = bearer(await service.user("ada"))

    async def floods(source: str) -> None:
        options = {"ssl": context, "server_hostname": "manager.retinue", "local_addr": (source, 0)}
        await flood(service.endpoint, FLOODS["settings"](), **options)

    # The second can begin only when the first penalty is over.
    for _ in range(2):
        await floods("127.0.0.2")
    async with service.channel() as channel:
        caller: Any = channel.unary_unary("/retinue.manager.v1.AccountService/GetCaller")
        await caller(b"", metadata=metadata)
    for _ in range(2):
        await floods("127.0.0.1")
    lines = [record.message for record in caplog.records if "opens no connections" in record.message]
    assert lines == [
        "127.0.0.2 opens no connections for 1 s: it flooded without credentials",
        "127.0.0.2 opens no connections for 2 s: it flooded without credentials",
    ]
    host, _, port = service.endpoint.rpartition(":")
    async with opening((host, int(port)), "127.0.0.2") as (_, begun):
        await begun


@pytest.mark.attack("many-connections")
async def test_nodes_are_known_by_their_certificates(service: Service) -> None:
    host, _, port = service.agent_endpoint.rpartition(":")
    async with AsyncExitStack() as stack:
        watches = []
        for number in range(5):
            channel = await stack.enter_async_context(service.as_agent(f"agent-{number}"))
            watches.append(health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()))
            await watches[-1].read()
        pairs = [await asyncio.open_connection(host, int(port)) for _ in range(5)]
        try:
            async with asyncio.timeout(NEVER):
                await asyncio.gather(*(drained(reader) for reader, _ in pairs))
        finally:
            for _, writer in pairs:
                writer.transport.abort()
        # Silence of both ends would look the same: a call goes by the same connection.
        assert [watch.done() for watch in watches] == [False] * 5
        for watch in watches:
            watch.cancel()


@pytest.mark.attack("many-connections")
async def test_too_many_strangers_with_open_calls_end(service: Service) -> None:
    async with AsyncExitStack() as stack:
        watches = []
        for _ in range(5):
            channel = await stack.enter_async_context(service.channel())
            watches.append(health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()))
            await watches[-1].read()
        await eventually(lambda: [watch.done() for watch in watches], [True, True, True, False, False].__eq__)
        for watch in watches:
            watch.cancel()
