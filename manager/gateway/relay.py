"""From the engine to kernels: each browser's access has a socket of its own,
and each connection to it is one to the kernel.

What comes from the engine is read before anything is connected, and then only as fast as the kernel takes it; what the
kernel sends is asked for only when the engine has taken what came before.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from retinue.agent.v1 import agent_service_pb2 as agent_pb
from retinue.manager.agent_rpc.data_sizes import LARGE, SMALL_BYTES, MessageLimit
from retinue.manager.agent_rpc.dialer import Purpose
from retinue.manager.agent_rpc.relay import AgentRefusedError, AgentUnavailableError, Forwarder
from retinue.manager.gateway import sockets
from retinue.manager.gateway.core import pages
from retinue.manager.gateway.core.connections import MAX_CONNECTIONS
from retinue.rpc.core.reasons import ErrorReason
from retinue.rpc.port_data import data_message, data_of
from retinue.types.v1 import port_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from retinue.manager.gateway.access_cache import Access, AccessCache

_log = logging.getLogger(__name__)

# How long a program may continue to send once the engine has ended its side.
_LINGER_SECONDS = 10.0


class _GoneError(Exception):
    """The engine has gone."""


@dataclass(slots=True, eq=False)
class _Listener:
    """The socket of one access."""

    name: str
    listening: socket.socket
    accepting: asyncio.Task[None] | None = None
    connections: set[asyncio.Task[None]] = field(default_factory=set)

    def close(self) -> None:
        """Ends every connection, and takes no other."""
        if self.accepting is not None:
            self.accepting.cancel()
        self.listening.close()
        for connection in self.connections:
            connection.cancel()


class Relay:
    """All sockets; belongs on one event loop."""

    def __init__(self, forwarder: Forwarder, user: int, cache: AccessCache, relayed: Callable[[bytes], None]) -> None:
        """`user` is the one whose connections are taken; `cache` is notified of what is in use,
        and `relayed` gets the access of each connection.
        """
        self._forwarder = forwarder
        self._user = user
        self._cache = cache
        self._relayed = relayed
        self._listeners: dict[bytes, _Listener] = {}
        self._detached: set[_Listener] = set()

    def open(self, key: bytes) -> str:
        """The name of the socket for an access."""
        listener = self._listeners.get(key)
        if listener is None:
            name = sockets.new_name()
            listener = self._listeners[key] = _Listener(name, sockets.listen(name))
            listener.accepting = asyncio.create_task(self._accept(key, listener), name="connections for a port")
        return listener.name

    def detach(self, key: bytes) -> Callable[[], None]:
        """Gives up the socket of an access, so that the next one is another;
        returns what ends every connection to it.
        """
        listener = self._listeners.pop(key, None)
        if listener is None:
            return lambda: None
        self._detached.add(listener)

        def close() -> None:
            self._detached.discard(listener)
            listener.close()

        return close

    async def stop(self) -> None:
        """Ends everything."""
        listeners = [*self._listeners.values(), *self._detached]
        self._listeners.clear()
        tasks = [
            task for listener in listeners for task in (listener.accepting, *listener.connections) if task is not None
        ]
        for listener in listeners:
            listener.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, key: bytes, listener: _Listener) -> None:
        async for local in sockets.accepted(listener.listening, self._user):
            task = asyncio.create_task(self._serve(key, local, len(listener.connections)), name="connection to a port")
            listener.connections.add(task)
            task.add_done_callback(listener.connections.discard)

    async def _serve(self, key: bytes, local: socket.socket, others: int) -> None:
        loop = asyncio.get_running_loop()
        local.setblocking(False)
        with local, contextlib.suppress(OSError, _GoneError):
            first = await loop.sock_recv(local, SMALL_BYTES)
            access = self._cache.now(key)
            if not first or access is None:
                return
            self._relayed(key)
            if others >= MAX_CONNECTIONS:
                await loop.sock_sendall(local, pages.BUSY.message())
                return
            if page := await self._carry(access, local, first):
                await loop.sock_sendall(local, page.message())

    async def _carry(self, access: Access, local: socket.socket, first: bytes) -> pages.Page | None:
        """Carries bytes until one side ends; returns what to say when nothing has come from the kernel."""
        if access.location is None:
            return pages.NOT_RUNNING
        loop = asyncio.get_running_loop()
        port = access.target.port
        start = agent_pb.OpenPortStart(attempt_id=access.location.attempt_id, port=port, address=access.address)
        came = False
        try:
            steps = self._steps(access.hash, start, local, first)
            carried = self._forwarder.exchange(access.location, lambda stub: stub.OpenPort, steps, Purpose.PORT)
            async with aclosing(carried) as responses:
                async for message in responses:
                    if (data := data_of(message)) is not None:
                        came = True
                        self._cache.using(access.hash)
                        await loop.sock_sendall(local, data)
                    elif agent_pb.OpenPortResponse.FromString(message).WhichOneof("step") == "end_of_data":
                        # A program that has ended its side gets no more data: HTTP has no use for that.
                        break
        except AgentUnavailableError as error:
            _log.info("port %d of session %s: %s", port, access.target.session_id, error)
            return None if came else pages.UNREACHABLE
        except AgentRefusedError as error:
            return None if came else _refused(error, port)
        return None if came else pages.BROKEN

    async def _steps(
        self, key: bytes, start: agent_pb.OpenPortStart, local: socket.socket, first: bytes
    ) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        yield agent_pb.OpenPortRequest(start=start).SerializeToString()
        data, limit = first, MessageLimit(LARGE.to_kernel)
        while data:
            self._cache.using(key)
            yield data_message(data)
            limit.count(len(data))
            data = await loop.sock_recv(local, limit.current)
        yield agent_pb.OpenPortRequest(end_of_data=port_pb2.EndOfData()).SerializeToString()
        await asyncio.sleep(_LINGER_SECONDS)
        raise _GoneError


def _refused(error: AgentRefusedError, port: int) -> pages.Page:
    match error.reason:
        case ErrorReason.PORT_CLOSED:
            return pages.closed(port)
        case ErrorReason.STATE_FORBIDS | ErrorReason.NOT_FOUND:
            return pages.NOT_RUNNING
        case ErrorReason.STREAM_LIMIT:
            return pages.BUSY
        case ErrorReason.CONNECTION_RESET:
            return pages.BROKEN
        case _:
            return pages.UNREACHABLE
