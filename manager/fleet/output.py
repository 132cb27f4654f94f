"""Output of attempts, read from the agents that hold it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import grpc.aio
from google.rpc.error_details_pb2 import ErrorInfo
from grpc_status import rpc_status

from manager.fleet.dialer import Dialer
from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.agent.v1 import agent_service_pb2_grpc as pb_grpc


class OutputUnavailableError(Exception):
    """The agent cannot be reached now; the output may be read later."""


class OutputGoneError(Exception):
    """The agent does not have the output: not yet, or no longer."""


class OutputPastEndError(Exception):
    """The offset asked for is past the end of what there is, which is at `size`."""

    def __init__(self, size: int) -> None:
        super().__init__(f"the output ends at {size}")
        self.size = size


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
            raise OutputPastEndError(_size_in(error)) from error
        raise OutputUnavailableError(f"agent {agent_id}: {error.code().name}") from error
    finally:
        await channel.close()


def _size_in(error: grpc.aio.AioRpcError) -> int:
    """The size that an agent tells with OFFSET_PAST_END; 0 when it tells none."""
    status, information = rpc_status.from_call(error), ErrorInfo()
    for detail in status.details if status is not None else ():
        if detail.Unpack(information):
            size = information.metadata.get("size", "")
            return int(size) if size.isdecimal() else 0
    return 0
