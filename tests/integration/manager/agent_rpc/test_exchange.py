"""Streams to agents in both directions, whose requests do not get through."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc.aio
import pytest

from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.agent.v1 import agent_service_pb2_grpc as pb_grpc
from retinue.manager.agent_rpc.dialer import Dialer, Purpose
from retinue.manager.agent_rpc.relay import AgentUnavailableError, AttemptLocation, Forwarder
from retinue.rpc import failpoints
from retinue.types.v1 import terminal_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Agent(pb_grpc.AgentServiceServicer):
    """Waits for what to start for as long as it takes."""

    async def Attach(self, requests: AsyncIterator[pb.AttachRequest], context: Any) -> AsyncIterator[pb.AttachResponse]:
        async for request in requests:
            yield pb.AttachResponse(output=terminal_pb2.CommandOutput(stdout=request.input.stdin))


class PlainDialer(Dialer):
    """Dials without certificates."""

    def __init__(self) -> None:
        pass

    @asynccontextmanager
    async def stream(self, agent_id: str, address: str, purpose: Purpose) -> AsyncIterator[grpc.aio.Channel]:
        async with grpc.aio.insecure_channel(address) as channel:
            yield channel

    async def explain(self, agent_id: str, address: str) -> None:
        return None


async def requests() -> AsyncIterator[pb.AttachRequest]:
    yield pb.AttachRequest(input=terminal_pb2.CommandInput(stdin=b"here"))
    await asyncio.Event().wait()


@pytest.mark.parametrize("action", ["error", "cancel", ""])
async def test_a_request_that_cannot_be_sent_ends_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    monkeypatch.setattr(failpoints, "active", failpoints.Failpoints(tmp_path))
    if action:
        (tmp_path / "armed" / f"relay.write={action}").touch()
    server = grpc.aio.server()
    agent: Any = Agent
    pb_grpc.add_AgentServiceServicer_to_server(agent(), server)
    location = AttemptLocation("n1", f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}", "k.1")
    await server.start()
    try:
        async with aclosing(
            Forwarder(PlainDialer()).exchange(location, lambda stub: stub.Attach, requests())
        ) as responses:
            if action:
                with pytest.raises(AgentUnavailableError):
                    await anext(responses)
            else:
                assert (await anext(responses)).output.stdout == b"here"
    finally:
        await server.stop(0)
