"""OpenPort: a connection to a port inside a kernel for a manager's user, for as long as the stream lasts.

Bytes are read from the kernel only when the stream takes them, and from the stream only when the kernel has taken those
before: there is one piece in each direction, and no queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import socket
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from retinue.agent.api.direct_tls import MAX_CONNECTIONS, accepted, carry_tls, new_identity
from retinue.agent.api.errors import invalid, unknown_attempt
from retinue.agent.api.pieces import LARGEST, PieceSize, SharedRoom
from retinue.agent.errors import KernelRuntimeError, PausedError, PortClosedError, UnknownAttemptError
from retinue.agent.network.sockets import LOOPBACK
from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.rpc.acknowledgements import SMALL, Acknowledgements
from retinue.rpc.core.errors import ApiError, Code, ServiceError
from retinue.rpc.core.reasons import ErrorReason
from retinue.rpc.direct_port import CARRIED_FAMILIES, DirectPorts, Offer, carry
from retinue.rpc.first_request import first_request
from retinue.rpc.port_data import data_message, data_of
from retinue.rpc.sockets import receive_available
from retinue.rpc.stream_limits import OpenStreams
from retinue.types.v1 import port_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator

    from retinue.agent.api.files import FileService
    from retinue.agent.runtime.contract import Runtime
    from retinue.agent.runtime.kernel import Kernel


MAX_PER_ATTEMPT = 512
"""Connections at a time into one kernel."""
CONNECT_TIMEOUT = 10.0
"""Seconds that a server in the kernel has to take the connection."""
PORTS = range(1, 65_536)
USE_SECONDS = 1.0
"""Between two reports of bytes that went by a direct port."""


class PortService:
    """All connections into kernels of an agent."""

    def __init__(self, runtime: Runtime, files: FileService) -> None:
        """Connects nothing yet. `files` are where some direct ports lead."""
        self._runtime = runtime
        self._files = files
        self._open = OpenStreams({}, MAX_PER_ATTEMPT)
        self._cuts: set[asyncio.Future[None]] = set()
        self._stopping = False
        # Direct connections by TLS.
        self._encrypted = 0
        self._room = SharedRoom()
        # One for all connections: it is filled and copied out in one go.
        self._scratch = memoryview(bytearray(LARGEST))
        self.direct = DirectPorts()

    def stop(self) -> None:
        """Ends every connection, and lets no other begin."""
        self._stopping = True
        for cut in self._cuts:
            if not cut.done():
                cut.set_exception(_unavailable("the agent is stopping"))

    async def serve(self, requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Serves one stream of serialised requests to its end with serialised responses."""
        start = await _first(requests)
        if self._stopping:
            raise _unavailable("the agent is stopping")
        kernel = self._kernel(start.attempt_id)
        if start.files:
            async with contextlib.aclosing(self._serve_files(kernel, start, requests)) as responses:
                async for response in responses:
                    yield response
            return
        with (
            self._open.hold("OpenPort", start.attempt_id, start.max_connections),
            self._until_ended(kernel, start.attempt_id) as cut,
            contextlib.closing(await self._connected(kernel, start)) as connection,
            self._offered(start, connection) as offer,
        ):
            yield await _opened(start, offer)
            if offer is not None and await _is_taken(offer, requests, cut):
                way = functools.partial(_carry, offer.port.identity, connection)
                async with contextlib.aclosing(_exchange_directly(offer, way, cut)) as uses:
                    async for use in uses:
                        yield use
                return
            size = PieceSize(min(start.max_data_bytes or LARGEST, LARGEST))
            async with contextlib.aclosing(self._exchange(connection, requests, cut, size)) as responses:
                async for response in responses:
                    yield response

    async def _serve_files(
        self, kernel: Kernel, start: pb.OpenPortStart, requests: AsyncIterator[bytes]
    ) -> AsyncGenerator[bytes, None]:
        """Serves one stream whose direct port leads to files."""
        with self._until_ended(kernel, start.attempt_id) as cut, self._offered(start, None) as offer:
            yield await _opened(start, offer)
            if offer is not None and await _is_taken(offer, requests, cut):
                way = functools.partial(self._exchange_files, offer.port.identity, start)
                async with contextlib.aclosing(_exchange_directly(offer, way, cut)) as uses:
                    async for use in uses:
                        yield use

    async def _exchange_files(
        self, identity: bytes, start: pb.OpenPortStart, outside: socket.socket, moved: Callable[[int], None]
    ) -> None:
        tls = await accepted(outside, identity, moved)
        await self._files.serve_directly(tls, start.attempt_id, start.files)

    @contextlib.contextmanager
    def _offered(self, start: pb.OpenPortStart, connection: socket.socket | None) -> Iterator[Offer | None]:
        """Yields what a direct connection may come by, where one is asked for and can be carried."""
        if not start.direct_tls:
            carried = connection is not None and connection.family in CARRIED_FAMILIES
            with self.direct.offer(start.direct and carried) as offer:
                yield offer
            return
        with self.direct.offer(self._encrypted < MAX_CONNECTIONS) as offer:
            self._encrypted += offer is not None
            try:
                yield offer
            finally:
                self._encrypted -= offer is not None

    def _kernel(self, attempt_id: str) -> Kernel:
        try:
            return self._runtime.kernel(attempt_id)
        except UnknownAttemptError as error:
            raise unknown_attempt(attempt_id) from error

    @staticmethod
    async def _connected(kernel: Kernel, start: pb.OpenPortStart) -> socket.socket:
        addresses = (*LOOPBACK, start.address) if start.address else LOOPBACK
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                return await kernel.connect(start.port, addresses, start.source)
        except (PortClosedError, TimeoutError) as error:
            port = str(start.port)
            message = f"nothing listens on port {port}"
            raise ServiceError(Code.FAILED_PRECONDITION, ErrorReason.PORT_CLOSED, message, port=port) from error
        except PausedError as error:
            raise ServiceError(Code.FAILED_PRECONDITION, ErrorReason.STATE_FORBIDS, str(error)) from error
        except KernelRuntimeError as error:
            raise _ended(start.attempt_id) from error
        except OSError as error:
            raise _unavailable(f"port {start.port} cannot be reached: {error.strerror}") from error

    @contextlib.contextmanager
    def _until_ended(self, kernel: Kernel, attempt_id: str) -> Iterator[asyncio.Future[None]]:
        """Yields a future that fails when the connection has to end: without,
        it would last for as long as it is held here.
        """
        cut = asyncio.get_running_loop().create_future()

        def over(ended: asyncio.Task[None]) -> None:
            failure = None if ended.cancelled() else ended.exception()
            if not cut.done():
                cut.set_exception(failure or _ended(attempt_id))

        self._cuts.add(cut)
        ending = asyncio.create_task(kernel.wait_ended(), name=f"end of {attempt_id}")
        ending.add_done_callback(over)
        try:
            yield cut
        finally:
            self._cuts.discard(cut)
            # Still called back: it takes an exception that the loop would log otherwise.
            ending.cancel()
            if not cut.cancel():
                # Else the loop would log an exception that was never retrieved.
                cut.exception()

    async def _exchange(
        self,
        connection: socket.socket,
        requests: AsyncIterator[bytes],
        cut: asyncio.Future[None],
        size: PieceSize,
    ) -> AsyncGenerator[bytes, None]:
        """Yields what the connection returns and writes the requests into it; ends when both directions have ended."""
        confirmed = Acknowledgements()
        writing = asyncio.ensure_future(_pass_on(requests, connection, confirmed))
        reading: asyncio.Future[bytes] | None = asyncio.ensure_future(self._piece(connection, size, confirmed))
        try:
            while reading is not None or not writing.done():
                undone = {task for task in (reading, writing) if task is not None and not task.done()}
                await asyncio.wait({cut, *undone}, return_when=asyncio.FIRST_COMPLETED)
                if writing.done():
                    # A step that makes no sense ends the stream.
                    writing.result()
                if reading is not None and reading.done():
                    data, reading = _received(reading), None
                    if data:
                        with self._room.hold(len(data)):
                            yield data_message(data)
                        size.taken(len(data))
                        del data
                        reading = asyncio.ensure_future(self._piece(connection, size, confirmed))
                    else:
                        yield pb.OpenPortResponse(end_of_data=port_pb2.EndOfData()).SerializeToString()
                elif cut.done():
                    cut.result()
            if not writing.result():
                raise _reset()
        finally:
            tasks: list[asyncio.Future[Any]] = [writing] if reading is None else [writing, reading]
            for task in tasks:
                task.cancel()
            # The iterator must not be touched once the call has ended.
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _piece(self, connection: socket.socket, size: PieceSize, confirmed: Acknowledgements) -> bytes:
        """Waits until something is there, and reads it, up to the size of a piece; nothing: there is no more.
        Raises OSError.
        """
        await _readable(connection)
        most = size.next(self._room.limit())
        data = self._available(connection, most)
        if await confirmed.gather(len(data), most):
            data += self._available(connection, max(most - len(data), SMALL))
        return data

    def _available(self, connection: socket.socket, count: int) -> bytes:
        room = self._scratch[:count]
        return bytes(room[: receive_available(connection, room)])


async def _is_taken(offer: Offer, requests: AsyncIterator[bytes], cut: asyncio.Future[None]) -> bool:
    """Returns whether a connection has come to a direct port, rather than that the caller cannot reach it."""
    step = asyncio.ensure_future(_read_next(requests))
    waited: set[asyncio.Future[Any]] = {offer.arrival, step, cut}
    try:
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if cut.done():
            cut.result()
        # Who has sent a step has given up the connection that may have come meanwhile.
        if not step.done():
            return True
        if step.result().WhichOneof("step") != "direct_refused":
            raise invalid("step", "makes no sense here")
    except StopAsyncIteration:
        raise invalid("step", "is required") from None
    finally:
        step.cancel()
        await asyncio.gather(step, return_exceptions=True)
    return False


async def _opened(start: pb.OpenPortStart, offer: Offer | None) -> bytes:
    """Returns the first response, and makes the identity of a direct port that needs one."""
    if offer is not None and start.direct_tls:
        offer.port.identity = await asyncio.to_thread(new_identity)
    opened = pb.PortOpened(direct=None if offer is None else offer.port)
    return pb.OpenPortResponse(opened=opened).SerializeToString()


async def _carry(identity: bytes, inside: socket.socket, outside: socket.socket, moved: Callable[[int], None]) -> None:
    if identity:
        await carry_tls(await accepted(outside, identity, moved), inside)
    else:
        await carry(outside, inside, moved)


async def _exchange_directly(
    offer: Offer, way: Callable[[socket.socket, Callable[[int], None]], Awaitable[None]], cut: asyncio.Future[None]
) -> AsyncGenerator[bytes, None]:
    """Has a `way` serve the direct connection, and yields how many bytes it moves;
    ends when it has, or the caller has.
    """
    moved = reported = 0

    def count(more: int) -> None:
        nonlocal moved
        moved += more

    try:
        outside = offer.admit()
    except OSError as error:
        raise _reset() from error
    carrying = asyncio.ensure_future(way(outside, count))
    try:
        while not carrying.done():
            await asyncio.wait({carrying, cut}, timeout=USE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if cut.done():
                cut.result()
            if moved > reported:
                reported = moved
                yield pb.OpenPortResponse(direct_use=pb.DirectUse(bytes=moved)).SerializeToString()
        carrying.result()
    except OSError as error:
        raise _reset() from error
    finally:
        carrying.cancel()
        await asyncio.gather(carrying, return_exceptions=True)


async def _readable(connection: socket.socket) -> None:
    """Returns when there is something to read, or nothing ever will be."""
    loop = asyncio.get_running_loop()
    readable = loop.create_future()
    loop.add_reader(connection, _wake, readable)
    try:
        await readable
    finally:
        loop.remove_reader(connection)


def _wake(readable: asyncio.Future[None]) -> None:
    if not readable.done():
        readable.set_result(None)


def _received(reading: asyncio.Future[bytes]) -> bytes:
    try:
        return reading.result()
    except OSError as error:
        raise _reset() from error


async def _pass_on(requests: AsyncIterator[bytes], connection: socket.socket, confirmed: Acknowledgements) -> bool:
    """Passes data on until there is no more; False when no more is taken, while what comes back may still be of use."""
    loop = asyncio.get_running_loop()
    try:
        async for message in requests:
            if (data := data_of(message)) is not None:
                await loop.sock_sendall(connection, data)
                confirmed.carried(len(data))
            elif _read(message).WhichOneof("step") == "end_of_data":
                break
            else:
                raise invalid("step", "makes no sense here")
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        return False
    return True


async def _first(requests: AsyncIterator[bytes]) -> pb.OpenPortStart:
    request = await first_request(_read_next(requests), "start")
    if request.start.files:
        if request.start.port or not request.start.direct_tls:
            raise invalid("start.files", "is by a direct port, in place of one inside")
        return request.start
    if request.start.port not in PORTS:
        raise invalid("start.port", f"must be from {PORTS.start} to {PORTS.stop - 1}")
    try:
        ipaddress.ip_address(request.start.address or LOOPBACK[0])
    except ValueError as error:
        raise invalid("start.address", str(error)) from error
    try:
        loopback = ipaddress.IPv4Address(request.start.source or LOOPBACK[0]).is_loopback
    except ValueError as error:
        raise invalid("start.source", str(error)) from error
    if not loopback:
        raise invalid("start.source", "must be in 127.0.0.0/8")
    return request.start


async def _read_next(requests: AsyncIterator[bytes]) -> pb.OpenPortRequest:
    return _read(await anext(requests))


def _read(message: bytes) -> pb.OpenPortRequest:
    try:
        return pb.OpenPortRequest.FromString(message)
    except DecodeError as error:
        raise invalid("step", "cannot be read") from error


def _unavailable(message: str) -> ApiError:
    return ServiceError(Code.UNAVAILABLE, ErrorReason.UNAVAILABLE, message)


def _ended(attempt_id: str) -> ApiError:
    message = f"attempt {attempt_id} does not run"
    return ServiceError(Code.FAILED_PRECONDITION, ErrorReason.STATE_FORBIDS, message)


def _reset() -> ApiError:
    return ServiceError(Code.ABORTED, ErrorReason.CONNECTION_RESET, "the connection was reset in the kernel")
