"""Questions to real servers: gRPC's health service over the connections that a kernel gives."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any, cast

import grpc
import pytest
import pytest_asyncio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from retinue.agent.attempts import Probe, ProbeKind
from retinue.agent.errors import PortClosedError
from retinue.agent.probes.core.machine import Answer
from retinue.agent.probes.questions import ask
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

pytestmark = pytest.mark.asyncio(loop_scope="session")

GRPC = Probe(ProbeKind.GRPC, service="shop.Cart", timeout=NEVER)
Status = health_pb2.HealthCheckResponse


class Machine:
    """A kernel whose ports are those of this machine."""

    async def connect(self, port: int, addresses: Sequence[str], source: str = "") -> socket.socket:
        made = socket.socket()
        made.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(made, (addresses[0], port))
        except ConnectionRefusedError as error:
            made.close()
            raise PortClosedError(str(port)) from error
        return made


async def answer(port: int, probe: Probe = GRPC) -> Answer:
    return await ask(cast("Any", Machine()), probe, port, "127.0.0.1")


@pytest_asyncio.fixture(loop_scope="session")
async def served() -> AsyncIterator[tuple[int, health.aio.HealthServicer]]:
    server, servicer = grpc.aio.server(), health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port, servicer
    finally:
        await server.stop(None)


async def test_the_health_service_of_a_grpc_server_is_asked(served: tuple[int, health.aio.HealthServicer]) -> None:
    port, servicer = served
    assert await answer(port) == Answer(success=False, message="Health.Check answers NOT_FOUND")
    await servicer.set("shop.Cart", Status.NOT_SERVING)
    assert await answer(port) == Answer(success=False, message="Health.Check answers NOT_SERVING")
    await servicer.set("shop.Cart", Status.SERVING)
    assert await answer(port) == Answer(success=True)
    # The server as a whole.
    assert await answer(port, Probe(ProbeKind.GRPC, timeout=NEVER)) == Answer(success=True)


async def test_what_is_no_grpc_server_is_said_in_time() -> None:
    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(nonsense, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        found = await answer(port, Probe(ProbeKind.GRPC, timeout=1.0))
    assert not found.success
    assert found.message in {
        "no answer within 1 s",
        "Health.Check answers UNAVAILABLE",
        "Health.Check answers DEADLINE_EXCEEDED",
    }
    # Bound, so that no other program listens there.
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        closed = bound.getsockname()[1]
        assert await answer(closed) == Answer(success=False, message=f"nothing listens on port {closed}")
