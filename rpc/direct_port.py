"""Direct ports: connections to one port of a node, or of a manager, each of which a ticket
leads to where a stream of OpenPort does.

SSH encrypts and proves who its peers are, so that its bytes need no stream of ours; the stream stays open beside them,
and with it all that ends connections. Bytes are moved from socket to socket inside Linux.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import socket
from typing import TYPE_CHECKING

from retinue.rpc.enrollment.managers import split_address
from retinue.types.v1 import port_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


TICKET_BYTES = 32
ADMITTED = b"\1"
NONE = "none"
"""Setting of where to listen by which no connection comes directly."""
MAX_WAITING = 256
"""Connections at a time that have not sent their ticket."""
TICKET_SECONDS = 5.0
CARRIED_FAMILIES = frozenset({socket.AF_INET, socket.AF_INET6, socket.AF_UNIX})
"""Families of the sockets between which bytes are moved."""
# More than comes at once, and no part of the memory that users may have in pipes.
_PIPE_BYTES = 1 << 20
_ACCEPT_PAUSE = 0.1
_TURNS = 16


def listen_address(direct_listen: str, listen: str) -> tuple[str, int] | None:
    """Returns where connections come directly, by the setting for that and the one for all others; None: nowhere.
    Raises ValueError.
    """
    if direct_listen == NONE:
        return None
    return split_address(direct_listen) if direct_listen else (split_address(listen)[0], 0)


class DirectPorts:
    """A port for direct connections, and the tickets that it takes; belongs on one event loop."""

    def __init__(self) -> None:
        """Listens nowhere yet, and offers nothing until it does."""
        self._listening: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._waiting: set[asyncio.Task[None]] = set()
        self._offered: dict[bytes, asyncio.Future[socket.socket]] = {}

    def open(self, host: str, port: int) -> int:
        """Listens at an address of this machine; returns the port, which the machine chose if it was 0.
        Raises OSError.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listening = socket.create_server((host, port), family=family, backlog=MAX_WAITING)
        self._listening.setblocking(False)
        self._accepting = asyncio.create_task(self._accept(self._listening), name="direct connections")
        return self.port

    @property
    def port(self) -> int:
        """Returns the number of the port; 0 when nothing is offered."""
        return 0 if self._listening is None else int(self._listening.getsockname()[1])

    async def close(self) -> None:
        """Takes no connection any more; those that were led somewhere stay. Idempotent."""
        tasks = [*self._waiting, *(() if self._accepting is None else (self._accepting,))]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    @contextlib.contextmanager
    def offer(self, wanted: bool) -> Iterator[Offer | None]:
        """Yields what one connection may come by for as long as the block lasts;
        None when it is not wanted, or cannot be.
        """
        if not wanted or not self.port:
            yield None
            return
        ticket, arrival = secrets.token_bytes(TICKET_BYTES), asyncio.get_running_loop().create_future()
        self._offered[ticket] = arrival
        try:
            yield Offer(port_pb2.DirectPort(port=self.port, ticket=ticket), arrival)
        finally:
            self._offered.pop(ticket, None)
            if not arrival.cancel():
                arrival.result().close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listening)
            except OSError:
                # Too many open files, or a client that had closed already.
                await asyncio.sleep(_ACCEPT_PAUSE)
                continue
            if len(self._waiting) >= MAX_WAITING:
                connection.close()
                continue
            task = asyncio.create_task(self._admit(connection), name="direct connection")
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)

    async def _admit(self, connection: socket.socket) -> None:
        """Reads the ticket of a connection, and hands it to the offer of that; closes it without."""
        with contextlib.ExitStack() as stack:
            stack.callback(connection.close)
            try:
                async with asyncio.timeout(TICKET_SECONDS):
                    ticket = await _read_exactly(connection, TICKET_BYTES)
                arrival = self._offered.pop(ticket, None)
                if arrival is None or arrival.done():
                    return
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except (OSError, TimeoutError):
                return
            stack.pop_all()
            arrival.set_result(connection)


class Offer:
    """A direct port that was offered."""

    def __init__(self, port: port_pb2.DirectPort, arrival: asyncio.Future[socket.socket]) -> None:
        """`arrival` is the connection once it has come with the ticket of `port`; it waits to be admitted."""
        self.port = port
        self.arrival = arrival

    def admit(self) -> socket.socket:
        """Answers the connection that has come, and returns it; it belongs to the offer, whose end closes it.
        Raises OSError.
        """
        connection = self.arrival.result()
        # The first byte of a connection: there is room for it.
        connection.send(ADMITTED)
        return connection


async def connect(port: port_pb2.DirectPort, *, on_reached: Callable[[], object] = lambda: None) -> socket.socket:
    """Returns a connection that a direct port has admitted, by any address of its host; it does not block.
    Calls `on_reached` once the host has accepted the connection, before the ticket is answered. Raises OSError.
    """
    loop = asyncio.get_running_loop()
    for family, kind, protocol, _, address in await loop.getaddrinfo(port.host, port.port, type=socket.SOCK_STREAM):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            connection = stack.enter_context(socket.socket(family, kind, protocol))
            connection.setblocking(False)
            await loop.sock_connect(connection, address)
            on_reached()
            await loop.sock_sendall(connection, port.ticket)
            if await loop.sock_recv(connection, len(ADMITTED)) == ADMITTED:
                stack.pop_all()
                return connection
    raise ConnectionRefusedError(f"{port.host} admits no direct connection")


async def _read_exactly(connection: socket.socket, count: int) -> bytes:
    """Returns so many bytes, or fewer when no more come. Raises OSError."""
    connection.setblocking(False)
    read = b""
    while len(read) < count and (piece := await asyncio.get_running_loop().sock_recv(connection, count - len(read))):
        read += piece
    return read


async def carry(
    one: socket.socket, other: socket.socket, moved: Callable[[int], None], back: Callable[[], None] = lambda: None
) -> None:
    """Carries bytes between two sockets that do not block, until both directions have ended;
    `moved` is called with their numbers, and `back` once all that `other` said has gone to `one`.

    Raises OSError when one of them was reset.
    """
    both = [asyncio.ensure_future(_move(*pair, moved)) for pair in ((one, other), (other, one))]
    both[1].add_done_callback(lambda _: back())
    try:
        await asyncio.gather(*both)
    finally:
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)


async def _move(source: socket.socket, sink: socket.socket, moved: Callable[[int], None]) -> None:
    outlet, inlet = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    loop, flags = asyncio.get_running_loop(), os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK
    turns = 0
    try:
        with contextlib.suppress(OSError):
            # Users without rights may have a few large pipes only; others carry as well, in smaller pieces.
            fcntl.fcntl(inlet, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        while True:
            try:
                count = left = os.splice(source.fileno(), inlet, _PIPE_BYTES, flags=flags)
            except BlockingIOError:
                await _ready(loop.add_reader, loop.remove_reader, source)
                continue
            if not count:
                break
            while left:
                try:
                    left -= os.splice(outlet, sink.fileno(), left, flags=flags)
                except BlockingIOError:
                    await _ready(loop.add_writer, loop.remove_writer, sink)
            moved(count)
            turns += 1
            if turns % _TURNS == 0:
                # A connection that is always ready keeps no other from its turn.
                await asyncio.sleep(0)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
    finally:
        os.close(outlet)
        os.close(inlet)


async def _ready(
    watch: Callable[..., object], leave: Callable[[socket.socket], object], connection: socket.socket
) -> None:
    """Returns when a connection is ready for what is watched."""
    ready = asyncio.get_running_loop().create_future()
    watch(connection, _wake, ready)
    try:
        await ready
    finally:
        leave(connection)


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
