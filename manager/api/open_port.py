"""OpenPort: finds the port among those that are declared, and passes bytes on to and from the agent that has the kernel."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from manager.api import errors
from manager.api.interceptors import current_principal
from manager.api.sight import find_session, note_entrance
from manager.fleet.forwarding import Forwarder
from manager.lifecycle import presence
from manager.lifecycle.entrances import Way
from manager.store.database import Database
from retinue.agent.v1 import agent_service_pb2 as agent_pb
from retinue.manager.v1 import session_service_pb2 as pb

_log = logging.getLogger(__name__)

# Seconds to wait for the first step.
START_SECONDS = 10.0
MAX_DATA_BYTES = 1 << 20
KERNEL = "main1"


async def serve_open_port(
    database: Database, forwarder: Forwarder, requests: AsyncIterator[pb.OpenPortRequest]
) -> AsyncGenerator[pb.OpenPortResponse, None]:
    """Serves one stream."""
    start = await _first(requests)
    async with database.transaction() as tx:
        session_id = await find_session(tx, start.session, owner_only=True)
        kernel = await presence.running_main(tx, session_id)
        port = kernel.reachable.find(start.port)
        if port is None:
            declared = ", ".join(kernel.reachable.words())
            hint = f"there is {declared}" if declared else "the session declares none"
            raise errors.NotFound("port", start.port, hint)
        await note_entrance(tx, session_id, Way.PORT, KERNEL, port=port)
    _log.debug("%s connects to port %d of session %s", current_principal().name, port, session_id)
    opening = agent_pb.OpenPortStart(attempt_id=kernel.place.attempt_id, port=port, address=kernel.address)
    steps = _steps(opening, requests)
    async with aclosing(forwarder.exchange(kernel.place, lambda stub: stub.OpenPort, steps)) as responses:
        async for response in responses:
            yield _response(response, port)


async def _first(requests: AsyncIterator[pb.OpenPortRequest]) -> pb.OpenPortStart:
    try:
        async with asyncio.timeout(START_SECONDS):
            request = await anext(requests)
    except (StopAsyncIteration, TimeoutError):
        raise errors.InvalidRequest([("start", "must come first")]) from None
    if not request.HasField("start"):
        raise errors.InvalidRequest([("start", "must come first")])
    if not request.start.port:
        raise errors.InvalidRequest([("start.port", "is required")])
    return request.start


async def _steps(
    opening: agent_pb.OpenPortStart, requests: AsyncIterator[pb.OpenPortRequest]
) -> AsyncIterator[agent_pb.OpenPortRequest]:
    yield agent_pb.OpenPortRequest(start=opening)
    ended = False
    async for request in requests:
        match request.WhichOneof("step"):
            case "data" if not ended:
                if len(request.data) > MAX_DATA_BYTES:
                    raise errors.InvalidRequest([("data", f"must be at most {MAX_DATA_BYTES} bytes")])
                yield agent_pb.OpenPortRequest(data=request.data)
            case "data":
                raise errors.InvalidRequest([("data", "must not come after end_of_data")])
            case "end_of_data":
                ended = True
                yield agent_pb.OpenPortRequest(end_of_data=agent_pb.EndOfData())
            case "start":
                raise errors.InvalidRequest([("start", "must come once")])
            case _:
                raise errors.InvalidRequest([("step", "is required")])


def _response(response: agent_pb.OpenPortResponse, port: int) -> pb.OpenPortResponse:
    match response.WhichOneof("step"):
        case "opened":
            return pb.OpenPortResponse(opened=pb.PortOpened(port=port))
        case "data":
            return pb.OpenPortResponse(data=response.data)
        case _:
            return pb.OpenPortResponse(end_of_data=pb.EndOfData())
