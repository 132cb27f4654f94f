"""The Sync stream in memory: messages as bytes, in order, few of them unread at a time;
and what may happen to each on its way.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any, TypeAlias

import grpc
import grpc.aio

from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.rpc.core.errors import ApiError
from retinue.rpc.errors import grpc_code

ROOM = 8
"""Messages of one direction that wait unread before their sender has to wait: the window of a stream."""
SLOW_SECONDS = 3.0

# An agent, as its servicer serves one stream.
Serve: TypeAlias = Callable[[AsyncIterator[pb.SyncRequest]], AsyncGenerator[pb.SyncResponse, None]]


class Fault(enum.Enum):
    """What happens to a message. The last two never happen within a stream of gRPC;
    they stand for peers with a defect.
    """

    BREAK_BEFORE = "the connection breaks, and the message is lost"
    BREAK_AFTER = "the connection breaks once the message is read"
    SLOW = "the message, and all behind it, takes long"
    TWICE = "the message comes twice"
    SWAP = "the message comes behind the next one"


class BrokenStreamError(Exception):
    """The stream has ended."""


class _Pipe:
    """One direction of a stream."""

    def __init__(self, fault: Callable[[], Fault | None], cut: Callable[[], None]) -> None:
        self._fault = fault
        self._cut = cut
        self._unread: deque[tuple[bytes, float]] = deque()
        self._held: bytes | None = None
        self._cut_when_read = False
        self._changed = asyncio.Event()
        self.ended = False
        self.closed = False

    async def send(self, message: bytes) -> None:
        """Returns once there is room for it. Raises BrokenStreamError."""
        while len(self._unread) >= ROOM and not self.closed:
            await self._wait()
        if self.closed:
            raise BrokenStreamError
        match self._fault():
            case Fault.BREAK_BEFORE:
                self._cut()
                return
            case Fault.SWAP if self._held is None:
                self._held = message
                return
            case Fault.TWICE:
                self._unread.append((message, 0.0))
            case Fault.BREAK_AFTER:
                self._cut_when_read = True
            case Fault.SLOW:
                self._unread.append((message, SLOW_SECONDS))
                self._changed.set()
                return
        self._unread.append((message, 0.0))
        if self._held is not None:
            self._unread.append((self._held, 0.0))
            self._held = None
        self._changed.set()

    async def receive(self) -> bytes | None:
        """Returns the next message; None when there will be no more."""
        while not self._unread:
            if self._cut_when_read:
                self._cut()
            if self.closed or self.ended:
                return None
            await self._wait()
        message, delay = self._unread[0]
        if delay:
            await asyncio.sleep(delay)
        if self.closed:
            return None
        self._unread.popleft()
        self._changed.set()
        return message

    def end(self) -> None:
        """Lets what was sent be read, and nothing else be sent."""
        self.ended = True
        self._changed.set()

    def close(self) -> None:
        """Drops what was not read."""
        self.closed = True
        self._unread.clear()
        self._changed.set()

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class Stream:
    """One call of Sync: an agent that serves it, and the manager's end, which is used like the call of a gRPC stub."""

    def __init__(
        self, serve: Serve, requests: Callable[[], Fault | None], responses: Callable[[], Fault | None]
    ) -> None:
        self._requests = _Pipe(requests, self.cut)
        self._responses = _Pipe(responses, self.cut)
        self._error: grpc.aio.AioRpcError | None = None
        # What was written and read at the manager's end, for assertions.
        self.written: list[pb.SyncRequest] = []
        self.received: list[pb.SyncResponse] = []
        self.failure: Exception | None = None
        self._when_ended: list[Callable[[Stream], None]] = []
        self._serving = asyncio.create_task(self._serve(serve), name="agent's end of a stream")

    @property
    def ended(self) -> bool:
        """Returns whether the call has a status."""
        return self._error is not None or self._responses.ended

    @property
    def status(self) -> tuple[grpc.StatusCode, str]:
        """Returns how the call ended."""
        return (self._error.code(), self._error.details() or "") if self._error else (grpc.StatusCode.OK, "")

    async def write(self, request: pb.SyncRequest) -> None:
        """Sends a message to the agent."""
        if self._error is not None:
            raise self._error
        if self._responses.ended:
            raise asyncio.InvalidStateError("the call has ended")
        try:
            await self._requests.send(request.SerializeToString())
        except BrokenStreamError:
            if self._error is None:
                raise asyncio.InvalidStateError("the call has ended") from None
            raise self._error from None
        self.written.append(request)

    async def __aiter__(self) -> AsyncIterator[pb.SyncResponse]:
        """Yields the agent's messages."""
        while (data := await self._responses.receive()) is not None:
            message = pb.SyncResponse.FromString(data)
            self.received.append(message)
            yield message
        if self._error is not None:
            raise self._error

    def add_done_callback(self, callback: Callable[[Stream], None]) -> None:
        """Has a function called when the call has a status."""
        self._when_ended.append(callback)

    def done(self) -> bool:
        """Returns whether the call has a status."""
        return self.ended

    async def code(self) -> grpc.StatusCode:
        """Returns the code of the status, once there is one."""
        if not self.ended:
            await self.wait_served()
        return self.status[0]

    async def details(self) -> str:
        """Returns the message of the status of a call that has ended."""
        return self.status[1]

    async def initial_metadata(self) -> grpc.aio.Metadata:
        """Returns what there is of it."""
        return grpc.aio.Metadata()

    trailing_metadata = initial_metadata

    def cancel(self) -> None:
        """Ends the call at the manager's end."""
        self._break(grpc.StatusCode.CANCELLED, "cancelled")

    def cut(self) -> None:
        """Breaks the connection."""
        self._break(grpc.StatusCode.UNAVAILABLE, "the connection broke")

    async def wait_served(self) -> None:
        """Returns once the agent's end has closed."""
        await asyncio.wait({self._serving})

    def _break(self, code: grpc.StatusCode, details: str) -> None:
        if not self.ended:
            self._error = _rpc_error(code, details)
        self._requests.close()
        self._responses.close()
        self._serving.cancel()
        self._tell_end()

    async def _serve(self, serve: Serve) -> None:
        try:
            async with contextlib.aclosing(serve(self._incoming())) as responses:
                async for response in responses:
                    await self._responses.send(response.SerializeToString())
        except BrokenStreamError:
            return
        except ApiError as error:
            self._error = self._error or _rpc_error(grpc_code(error.code), f"{error.reason}: {error}")
        except Exception as error:  # noqa: BLE001  # as a server does; tests look at it
            self.failure = error
            self._error = self._error or _rpc_error(grpc.StatusCode.INTERNAL, repr(error))
        finally:
            self._requests.close()
            self._responses.end()
            self._tell_end()

    def _tell_end(self) -> None:
        for callback in self._when_ended:
            callback(self)

    async def _incoming(self) -> AsyncIterator[pb.SyncRequest]:
        while (data := await self._requests.receive()) is not None:
            yield pb.SyncRequest.FromString(data)


class Wire:
    """The way from managers to one agent. Used as the dialer of a link; counts the messages of all streams together."""

    def __init__(self, serve: Serve, faults: Mapping[tuple[str, int], Fault] | None = None) -> None:
        """`faults` are those of the messages by direction, "down" to the agent or "up",
        and number in that direction from 0.
        """
        self._serve = serve
        self._faults = faults or {}
        self._counts = {"down": 0, "up": 0}
        self.streams: list[Stream] = []

    def heal(self) -> None:
        """Lets nothing happen to messages any more, and ends what is open, as it may have lost some."""
        self._faults = {}
        self.cut()

    def cut(self) -> None:
        """Breaks all connections."""
        for stream in self.streams:
            stream.cut()

    def call(self) -> Stream:
        """Opens a stream."""
        stream = Stream(self._serve, lambda: self._next("down"), lambda: self._next("up"))
        self.streams.append(stream)
        return stream

    def open(self, agent_id: str, address: str) -> Any:
        """Returns a channel to the agent, as a dialer does."""
        del agent_id, address
        return _Channel(self)

    def _next(self, direction: str) -> Fault | None:
        number = self._counts[direction]
        self._counts[direction] += 1
        return self._faults.get((direction, number))


class _Channel:
    """As much of a channel as a stub of the AgentService takes for Sync."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._calls: list[Stream] = []

    def stream_stream(self, method: str, **_: Any) -> Callable[[], Stream]:
        def call() -> Stream:
            assert method.endswith("/Sync")
            self._calls.append(self._wire.call())
            return self._calls[-1]

        return call

    unary_unary = unary_stream = stream_unary = stream_stream

    async def close(self) -> None:
        for call in self._calls:
            call.cancel()


def _rpc_error(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)
