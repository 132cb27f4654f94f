"""OpenPort: finds the port among those that are declared, and passes bytes on to and from the agent that has the kernel.

Messages are serialised here. Those with data, which the API and agents write alike, are checked and passed on as they are; all
others are read, checked and made again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from retinue.agent.v1 import agent_service_pb2 as agent_pb
from retinue.manager.access import kernel_locator
from retinue.manager.access.access_log import AccessMethod
from retinue.manager.agent_rpc.dialer import Purpose
from retinue.manager.agent_rpc.relay import Forwarder
from retinue.manager.api.streams.data_sizes import LargeTunnels
from retinue.manager.api.visibility import find_session, record_access
from retinue.manager.server import errors
from retinue.manager.server.interceptors import current_principal
from retinue.manager.server.messages import read
from retinue.manager.store.database import Database
from retinue.manager.v1 import kernel_service_pb2 as pb
from retinue.rpc.first_request import first_request
from retinue.types.v1 import port_pb2

_log = logging.getLogger(__name__)

KERNEL = "main1"
# Tunnels that look for their kernel at the same time. Hundreds at once would wait for connections to the database longer than these wait.
MAX_LOOKUPS = 4
# How a serialised message begins that holds data: number and kind of the field; then comes the size.
DATA = bytes([pb.OpenPortRequest.DATA_FIELD_NUMBER << 3 | 2])
LONGEST_PREFIX = 6


class Tunnels:
    """The state that all tunnels through this replica share; belongs on one event loop."""

    def __init__(self) -> None:
        self.large = LargeTunnels()
        self.lookups = asyncio.Semaphore(MAX_LOOKUPS)


async def serve_open_port(
    database: Database, forwarder: Forwarder, tunnels: Tunnels, requests: AsyncIterator[bytes]
) -> AsyncGenerator[bytes, None]:
    """Serves one stream of requests with responses, all serialised."""
    start = await _first(requests)
    async with tunnels.lookups, database.transaction() as tx:
        session_id = await find_session(tx, start.session, owner_only=True)
        kernel = await kernel_locator.running_main(tx, session_id)
        port = kernel.reachable.find(start.port)
        if port is None:
            declared = ", ".join(kernel.reachable.words())
            hint = f"there is {declared}" if declared else "the session declares none"
            raise errors.NotFound("port", start.port, hint)
        await record_access(tx, session_id, AccessMethod.PORT, KERNEL, port=port)
    _log.debug("%s connects to port %d of session %s", current_principal().name, port, session_id)
    with tunnels.large.assign(current_principal().name) as sizes:
        opening = agent_pb.OpenPortStart(
            attempt_id=kernel.place.attempt_id, port=port, address=kernel.address, max_data_bytes=sizes.from_kernel
        )
        steps = _steps(opening, requests, sizes.to_kernel)
        opened = pb.PortOpened(port=port, max_data_bytes=sizes.to_kernel)
        carried = forwarder.exchange(kernel.place, lambda stub: stub.OpenPort, steps, Purpose.PORT)
        async with aclosing(carried) as responses:
            async for response in responses:
                yield response if data_size(response) is not None else _response(response, opened)


def data_size(message: bytes) -> int | None:
    """Returns how many bytes of data a serialised request or response holds; None when it holds anything else, or more than that."""
    if message[:1] != DATA:
        return None
    size = shift = 0
    for place in range(1, min(len(message), LONGEST_PREFIX)):
        size |= (message[place] & 0x7F) << shift
        shift += 7
        if message[place] < 0x80:  # noqa: PLR2004  # the last byte of a number has its highest bit clear
            return size if len(message) == place + 1 + size else None
    return None


async def _first(requests: AsyncIterator[bytes]) -> pb.OpenPortStart:
    request = await first_request(_read_next(requests), "start")
    if not request.start.port:
        raise errors.InvalidRequest([("start.port", "is required")])
    return request.start


async def _read_next(requests: AsyncIterator[bytes]) -> pb.OpenPortRequest:
    return _read(await anext(requests))


def _read(message: bytes) -> pb.OpenPortRequest:
    request: pb.OpenPortRequest = read(message, pb.OpenPortRequest.FromString)
    return request


async def _steps(
    opening: agent_pb.OpenPortStart, requests: AsyncIterator[bytes], max_bytes: int
) -> AsyncIterator[bytes]:
    yield agent_pb.OpenPortRequest(start=opening).SerializeToString()
    ended = False
    async for message in requests:
        size = data_size(message)
        if size is not None and size <= max_bytes and not ended:
            yield message
            continue
        request = _read(message)
        match request.WhichOneof("step"):
            case "data" if ended:
                raise errors.InvalidRequest([("data", "must not come after end_of_data")])
            case "data" if len(request.data) > max_bytes:
                raise errors.InvalidRequest([("data", f"must be at most {max_bytes} bytes")])
            case "data":
                yield agent_pb.OpenPortRequest(data=request.data).SerializeToString()
            case "end_of_data":
                ended = True
                yield agent_pb.OpenPortRequest(end_of_data=port_pb2.EndOfData()).SerializeToString()
            case "start":
                raise errors.InvalidRequest([("start", "must come once")])
            case _:
                raise errors.InvalidRequest([("step", "is required")])


def _response(message: bytes, opened: pb.PortOpened) -> bytes:
    response = agent_pb.OpenPortResponse.FromString(message)
    match response.WhichOneof("step"):
        case "opened":
            return pb.OpenPortResponse(opened=opened).SerializeToString()
        case "data":
            return pb.OpenPortResponse(data=response.data).SerializeToString()
        case _:
            return pb.OpenPortResponse(end_of_data=port_pb2.EndOfData()).SerializeToString()
