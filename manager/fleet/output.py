"""Output of attempts, read from the agents that hold it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import grpc.aio
from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.agent.v1 import agent_service_pb2_grpc as pb_grpc

from manager.fleet.dialer import Dialer


class OutputUnavailableError(Exception):
    """The agent cannot be reached now; the output may be read later."""


class OutputGoneError(Exception):
    """The agent does not have the output: not yet, or no longer."""


class OutputPastEndError(Exception):
    """The offset asked for is past the end of what there is."""


async def stream_output(
    dialer: Dialer, agent_id: str, address: str, attempt_id: str, *, offset: int, follow: bool
) -> AsyncIterator[tuple[int, bytes]]:
    """Pieces of an attempt's output as (offset, data), to its end now or, with `follow`, to the attempt's end."""
    channel = dialer.open(agent_id, address)
    try:
        stub: pb_grpc.AgentServiceAsyncStub = pb_grpc.AgentServiceStub(channel)
        request = pb.StreamLogsRequest(attempt_id=attempt_id, offset=offset, follow=follow)
        async for piece in stub.StreamLogs(request):
            yield piece.offset, piece.data
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.NOT_FOUND:
            raise OutputGoneError(error.details() or "") from error
        if error.code() is grpc.StatusCode.OUT_OF_RANGE:
            raise OutputPastEndError(error.details() or "") from error
        raise OutputUnavailableError(f"agent {agent_id}: {error.code().name}") from error
    finally:
        await channel.close()
