"""Streams of users, passed on to the agent that has the kernel: the one pattern for all of them.

Streams of one purpose share connections, and one that stands still holds up no other. A response is asked of the agent
only when the one before was taken, and a request of the user only when the one before was sent, so that nothing piles
up here. When either side ends, so does the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import grpc
import grpc.aio
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo
from grpc_status import rpc_status

from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.agent.v1 import agent_service_pb2_grpc as pb_grpc
from retinue.manager.agent_rpc.dialer import AgentNotReachedError, Dialer, Purpose
from retinue.rpc import failpoints
from retinue.rpc.bidi_call import UNSENT, BidiCall
from retinue.rpc.cancellation import UnrequestedCancellationError, cancellable
from retinue.rpc.errors import broken_stream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

_log = logging.getLogger(__name__)

OPEN_PORT = f"/{pb.DESCRIPTOR.services_by_name['AgentService'].full_name}/OpenPort"

Method: TypeAlias = "Callable[[pb_grpc.AgentServiceAsyncStub], Any]"
"""Picks a method of a stub."""


class AgentUnavailableError(Exception):
    """The agent cannot be reached now, or the connection to it broke. `cause` is the reason why a new connection is not
    made either; empty when it is. `hostname` is that of the kernel, where a call is about several.
    """

    def __init__(self, message: str, *, agent_id: str = "", cause: str = "") -> None:
        super().__init__(message)
        self.agent_id = agent_id
        self.cause = cause
        self.hostname = ""


class AgentRefusedError(Exception):
    """The agent answered with an error; `reason` is empty when it gave none."""

    def __init__(self, code: grpc.StatusCode, reason: str, message: str, metadata: dict[str, str]) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.metadata = metadata


@dataclass(frozen=True, slots=True)
class AttemptLocation:
    """The location of an attempt."""

    agent_id: str
    address: str
    attempt_id: str


class ActivityListener(Protocol):
    """Notes that a user exchanged something with an attempt."""

    def heard(self, attempt_id: str) -> None:
        """Something was exchanged."""

    def hold(self, attempt_id: str) -> AbstractContextManager[None]:
        """Counts as activity for as long as the block lasts, whether anything is passed on or not."""


@dataclass(frozen=True, slots=True)
class Forwarder:
    """Opens streams to agents. `activity` is notified of all that is passed on;
    without one nothing counts as use of the session.
    """

    dialer: Dialer
    activity: ActivityListener | None = None

    @property
    def without_activity(self) -> Forwarder:
        """The same for looking at a session, which is no use of it."""
        return Forwarder(self.dialer)

    def hold(self, location: AttemptLocation) -> AbstractContextManager[None]:
        """Counts as activity in an attempt for as long as the block lasts, also when nothing is passed on."""
        return contextlib.nullcontext() if self.activity is None else self.activity.hold(location.attempt_id)

    def hear(self, location: AttemptLocation) -> None:
        """Notes that something was exchanged with an attempt."""
        if self.activity is not None:
            self.activity.heard(location.attempt_id)

    async def stream(
        self, location: AttemptLocation, method: Method, request: Any, purpose: Purpose = Purpose.OTHER
    ) -> AsyncGenerator[Any, None]:
        """The responses to one request. Raises AgentUnavailableError, AgentRefusedError.

        To be closed with `aclosing`: that ends the call.
        """
        async with self._translating(location), self._stub(location, purpose) as stub:
            await failpoints.reach("relay.stream", broken_stream)
            call = method(stub)(request)
            try:
                async for response in call:
                    self.hear(location)
                    yield response
            finally:
                call.cancel()

    async def call(self, location: AttemptLocation, method: Method, request: Any) -> Any:
        """The response to one request. Raises AgentUnavailableError, AgentRefusedError."""
        async with self._translating(location), self._stub(location, Purpose.OTHER) as stub:
            self.hear(location)
            await failpoints.reach("relay.call", broken_stream)
            answer = await method(stub)(request)
            await failpoints.reach("relay.answer", broken_stream)
            return answer

    async def exchange(
        self,
        location: AttemptLocation,
        method: Method,
        requests: AsyncIterator[Any],
        purpose: Purpose = Purpose.OTHER,
    ) -> AsyncGenerator[Any, None]:
        """The responses of a stream in both directions, whose requests are passed on as they come.

        What `requests` raises ends the stream, and is raised here. When there are no more, the agent is notified, and
        may continue. Raises AgentUnavailableError, AgentRefusedError. To be closed with `aclosing`: that ends the call.
        """
        async with self._translating(location), self._stub(location, purpose) as stub:
            await failpoints.reach("relay.exchange", broken_stream)
            call = BidiCall[Any, Any](method(stub)())
            writing = asyncio.create_task(
                cancellable(_write, call, requests, lambda: self.hear(location)),
                name=f"requests to {location.agent_id}",
            )
            # The reader of the responses then learns at once that there will be no more.
            writing.add_done_callback(lambda task: call.cancel() if _failed(task) else None)
            try:
                while True:
                    try:
                        response = await call.read()
                    except grpc.aio.AioRpcError:
                        if _failed(writing):
                            writing.result()
                        raise
                    except asyncio.CancelledError:
                        if not _failed(writing) or _is_cancelled():
                            raise
                        writing.result()
                    if response is None:
                        if _failed(writing):
                            writing.result()
                        return
                    self.hear(location)
                    yield response
            finally:
                call.cancel()
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def _stub(self, location: AttemptLocation, purpose: Purpose) -> AsyncIterator[pb_grpc.AgentServiceAsyncStub]:
        async with self.dialer.stream(location.agent_id, location.address, purpose) as channel:
            stub: pb_grpc.AgentServiceAsyncStub = pb_grpc.AgentServiceStub(channel)
            # What it carries is passed on as it is: to read it, only to write it again, costs more than all the rest.
            stub.OpenPort = channel.stream_stream(OPEN_PORT)
            yield stub

    @contextlib.asynccontextmanager
    async def _translating(self, location: AttemptLocation) -> AsyncIterator[None]:
        try:
            yield
        except AgentNotReachedError as error:
            raise unavailable(error) from error
        except UnrequestedCancellationError as error:
            message = f"the requests to agent {location.agent_id} were interrupted"
            raise AgentUnavailableError(message, agent_id=location.agent_id) from error
        except grpc.aio.AioRpcError as error:
            failure = translated(location.agent_id, error)
            if isinstance(failure, AgentUnavailableError):
                found = await self.dialer.explain(location.agent_id, location.address)
                if found is not None:
                    failure = unavailable(AgentNotReachedError(location.agent_id, found))
            raise failure from error


def _failed(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None


def _is_cancelled() -> bool:
    """Returns whether the running task itself is being cancelled, rather than what it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _write(call: BidiCall[Any, Any], requests: AsyncIterator[Any], hear: Callable[[], None]) -> None:
    async for request in requests:
        hear()
        try:
            await failpoints.reach("relay.write", broken_stream)
            await call.write(request)
        except (asyncio.InvalidStateError, grpc.aio.UsageError):
            # The agent has ended the call, and not by an error; reading reports it.
            return
    await call.end_requests()


def unavailable(error: AgentNotReachedError) -> AgentUnavailableError:
    """Returns the error of a dialer as this module reports it."""
    return AgentUnavailableError(str(error), agent_id=error.agent_id, cause=error.found.reason)


def translated(agent_id: str, error: grpc.aio.AioRpcError) -> AgentUnavailableError | AgentRefusedError:
    """An error of a call to an agent, as this module reports it."""
    code, message = error.code(), error.details() or ""
    reason, metadata = "", dict[str, str]()
    status, information, bad_request = rpc_status.from_call(error), ErrorInfo(), BadRequest()
    for detail in status.details if status is not None else ():
        if detail.Unpack(information):
            reason, metadata = information.reason, {**metadata, **information.metadata}
        elif detail.Unpack(bad_request) and bad_request.field_violations:
            violation = bad_request.field_violations[0]
            metadata.setdefault("field", violation.field)
            message = violation.description
    if not reason and (code is grpc.StatusCode.UNAVAILABLE or message == UNSENT):
        # Addresses of the fleet are not sent to the caller.
        _log.info("the connection to agent %s broke: %s", agent_id, error.debug_error_string() or message)
        return AgentUnavailableError(f"the connection to agent {agent_id} broke", agent_id=agent_id)
    return AgentRefusedError(code, reason, message, metadata)
