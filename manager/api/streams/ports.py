"""OpenPort: finds the port among those that are declared, and passes bytes on to and from the
agent that has the kernel.

Messages are serialised here. Those with data, which the API and agents write alike, are checked and passed on as they
are; all others are read, checked and made again.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import secrets
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Self

from retinue.agent.v1 import agent_service_pb2 as agent_pb
from retinue.manager.agent_rpc import relay
from retinue.manager.agent_rpc.data_sizes import LARGE, LARGE_AFTER_BYTES, SMALL_BYTES, LargeTunnels, MessageLimit
from retinue.manager.agent_rpc.dialer import Purpose
from retinue.manager.api.visibility import find_session, record_access, require_feature
from retinue.manager.domain import errors
from retinue.manager.domain.session.events import AccessMethod
from retinue.manager.domain.session.features import Feature
from retinue.manager.domain.session.service_ports import sftp_connections, ssh_port
from retinue.manager.server.interceptors import current_principal
from retinue.manager.server.messages import read
from retinue.manager.session import kernel_locator
from retinue.manager.store.placement import attempts
from retinue.manager.v1 import kernel_service_pb2 as pb
from retinue.rpc import direct_port
from retinue.rpc.enrollment.managers import split_address
from retinue.rpc.first_request import first_request
from retinue.rpc.port_data import data_of
from retinue.types.v1 import file_pb2, port_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator

    from retinue.manager.agent_rpc.relay import AttemptLocation, Forwarder
    from retinue.manager.store.postgres.database import Database
    from retinue.rpc.direct_port import DirectPorts, Offer

_log = logging.getLogger(__name__)

KERNEL = "main1"
# Tunnels that look for their kernel at the same time. Hundreds at once would wait for connections to the database
# longer than these wait.
MAX_LOOKUPS = 4
CONNECT_SECONDS = 0.8
"""What connecting to a node may take: less than callers wait to be admitted."""
_FILE_ACCESS = {
    file_pb2.FILE_ACCESS_UPLOAD: AccessMethod.UPLOAD,
    file_pb2.FILE_ACCESS_DOWNLOAD: AccessMethod.DOWNLOAD,
}
# From 127.1.0.0 on, which nothing else is at.
_FIRST_SOURCE, _SOURCES = 0x7F010000, 250 << 16


class Tunnels:
    """The state that all tunnels through this replica share; belongs on one event loop."""

    def __init__(self, direct: DirectPorts) -> None:
        """`direct` is the port for callers that do not reach the nodes."""
        self.direct = direct
        self.large = LargeTunnels()
        self.lookups = asyncio.Semaphore(MAX_LOOKUPS)


async def serve_open_port(
    database: Database, forwarder: Forwarder, tunnels: Tunnels, requests: AsyncIterator[bytes]
) -> AsyncGenerator[bytes, None]:
    """Serves one stream of requests with responses, all serialised."""
    start = await _first(requests)
    if start.files:
        async with aclosing(_serve_files(database, forwarder, tunnels, start, requests)) as responses:
            async for response in responses:
                yield response
        return
    async with tunnels.lookups, database.transaction() as tx:
        session_id = await find_session(tx, start.session, owner_only=True)
        kernel = await kernel_locator.running_main(tx, session_id)
        hostname, location, address = start.hostname or KERNEL, kernel.location, kernel.address
        port = ssh_port(start.port)
        speaks_ssh = kernel.serves_sftp or port is not None
        if port is not None:
            # A caller that may run commands there may reach one.
            await require_feature(tx, session_id, Feature.ATTACH)
        elif hostname != KERNEL:
            await require_feature(tx, session_id, Feature.SFTP)
        if hostname != KERNEL:
            # Both listen at the loopback.
            location, address = await kernel_locator.locate(tx, session_id, hostname), ""
        port = port or kernel.reachable.find(start.port)
        if port is None:
            declared = ", ".join(kernel.reachable.words())
            hint = f"there is {declared}" if declared else "the session declares none"
            raise errors.NotFound("port", start.port, hint)
        method = AccessMethod.SFTP if kernel.serves_sftp else AccessMethod.PORT
        source = _loopback_address() if kernel.serves_sftp else ""
        await record_access(tx, session_id, method, hostname, port=port, connection_address=source)
        most = sftp_connections(await attempts.read_memory(tx, session_id, hostname)) if kernel.serves_sftp else 0
    _log.debug("%s connects to port %d of session %s", current_principal().name, port, session_id)
    with contextlib.ExitStack() as stack:
        sizes = stack.enter_context(tunnels.large.assign(current_principal().name))
        # What carries others costs the agent, and the manager that leads there, as much as large messages.
        wants_direct, wants_tls = start.direct and speaks_ssh, start.direct and not speaks_ssh and sizes is LARGE
        offer = stack.enter_context(tunnels.direct.offer(wants_direct or wants_tls))
        opening = agent_pb.OpenPortStart(
            attempt_id=location.attempt_id,
            port=port,
            address=address,
            max_data_bytes=sizes.from_kernel,
            max_connections=most,
            source=source,
            direct=wants_direct,
            direct_tls=wants_tls,
        )
        steps = _steps(opening, requests, MessageLimit(sizes.to_kernel))
        opened = pb.PortOpened(
            port=port,
            max_data_bytes=SMALL_BYTES,
            large_data_bytes=sizes.to_kernel,
            large_data_after_bytes=LARGE_AFTER_BYTES,
        )
        with _in_words(most):
            async with aclosing(_carried(forwarder, location, steps, opened, offer)) as responses:
                async for response in responses:
                    yield response


async def _serve_files(
    database: Database,
    forwarder: Forwarder,
    tunnels: Tunnels,
    start: pb.OpenPortStart,
    requests: AsyncIterator[bytes],
) -> AsyncGenerator[bytes, None]:
    """Serves a stream whose direct port leads to files."""
    hostname = start.hostname or KERNEL
    method = _FILE_ACCESS[start.files]
    with contextlib.ExitStack() as stack:
        few = stack.enter_context(tunnels.large.assign(current_principal().name)) is LARGE
        async with tunnels.lookups, database.transaction() as tx:
            session_id = await find_session(tx, start.session, owner_only=True)
            await require_feature(tx, session_id, Feature.FILES)
            location = await kernel_locator.locate(tx, session_id, hostname)
            if few:
                await record_access(tx, session_id, method, hostname)
        if not few:
            yield pb.OpenPortResponse(opened=pb.PortOpened()).SerializeToString()
            return
        _log.info("%s copies files (%s) of attempt %s", current_principal().name, method.name, location.attempt_id)
        offer = stack.enter_context(tunnels.direct.offer(wanted=True))
        opening = agent_pb.OpenPortStart(attempt_id=location.attempt_id, files=start.files, direct_tls=True)
        steps = _steps(opening, requests, MessageLimit(SMALL_BYTES))
        async with aclosing(_carried(forwarder, location, steps, pb.PortOpened(), offer)) as responses:
            async for response in responses:
                yield response


async def _carried(
    forwarder: Forwarder,
    location: AttemptLocation,
    steps: AsyncIterator[bytes],
    opened: pb.PortOpened,
    offer: Offer | None,
) -> AsyncGenerator[bytes, None]:
    """Passes steps on to the agent, and yields responses; the first one is `opened`."""
    carried = forwarder.exchange(location, lambda stub: stub.OpenPort, steps, Purpose.PORT)
    async with aclosing(carried) as responses, _Relay(offer) as relay:
        async for message in responses:
            if data_of(message) is not None:
                yield message
            elif (response := _response(message, opened, location)) is not None:
                yield relay.add_to(response).SerializeToString()


def _loopback_address() -> str:
    """Returns an address in 127.0.0.0/8 for one connection: a server's log distinguishes it
    from those of all sessions.
    """
    return str(ipaddress.IPv4Address(_FIRST_SOURCE + secrets.randbelow(_SOURCES)))


@contextmanager
def _in_words(most: int) -> Iterator[None]:
    """Says of an SFTP server which has so many connections that it has no memory for another."""
    try:
        yield
    except relay.AgentRefusedError as error:
        if not most or error.reason != errors.StreamLimit.reason:
            raise
        what = "connections to this SFTP server are open already, which is what its memory is for: end one, or ask for more `mem`"
        raise errors.StreamLimit(most, what) from error


async def _first(requests: AsyncIterator[bytes]) -> pb.OpenPortStart:
    request = await first_request(_read_next(requests), "start")
    return checked_start(request)


def checked_start(request: pb.OpenPortRequest) -> pb.OpenPortStart:
    """Returns the first step, whose parts go together. Raises InvalidRequest."""
    start = request.start
    if start.files and (start.port or not start.direct):
        raise errors.InvalidRequest([("start.files", "is in place of a port, and needs `direct`")])
    if start.files and start.files not in _FILE_ACCESS:
        raise errors.InvalidRequest([("start.files", "must be FILE_ACCESS_UPLOAD or FILE_ACCESS_DOWNLOAD")])
    if not start.files and not start.port:
        raise errors.InvalidRequest([("start.port", "is required")])
    return start


async def _read_next(requests: AsyncIterator[bytes]) -> pb.OpenPortRequest:
    return _read(await anext(requests))


def _read(message: bytes) -> pb.OpenPortRequest:
    request: pb.OpenPortRequest = read(message, pb.OpenPortRequest.FromString)
    return request


async def _steps(
    opening: agent_pb.OpenPortStart, requests: AsyncIterator[bytes], limit: MessageLimit
) -> AsyncIterator[bytes]:
    yield agent_pb.OpenPortRequest(start=opening).SerializeToString()
    ended = False
    async for message in requests:
        data = data_of(message)
        if data is not None and len(data) <= limit.current and not ended:
            yield message
            limit.count(len(data))
            continue
        request = _read(message)
        match request.WhichOneof("step"):
            case "data" if ended:
                raise errors.InvalidRequest([("data", "must not come after end_of_data")])
            case "data" if len(request.data) > limit.current:
                raise errors.InvalidRequest([("data", f"must be at most {limit.current} bytes")])
            case "data":
                yield agent_pb.OpenPortRequest(data=request.data).SerializeToString()
                limit.count(len(request.data))
            case "end_of_data":
                ended = True
                yield agent_pb.OpenPortRequest(end_of_data=port_pb2.EndOfData()).SerializeToString()
            case "direct_refused" if opening.direct or opening.direct_tls:
                yield agent_pb.OpenPortRequest(direct_refused=port_pb2.DirectRefused()).SerializeToString()
            case "direct_refused":
                raise errors.InvalidRequest([("direct_refused", "answers a direct port, and there is none")])
            case "start":
                raise errors.InvalidRequest([("start", "must come once")])
            case _:
                raise errors.InvalidRequest([("step", "is required")])


class _Relay:
    """Leads the connection that comes by an offer to the direct port of the node, for as long as the block lasts."""

    def __init__(self, offer: Offer | None) -> None:
        self._offer = offer
        self._leading: asyncio.Task[None] | None = None
        # All that the node said has gone to the caller.
        self._all_said = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._leading is not None and kind is None and self._offer is not None and self._offer.arrival.done():
            # The agent has ended the stream once it had sent everything, which may come later than that.
            said = asyncio.ensure_future(self._all_said.wait())
            try:
                await asyncio.wait({self._leading, said}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                said.cancel()
        if self._leading is not None:
            self._leading.cancel()
            await asyncio.gather(self._leading, return_exceptions=True)

    def add_to(self, response: pb.OpenPortResponse) -> pb.OpenPortResponse:
        """Returns a response; to the first one of an agent that has a direct port, the manager's is added."""
        if self._offer is not None and self._leading is None and response.opened.HasField("direct"):
            response.opened.relay.CopyFrom(self._offer.port)
            self._leading = asyncio.create_task(
                _lead(self._offer, response.opened.direct, self._all_said.set), name="direct relay"
            )
        return response


async def _lead(offer: Offer, node: port_pb2.DirectPort, all_said: Callable[[], None]) -> None:
    # Not awaited itself: it outlasts this task.
    await asyncio.wait({offer.arrival})
    outside = offer.arrival.result()
    # Who is not admitted has the stream carry the data; a reset of one end is the other's end.
    with outside, contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(CONNECT_SECONDS):
            inside = await direct_port.connect(node)
        with inside:
            offer.admit()
            await direct_port.carry(outside, inside, lambda _: None, all_said)


def _response(message: bytes, opened: pb.PortOpened, location: AttemptLocation) -> pb.OpenPortResponse | None:
    """Returns the response to the caller; None when the agent's is for the manager,
    which is that the session is used.
    """
    response = agent_pb.OpenPortResponse.FromString(message)
    match response.WhichOneof("step"):
        case "opened":
            if response.opened.HasField("direct"):
                opened.direct.CopyFrom(response.opened.direct)
                opened.direct.host = split_address(location.address)[0]
            return pb.OpenPortResponse(opened=opened)
        case "data":
            return pb.OpenPortResponse(data=response.data)
        case "direct_use":
            return None
        case _:
            return pb.OpenPortResponse(end_of_data=port_pb2.EndOfData())
