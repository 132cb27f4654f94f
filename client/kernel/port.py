"""Connections to ports of a session, and local ports that lead there."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import os
import socket
import uuid
from typing import TYPE_CHECKING, Protocol, Self, TypeAlias

from retinue.client.errors import CallError
from retinue.client.transport.bidi_stream import BidiStream
from retinue.manager.v1 import kernel_service_pb2 as pb
from retinue.rpc import memory
from retinue.rpc.acknowledgements import Acknowledgements
from retinue.rpc.port_data import Bytes, data_message, data_of
from retinue.rpc.sockets import receive_available
from retinue.types.v1 import file_pb2, port_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    import grpc.aio

MAX_MESSAGE_BYTES = 512 * 1024
"""Maximum of data in one message, whatever the manager takes."""
OPEN_PORT = f"/{pb.DESCRIPTOR.services_by_name['KernelService'].full_name}/OpenPort"
Method: TypeAlias = "grpc.aio.StreamStreamMultiCallable[bytes, bytes]"
"""The method OpenPort with serialised messages."""
PIPE = 1 << 20
"""Bytes that a pipe of `carry_pipes` holds, if it may."""
DEFAULT_MESSAGE_BYTES = 32 * 1024
"""The same for a manager that does not say how many it takes."""


def open_port_method(channel: grpc.aio.Channel) -> Method:
    """Returns the method OpenPort of a channel."""
    return channel.stream_stream(OPEN_PORT)


class PortConnection:
    """One connection to a port of `main1`: iterate over what comes, up to its end, and write what goes.

    async with session.open_port("web") as connection:
        await connection.write(b"GET / HTTP/1.0\\r\\n\\r\\n")
        await connection.end_data()
        async for data in connection:
            print(data.decode(), end="")

    Leaving the block closes it: what the other side has not taken by then is lost, unless `finish` has waited for it.
    One task at a time reads, and one writes. All methods raise CallError.
    """

    def __init__(
        self,
        open_port: Method,
        session: str,
        port: str,
        hostname: str = "",
        *,
        direct: bool = False,
        files: file_pb2.FileAccess.ValueType = file_pb2.FILE_ACCESS_UNSPECIFIED,
    ) -> None:
        """Sends nothing before the block is entered. With `direct`, `direct_port` may be set then: see
        `direct_connection`. With `files`, that leads to these; `port` is empty.
        """
        self._open_port = open_port
        self._start = pb.OpenPortStart(session=session, port=port, hostname=hostname, direct=direct, files=files)
        self._direct_port: port_pb2.DirectPort | None = None
        self._relay_port: port_pb2.DirectPort | None = None
        self.port: int = 0
        self._small = self._large = DEFAULT_MESSAGE_BYTES
        self._large_after = self._sent = 0

    async def __aenter__(self) -> Self:
        """Connects; `port` is set from then on."""
        identity = str(uuid.uuid4())
        self._exchange = BidiStream[bytes, bytes](self._open_port, identity)
        try:
            await self._exchange.send(pb.OpenPortRequest(start=self._start).SerializeToString())
            opened = pb.OpenPortResponse.FromString(await self._exchange.receive()).opened
            self.port = opened.port
            self._direct_port = opened.direct if opened.HasField("direct") else None
            self._relay_port = opened.relay if opened.HasField("relay") else None
            self._small = min(max(opened.max_data_bytes, 0) or DEFAULT_MESSAGE_BYTES, MAX_MESSAGE_BYTES)
            self._large = min(max(opened.large_data_bytes, self._small), MAX_MESSAGE_BYTES)
            self._large_after = opened.large_data_after_bytes
        except BaseException:
            self._exchange.cancel()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it."""
        self._exchange.cancel()

    @property
    def direct_port(self) -> port_pb2.DirectPort | None:
        """Returns the port of the node that carries the data, unless it is refused;
        None for one that carries it itself.
        """
        return self._direct_port

    @property
    def relay_port(self) -> port_pb2.DirectPort | None:
        """Returns the port of the manager that leads there too, whose host is the one that
        the manager was reached at.
        """
        return self._relay_port

    async def refuse_direct(self) -> None:
        """Has the data carried by this connection after all."""
        self._direct_port = self._relay_port = None
        await self._exchange.send(pb.OpenPortRequest(direct_refused=port_pb2.DirectRefused()).SerializeToString())

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yields what comes, until the other side ends; reads nothing ahead of the iterating task."""
        async for data in self.views():
            yield bytes(data)

    async def views(self) -> AsyncIterator[memoryview]:
        """Yields what iterating yields, without a copy."""
        while (data := data_of(await self._exchange.receive())) is not None:
            yield data

    async def write(self, data: bytes | memoryview) -> None:
        """Sends data; returns when it is sent, which may take until the other side reads."""
        view, begin = memoryview(data), 0
        while begin < len(view):
            piece = view[begin : begin + self.max_message]
            await self._exchange.send(data_message(piece))
            begin += len(piece)
            self._sent += len(piece)

    @property
    def max_message(self) -> int:
        """Returns how many bytes the next message may hold; once much has been sent, it may hold more."""
        return self._large if self._sent >= self._large_after else self._small

    async def end_data(self) -> None:
        """Ends sending; received data may still be read."""
        await self._exchange.send(pb.OpenPortRequest(end_of_data=port_pb2.EndOfData()).SerializeToString())

    async def finish(self) -> None:
        """Waits until the other side has taken all that was sent; after `end_data`, and once nothing more comes."""
        await self._exchange.wait_ended()


class Remote(Protocol):
    """A connection to a port, of whatever kind: one task at a time reads, and one writes.
    All methods raise CallError.
    """

    @property
    def max_message(self) -> int:
        """Returns how many bytes are best written at once."""

    def views(self) -> AsyncIterator[memoryview]:
        """Yields what comes, until the other side ends; each is good until the next one is asked for."""

    async def write(self, data: bytes | memoryview) -> None:
        """Sends data."""

    async def end_data(self) -> None:
        """Ends sending."""

    async def finish(self) -> None:
        """Waits until the other side has taken all that was sent."""


class LocalPort:
    """A port of this machine whose connections all lead to one port of a session.

    A connection that fails is closed, and reported to `failed`; the others, and later ones, are not affected.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[Remote]],
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
                    await carry_socket(local, remote)
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


async def carry_socket(local: socket.socket, remote: Remote) -> None:
    """Carries what comes from a socket, which does not block, to a port, and what comes back to it.
    Raises CallError, OSError.
    """
    confirmed = Acknowledgements()
    read = functools.partial(_filled, local, confirmed)
    await _both_ways(read, functools.partial(_send, local), remote, confirmed)


async def carry_pipes(source: int, sink: int, remote: PortConnection) -> None:
    """Carries what comes from one pipe of this process to a port, and what comes back to another one,
    which is closed at the end.

    Both are descriptors, and do not block from then on. Raises CallError, OSError.
    """
    for descriptor in (source, sink):
        os.set_blocking(descriptor, False)
        # The usual 64 KiB are a switch of processes each; unprivileged users may have a few large pipes only.
        with contextlib.suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE)
    memory.reuse_freed()
    confirmed = Acknowledgements()
    read = functools.partial(_read_pipe, source, confirmed)
    await _both_ways(read, functools.partial(_write_pipe, sink), remote, confirmed)


async def _read_pipe(descriptor: int, confirmed: Acknowledgements, room: memoryview) -> int:
    loop = asyncio.get_running_loop()
    while True:
        try:
            count = os.readv(descriptor, [room])
            if await confirmed.gather(count, len(room)):
                with contextlib.suppress(BlockingIOError):
                    count += os.readv(descriptor, [room[count:]])
        except BlockingIOError:
            ready = loop.create_future()
            loop.add_reader(descriptor, _wake, ready)
        else:
            return count
        try:
            await ready
        finally:
            loop.remove_reader(descriptor)


async def _write_pipe(descriptor: int, data: Bytes) -> None:
    loop = asyncio.get_running_loop()
    left = memoryview(data)
    if not left:
        os.close(descriptor)
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:
            ready = loop.create_future()
            loop.add_writer(descriptor, _wake, ready)
        else:
            continue
        try:
            await ready
        finally:
            loop.remove_writer(descriptor)


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


async def _both_ways(
    read: Callable[[memoryview], Awaitable[int]],
    write: Callable[[Bytes], Awaitable[None]],
    remote: Remote,
    confirmed: Acknowledgements,
) -> None:
    """Carries bytes until both directions have ended, or one has failed; `confirmed` counts the bytes that came back.

    `read` waits for data and returns how much it is, 0 when there is no more;
    `write` of nothing says that there is no more.
    """
    out = asyncio.create_task(_out(read, remote))
    back = asyncio.create_task(_back(write, remote, confirmed))
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


async def _out(read: Callable[[memoryview], Awaitable[int]], remote: Remote) -> None:
    room = memoryview(bytearray(MAX_MESSAGE_BYTES))
    while count := await read(room[: remote.max_message]):
        try:
            await remote.write(room[:count])
        except CallError:
            # The call has ended; reading from it reports how.
            return
    with contextlib.suppress(CallError):
        await remote.end_data()


async def _filled(local: socket.socket, confirmed: Acknowledgements, room: memoryview) -> int:
    """Waits for data and reads as much of it as there is room for; 0: there is no more."""
    count = await asyncio.get_running_loop().sock_recv_into(local, room)
    if not count:
        return 0
    await confirmed.gather(count, len(room))
    return receive_available(local, room, count)


async def _send(local: socket.socket, data: Bytes) -> None:
    if data:
        await asyncio.get_running_loop().sock_sendall(local, data)
    else:
        local.shutdown(socket.SHUT_WR)


async def _back(
    write: Callable[[Bytes], Awaitable[None]],
    remote: Remote,
    confirmed: Acknowledgements,
) -> None:
    async for data in remote.views():
        await write(data)
        confirmed.carried(len(data))
    with contextlib.suppress(OSError):
        await write(b"")
