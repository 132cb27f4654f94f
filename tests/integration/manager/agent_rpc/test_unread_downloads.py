"""A download that its caller does not read waits at the agent: a manager holds little of it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc.aio
import pytest

from retinue.agent.api.files import PIECE
from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.agent.v1 import agent_service_pb2_grpc as pb_grpc
from retinue.manager.agent_rpc.dialer import OPTIONS, Dialer, Purpose
from retinue.manager.agent_rpc.relay import AttemptLocation, Forwarder
from retinue.types.v1 import file_pb2
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.asyncio(loop_scope="session")

HELD = 3
"""Pieces: one that the reader has, one on the way, and one that the agent hands over."""
LOOKS = 20


class Agent(pb_grpc.AgentServiceServicer):
    """Has a file without an end."""

    def __init__(self) -> None:
        self.sent = 0

    async def DownloadFiles(
        self, request: pb.DownloadFilesRequest, context: Any
    ) -> AsyncIterator[pb.DownloadFilesResponse]:
        del request, context
        while True:
            self.sent += 1
            yield pb.DownloadFilesResponse(output=file_pb2.DownloadOutput(data=bytes(PIECE)))

    async def ListFiles(self, request: pb.ListFilesRequest, context: Any) -> AsyncIterator[pb.ListFilesResponse]:
        del request, context
        yield pb.ListFilesResponse()


class PlainDialer(Dialer):
    """Dials without certificates, and otherwise as a manager does: all streams on one connection."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.aio.insecure_channel(address, options=OPTIONS)

    @asynccontextmanager
    async def stream(self, agent_id: str, address: str, purpose: Purpose) -> AsyncIterator[grpc.aio.Channel]:
        del agent_id, address, purpose
        yield self.channel


@pytest.mark.attack("slow-readers")
async def test_an_unread_download_stands_still_at_the_agent() -> None:
    made: Any = Agent
    server, agent = grpc.aio.server(), made()
    pb_grpc.add_AgentServiceServicer_to_server(agent, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    dialer = PlainDialer(address)
    forwarder, location = Forwarder(dialer), AttemptLocation("n1", address, "k.1")
    try:
        request = pb.DownloadFilesRequest(attempt_id="k.1")
        async with (
            asyncio.timeout(NEVER),
            aclosing(forwarder.stream(location, lambda stub: stub.DownloadFiles, request, Purpose.FILES)) as unread,
        ):
            await anext(unread)
            before = -1
            while agent.sent != before:
                before = agent.sent
                # What a slow machine has yet to do of the download, it does before these.
                for _ in range(LOOKS):
                    listed = forwarder.stream(location, lambda stub: stub.ListFiles, pb.ListFilesRequest())
                    assert [answer async for answer in listed] == [pb.ListFilesResponse()]
            assert agent.sent <= HELD
            # It waits, and is not broken.
            for _ in range(2 * HELD):
                assert len((await anext(unread)).output.data) == PIECE
    finally:
        await dialer.channel.close()
        await server.stop(0)
