"""Connections to ports of a session, and local ports that lead there."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import uuid
from typing import TYPE_CHECKING, Self

from retinue.client.bidi_stream import BidiStream
from retinue.client.errors import REQUEST_ID_KEY, CallError
from retinue.manager.v1 import kernel_service_pb2 as pb
from retinue.rpc.sockets import receive_available
from retinue.types.v1 import port_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from types import TracebackType

    from retinue.manager.v1 import kernel_service_pb2_grpc

CHUNK = 256 * 1024
"""Maximum of bytes in one message."""
SMALL_CHUNK = 32 * 1024
"""The same for a manager that does not say how many it takes."""


class PortConnection:
    """One connection to a port of `main1`: iterate over what comes, up to its end, and write what goes.

    async with session.open_port("web") as connection:
        await connection.write(b"GET / HTTP/1.0\\r\\n\\r\\n")
        await connection.end_data()
        async for data in connection:
            print(data.decode(), end="")

    Leaving the block closes it: what the other side has not taken by then is lost, unless `finish` has waited for it. One task at a time
    reads, and one writes. All methods raise CallError.
    """

    def __init__(self, stub: kernel_service_pb2_grpc.KernelServiceAsyncStub, session: str, port: str) -> None:
        """Sends nothing before the block is entered."""
        self._stub = stub
        self._start = pb.OpenPortStart(session=session, port=port)
        self.port = 0
        self.chunk = SMALL_CHUNK
        """Maximum of bytes in one message, as the manager says."""

    async def __aenter__(self) -> Self:
        """Connects; `port` is set from then on."""
        identity = str(uuid.uuid4())
        call = self._stub.OpenPort(metadata=((REQUEST_ID_KEY, identity),))
        self._exchange = BidiStream[pb.OpenPortRequest, pb.OpenPortResponse](call, identity)
        try:
            await self._exchange.send(pb.OpenPortRequest(start=self._start))
            opened = (await self._exchange.receive()).opened
            self.port = opened.port
            self.chunk = min(opened.max_data_bytes or SMALL_CHUNK, CHUNK)
        except BaseException:
            self._exchange.cancel()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it."""
        self._exchange.cancel()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yields what comes, until the other side ends; reads nothing ahead of the iterating task."""
        while (response := await self._exchange.receive()).WhichOneof("step") == "data":
            yield response.data

    async def write(self, data: bytes | memoryview) -> None:
        """Sends data; returns when it is sent, which may take until the other side reads."""
        for begin in range(0, len(data), self.chunk):
            await self._exchange.send(pb.OpenPortRequest(data=bytes(data[begin : begin + self.chunk])))

    async def end_data(self) -> None:
        """Ends sending; received data may still be read."""
        await self._exchange.send(pb.OpenPortRequest(end_of_data=port_pb2.EndOfData()))

    async def finish(self) -> None:
        """Waits until the other side has taken all that was sent; after `end_data`, and once nothing more comes."""
        await self._exchange.wait_ended()


class LocalPort:
    """A port of this machine whose connections all lead to one port of a session.

    A connection that fails is closed, and reported to `failed`; the others, and later ones, are not affected.
    """

    def __init__(
        self,
        connect: Callable[[], PortConnection],
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        failed: Callable[[CallError], None] = lambda _error: None,
    ) -> None:
        """`connect` makes one connection; port 0 is any that is free."""
        self._connect = connect
        self._wanted = (host, port)
        self._failed = failed
        self._server: asyncio.Server | None = None
        self._carrying: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Listens. Raises OSError."""
        listening = await asyncio.to_thread(_listening, *self._wanted)
        listening.setblocking(False)
        self._listening = listening
        self._accepting = asyncio.create_task(self._accept(), name="local port")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stops listening, and closes all connections."""
        tasks = [self._accepting, *self._carrying]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listening.close()

    @property
    def address(self) -> tuple[str, int]:
        """Returns host and port where it listens."""
        host, port, *_ = self._listening.getsockname()
        return host, port

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                local, _ = await loop.sock_accept(self._listening)
            except OSError:
                # Too many open files, or a client that had closed already.
                await asyncio.sleep(0.1)
                continue
            task = asyncio.create_task(self._carry(local), name="connection of a local port")
            self._carrying.add(task)
            task.add_done_callback(self._carrying.discard)

    async def _carry(self, local: socket.socket) -> None:
        local.setblocking(False)
        local.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with local:
            try:
                async with self._connect() as remote:
                    await _both_ways(local, remote)
            except CallError as error:
                self._failed(error)
                # With a reset, the local peer knows that this was not all.
                local.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            except OSError:
                # The local end has gone: that is its own affair.
                return


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=128)


async def _both_ways(local: socket.socket, remote: PortConnection) -> None:
    """Carries bytes until both directions have ended, or one has failed."""
    out = asyncio.create_task(_out(local, remote))
    back = asyncio.create_task(_back(local, remote))
    try:
        done, _ = await asyncio.wait({out, back}, return_when=asyncio.FIRST_EXCEPTION)
        # Receiving reports best how the call ended.
        for task in sorted(done, key=lambda task: task is not back):
            task.result()
        # Closed now, it would lose what is not yet sent to the other side.
        await remote.finish()
    finally:
        for task in (out, back):
            task.cancel()
        await asyncio.gather(out, back, return_exceptions=True)


async def _out(local: socket.socket, remote: PortConnection) -> None:
    room = memoryview(bytearray(remote.chunk))
    while count := await _filled(local, room):
        try:
            await remote.write(room[:count])
        except CallError:
            # The call has ended; reading from it reports how.
            return
    with contextlib.suppress(CallError):
        await remote.end_data()


async def _filled(local: socket.socket, room: memoryview) -> int:
    """Waits for data and reads as much of it as there is room for; 0: there is no more."""
    count = await asyncio.get_running_loop().sock_recv_into(local, room)
    return receive_available(local, room, count) if count else 0


async def _back(local: socket.socket, remote: PortConnection) -> None:
    loop = asyncio.get_running_loop()
    async for data in remote:
        await loop.sock_sendall(local, data)
    with contextlib.suppress(OSError):
        local.shutdown(socket.SHUT_WR)
