"""Connections to ports of kernels, from a client through the manager and the agent to a program and back."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from typing import TYPE_CHECKING, Any

import grpc.aio
import pytest
import pytest_asyncio

from retinue.client.errors import Aborted, CallError, FailedPrecondition, InvalidRequest, NotFound, Unauthenticated
from retinue.client.kernel.port import LocalPort, PortConnection
from retinue.client.transport.rpc_errors import from_rpc
from retinue.manager.v1 import kernel_service_pb2 as pb
from retinue.rpc.bidi_call import BidiCall
from retinue.types.v1 import port_pb2
from tests.integration.sessions import port_server
from tests.integration.sessions.memory import memory_of
from tests.integration.sessions.port_sessions import said, serving, stuffed, whole
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.aio import Client
    from retinue.client.sessions import Session
    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")

# Far more than all windows and buffers on the way hold.
MEGABYTES = 20


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def session(cluster: Cluster) -> AsyncIterator[Session]:
    async with cluster.client() as client:
        session = await serving(client, cluster_size=2, cluster_mode="multi-node")
        yield session
        await session.terminate(force=True)
        await session.wait_ended(NEVER)


async def test_by_name_and_by_number_wherever_it_listens(session: Session) -> None:
    expected = b"hello" + b"%020d" % 5
    for port in ("echo", port_server.ECHO, port_server.OWN_ADDRESS, port_server.V6):
        assert await said(session, port) == expected
    async with session.open_port("echo") as connection:
        assert connection.port == port_server.ECHO


async def test_each_direction_ends_by_itself(session: Session) -> None:
    async with session.open_port("digest") as connection:
        await connection.write(b"all of it")
        # As clients in other languages do.
        await connection._exchange.end_requests()  # noqa: SLF001
        assert await whole(connection) == hashlib.sha256(b"all of it").hexdigest().encode()


async def test_twenty_megabytes_both_ways(session: Session) -> None:
    piece = os.urandom(1 << 20)
    sent, came, count = hashlib.sha256(), hashlib.sha256(), 0
    async with session.open_port("echo") as connection:

        async def write() -> None:
            for number in range(MEGABYTES):
                data = number.to_bytes(4, "big") + piece[4:]
                sent.update(data)
                await connection.write(data)
            await connection.end_data()

        writing = asyncio.create_task(write())
        rest = b""
        async with asyncio.timeout(NEVER):
            async for data in connection:
                rest += data
                came.update(rest[:-20])
                count, rest = count + len(rest[:-20]), rest[-20:]
        await writing
    assert (int(rest), count) == (MEGABYTES << 20, MEGABYTES << 20)
    assert came.digest() == sent.digest()


@pytest.mark.attack("slow-readers")
async def test_a_client_that_does_not_read_fills_no_memory_and_delays_no_other(
    session: Session, cluster: Cluster
) -> None:
    before = await memory_of(cluster)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(4):
            # Neither end reads what the other sends.
            await stack.enter_async_context(session.open_port("endless"))
            deaf = await stack.enter_async_context(session.open_port("deaf"))
            await stack.enter_async_context(stuffed(deaf, another=lambda: said(session, "echo")))
        assert await said(session, "echo") == b"hello" + b"%020d" % 5
        after = await memory_of(cluster)
    # Without a bound, four programs that send all the time fill that in a second.
    assert sum(after) - sum(before) < 64 << 20


async def test_what_the_program_does_is_said(session: Session) -> None:
    with pytest.raises(FailedPrecondition) as closed:
        await said(session, "closed")
    assert (closed.value.reason, closed.value.metadata) == ("PORT_CLOSED", {"port": "7999"})
    with pytest.raises(Aborted) as broken:
        await said(session, "reset")
    assert broken.value.reason == "CONNECTION_RESET"


@pytest.mark.attack("ports-of-nodes")
@pytest.mark.parametrize("port", ["nothing", "7000", "2200", "22", "0", "-1", "70011", "echo\n", "7٣01"])
async def test_only_declared_ports(session: Session, port: str) -> None:
    with pytest.raises(NotFound, match="no such port: there is echo"):
        await said(session, port)


@pytest.mark.parametrize(
    ("steps", "field"),
    [
        ([pb.OpenPortRequest(data=b"x")], "start"),
        ([pb.OpenPortRequest(start=pb.OpenPortStart())], "start.port"),
        ([None, pb.OpenPortRequest()], "step"),
        ([None, pb.OpenPortRequest(start=pb.OpenPortStart(port="echo"))], "start"),
        ([None, pb.OpenPortRequest(data=bytes((1 << 20) + 1))], "data"),
        ([None, pb.OpenPortRequest(end_of_data=port_pb2.EndOfData()), pb.OpenPortRequest(data=b"x")], "data"),
    ],
)
async def test_bad_steps(session: Session, steps: list[pb.OpenPortRequest | None], field: str) -> None:
    call = BidiCall[Any, Any](session._sessions._kernels.OpenPort())  # noqa: SLF001  # what the library does not send
    # Its program ends no connection: the call would be over before the last step is read.
    start = pb.OpenPortRequest(start=pb.OpenPortStart(session=session.id, port="deaf"))
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await _exchanged(call, [step or start for step in steps])
    caught = from_rpc(raised.value, "")
    assert isinstance(caught, InvalidRequest)
    assert [violation.field for violation in caught.violations] == [field]


async def _exchanged(call: BidiCall[Any, Any], steps: list[pb.OpenPortRequest]) -> None:
    for step in steps:
        await call.write(step)
    while await call.read() is not None:
        pass


@pytest.mark.attack("expired-and-revoked-tokens", "commands-where-none-run")
async def test_only_what_runs_and_only_ones_own(session: Session, client: Client, cluster: Cluster) -> None:
    waiting = await client.sessions.create(type="interactive", slots={"cpu": "64"}, ports=[("web", "http", 8080)])
    with pytest.raises(FailedPrecondition) as caught:
        await said(waiting, "web")
    assert caught.value.reason == "STATE_FORBIDS"
    await waiting.terminate()
    user = await client.users.create("port-user", projects={"default": "admin"})
    token = await client.tokens.create(user=user.name, description="ports")
    try:
        async with cluster.client(token.secret) as other:
            # Not even administrators of the project.
            assert (await other.sessions.get(session.id)).id == session.id
            with pytest.raises(NotFound, match="no such session"):
                await said(await other.sessions.get(session.id), "echo")
            own = await serving(other)
            assert await said(own, "echo") == b"hello" + b"%020d" % 5
            async with own.open_port("echo") as connection:
                await client.tokens.revoke(token.token.id)
                with pytest.raises(Unauthenticated):
                    await whole(connection)
        await (await client.sessions.get(own.id)).terminate(force=True)
    finally:
        await (await client.sessions.get(own.id)).wait_ended(NEVER)
        await client.users.delete(user.name)


async def test_it_ends_with_the_session_and_leaves_nothing(client: Client, cluster: Cluster) -> None:
    session = await serving(client, cluster_size=2, cluster_mode="multi-node")
    async with (
        session.open_port("deaf") as deaf,
        session.open_port("endless") as endless,
        stuffed(deaf, another=lambda: said(session, "echo")),
    ):
        await session.terminate(force=True)
        for connection in (deaf, endless):
            with pytest.raises(CallError) as ended:
                await _broken(connection)
            assert ended.value.reason in ("STATE_FORBIDS", "CONNECTION_RESET")
    await session.wait_ended(NEVER)
    with pytest.raises(FailedPrecondition):
        await said(session, "echo")


async def _broken(connection: PortConnection) -> None:
    """What came may look like the end of all; that the kernel has ended is sent after it."""
    async with asyncio.timeout(NEVER):
        while True:
            await connection._exchange.receive()  # noqa: SLF001


async def test_a_local_port(session: Session) -> None:
    failures: list[CallError] = []
    async with LocalPort(lambda: session.open_port("echo"), failed=failures.append) as local:

        async def talk(number: int) -> bytes:
            reader, writer = await asyncio.open_connection(*local.address)
            writer.write(b"%d" % number * 1000)
            writer.write_eof()
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
            return answer

        answers = await asyncio.gather(*(talk(number) for number in range(20)), return_exceptions=True)
        assert failures == []
        assert answers == [b"%d" % number * 1000 + b"%020d" % (len(str(number)) * 1000) for number in range(20)]
    assert failures == []
    async with LocalPort(lambda: session.open_port("closed"), failed=failures.append) as local:
        reader, writer = await asyncio.open_connection(*local.address)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
    assert [failure.reason for failure in failures] == ["PORT_CLOSED"]


@pytest.mark.attack("ports-of-nodes")
@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"ports": [("web", "tcp", 22)]}, "spec.service_ports[0].ports[0]"),
        ({"ports": [("web", "tcp", 2200)]}, "spec.service_ports[0].ports[0]"),
        ({"ports": [("web", "tcp", 70000)]}, "spec.service_ports[0].ports[0]"),
        ({"ports": [("web", "udp", 8080)]}, "spec.service_ports[0].protocol"),
        ({"ports": [("80", "tcp", 8080)]}, "spec.service_ports[0].name"),
        ({"ports": [("a", "tcp", 8080), ("a", "tcp", 8081)]}, "spec.service_ports[1].name"),
        ({"ports": [("a", "tcp", 8080), ("b", "tcp", 8080)]}, "spec.service_ports[1].ports[0]"),
        ({"ports": [(f"p{n}", "tcp", 8000 + n) for n in range(65)]}, "spec.service_ports"),
        ({"preopen_ports": [(80, 8080)]}, "spec.preopen_ports[0].first"),
        ({"preopen_ports": [(8080, 8000)]}, "spec.preopen_ports[0].last"),
        ({"preopen_ports": [(8000 + n, 8000 + n) for n in range(17)]}, "spec.preopen_ports"),
    ],
)
async def test_bad_declarations(client: Client, options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await client.sessions.create(type="interactive", validate_only=True, **options)
    assert [violation.field for violation in caught.value.violations] == [field]
