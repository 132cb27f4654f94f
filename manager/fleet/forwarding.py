"""Streams of users, passed on to the agent that has the kernel: the one pattern for all of them.

Each stream has a connection of its own, so that one that stands still holds up no other. A response is asked of the agent only
when the one before was taken, and a request of the user only when the one before was sent, so that nothing piles up here. When
either side ends, so does the other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.rpc.error_details_pb2 import ErrorInfo
from grpc_status import rpc_status

from manager.fleet.dialer import Dialer
from retinue.agent.v1 import agent_service_pb2_grpc as pb_grpc

UNSENT = "Internal error from Core"
"""What grpc.aio says of a call one of whose requests could not be sent, until it knows how the call ended."""
SETTLE_SECONDS, SETTLE_TRIES = 1.0, 100

Method: TypeAlias = "Callable[[pb_grpc.AgentServiceAsyncStub], Any]"
"""Picks a method of a stub."""


class AgentUnavailableError(Exception):
    """The agent cannot be reached now, or the connection to it broke."""


class AgentRefusedError(Exception):
    """The agent answered with an error; `reason` is empty when it gave none."""

    def __init__(self, code: grpc.StatusCode, reason: str, message: str, metadata: dict[str, str]) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.metadata = metadata


@dataclass(frozen=True, slots=True)
class Place:
    """Where an attempt is."""

    agent_id: str
    address: str
    attempt_id: str


@dataclass(frozen=True, slots=True)
class Forwarder:
    """Opens streams to agents."""

    dialer: Dialer

    async def stream(self, place: Place, method: Method, request: Any) -> AsyncGenerator[Any, None]:
        """The responses to one request. Raises AgentUnavailableError, AgentRefusedError.

        To be closed with `aclosing`: that ends the call.
        """
        with _told(place.agent_id):
            async with self._stub(place) as stub:
                async for response in method(stub)(request):
                    yield response

    async def call(self, place: Place, method: Method, request: Any) -> Any:
        """The response to one request. Raises AgentUnavailableError, AgentRefusedError."""
        with _told(place.agent_id):
            async with self._stub(place) as stub:
                return await method(stub)(request)

    async def exchange(
        self,
        place: Place,
        method: Method,
        requests: AsyncIterator[Any],
    ) -> AsyncGenerator[Any, None]:
        """The responses of a stream in both directions, whose requests are passed on as they come.

        What `requests` raises ends the stream, and is raised here. When there are no more, the agent is told so, and may go on. Raises
        AgentUnavailableError, AgentRefusedError. To be closed with `aclosing`: that ends the call.
        """
        with _told(place.agent_id):
            async with self._stub(place) as stub:
                call = method(stub)()
                writing = asyncio.create_task(_write(call, requests), name=f"requests to {place.agent_id}")
                reading: asyncio.Future[Any] | None = None
                try:
                    while True:
                        reading = reading or asyncio.ensure_future(call.read())
                        waited = {reading} if writing.done() else {reading, writing}
                        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                        if writing.done():
                            writing.result()
                        if not reading.done():
                            continue
                        try:
                            response, reading = reading.result(), None
                        except grpc.aio.AioRpcError as error:
                            raise await _outcome(call, error) from None
                        if response is grpc.aio.EOF:
                            return
                        yield response
                finally:
                    call.cancel()
                    for task in (writing, reading):
                        if task is not None:
                            task.cancel()
                            await asyncio.gather(task, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def _stub(self, place: Place) -> AsyncIterator[pb_grpc.AgentServiceAsyncStub]:
        channel = self.dialer.open(place.agent_id, place.address)
        try:
            stub: pb_grpc.AgentServiceAsyncStub = pb_grpc.AgentServiceStub(channel)
            yield stub
        finally:
            await channel.close()


async def _outcome(call: Any, error: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
    """How the call ended: a request that could no longer be sent hides it until the answer is in, a moment later."""
    for _ in range(SETTLE_TRIES):
        if error.details() != UNSENT:
            break
        await asyncio.sleep(SETTLE_SECONDS / SETTLE_TRIES)
        try:
            await call.read()
        except grpc.aio.AioRpcError as later:
            error = later
    return error


async def _write(call: Any, requests: AsyncIterator[Any]) -> None:
    async for request in requests:
        try:
            await call.write(request)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
            # The call is over; how, its responses tell.
            return
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        await call.done_writing()


@contextlib.contextmanager
def _told(agent_id: str) -> Iterator[None]:
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise translated(agent_id, error) from error


def translated(agent_id: str, error: grpc.aio.AioRpcError) -> AgentUnavailableError | AgentRefusedError:
    """An error of a call to an agent as this module tells it."""
    code, message = error.code(), error.details() or ""
    reason, metadata = "", dict[str, str]()
    status, information = rpc_status.from_call(error), ErrorInfo()
    for detail in status.details if status is not None else ():
        if detail.Unpack(information):
            reason, metadata = information.reason, dict(information.metadata)
    if not reason and (code is grpc.StatusCode.UNAVAILABLE or message == UNSENT):
        return AgentUnavailableError(f"the connection to agent {agent_id} broke")
    return AgentRefusedError(code, reason, message, metadata)
