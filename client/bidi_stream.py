"""Sends and receives on one bidirectional stream, and keeps the status that it ended with."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

import grpc
import grpc.aio

from retinue.client.errors import CallError, Unavailable, UsageError
from retinue.client.rpc_errors import from_rpc
from retinue.rpc.stream_status import UNSENT, StreamStatus

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


class BidiStream(Generic[_Request, _Response]):
    """One call whose requests and responses are both streams; one task at a time reads, and any number send.

    When a server ends a call while requests are being sent, one of these cannot be sent. grpc.aio then takes the call
    for failed, whatever the server said: `read()` gives no more of the responses that had come before, and the status
    is one of its own. So the responses are iterated over, which continues to the end, and the status is StreamStatus's.
    """

    def __init__(self, call: grpc.aio.StreamStreamCall[_Request, _Response], identity: str) -> None:
        """`identity` is the id of the request that the call was made with."""
        self._call = call
        self._identity = identity
        self._responses = call.__aiter__()
        self._reading = asyncio.Lock()
        # grpc.aio ends a call with an error of its own when a request is written before the one before was taken.
        self._writing = asyncio.Lock()
        self._kept: deque[_Response] = deque()
        self._status = StreamStatus(call)
        self.ended_well = False
        """Returns whether the server ended the call without an error."""

    def cancel(self) -> None:
        """Ends the call, if it has not ended."""
        self._call.cancel()

    async def send(self, request: _Request) -> None:
        """Sends a request; returns once it is sent, which may take until the server reads.
        Raises CallError, as `receive`.
        """
        try:
            async with self._writing:
                await self._call.write(request)
        except grpc.aio.AioRpcError:
            pass
        except asyncio.InvalidStateError as error:
            if not self._call.done():
                raise UsageError("the end of the requests was sent already") from error
        else:
            return
        await self._keep_rest()
        raise await self._outcome()

    async def end_requests(self) -> None:
        """Ends the requests; responses may still come."""
        try:
            async with self._writing:
                await self._call.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            # The call has ended; receiving reports how.
            return

    async def receive(self) -> _Response:
        """Returns the next response. Raises how the call ended: CallError,
        which is Unavailable when the server ended it without an error.
        """
        async with self._reading:
            if self._kept:
                return self._kept.popleft()
            try:
                return await anext(self._responses)
            except (StopAsyncIteration, grpc.aio.AioRpcError):
                pass
        raise await self._outcome()

    async def wait_ended(self) -> None:
        """Waits until the server ends the call, discarding responses that nothing reads.
        Raises CallError unless it ended well.
        """
        try:
            while True:
                await self.receive()
        except CallError:
            if not self.ended_well:
                raise

    async def _keep_rest(self) -> None:
        """Reads what the server had sent before it ended the call: no more than fits into the connection's window."""
        async with self._reading:
            try:
                async for response in self._responses:
                    self._kept.append(response)
            except grpc.aio.AioRpcError:
                return

    async def _outcome(self) -> CallError:
        status = await self._status.wait()
        if status.details() == UNSENT:
            return self._unavailable("the connection broke")
        self.ended_well = status.code() is grpc.StatusCode.OK
        if self.ended_well:
            return self._unavailable("the server ended the stream")
        return from_rpc(status, self._identity)

    def _unavailable(self, message: str) -> Unavailable:
        return Unavailable(message, code=grpc.StatusCode.UNAVAILABLE, request_id=self._identity)
