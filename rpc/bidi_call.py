"""Sends and receives on a call whose requests and responses are both streams, and knows how the server ended it.

A request on its way when the server ends a call cannot be sent. grpc.aio (https://github.com/grpc/grpc/issues/36066)
then takes the call for failed, whatever the server said: the status is one of its own, INTERNAL with the details
UNSENT, until the server's comes, or for good if that came first; and `read` returns no more of the responses that had
come before. Whether a request is on its way is chance, so nothing uses such a call but `BidiCall`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import grpc
import grpc.aio

if TYPE_CHECKING:
    from collections.abc import Coroutine

UNSENT = "Internal error from Core"
"""Details that grpc.aio gives a call one of whose requests could not be sent."""
SETTLE_SECONDS = 30.0
"""Maximum of time from the last response to the status behind it, which comes at once: only a call that
a defect of gRPC leaves without one takes so long.
"""
FIRST_PAUSE, LAST_PAUSE = 0.001, 0.1
"""Between two looks for it: a call tells of its first status only."""

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")
_Value = TypeVar("_Value")


class BidiCall(Generic[_Request, _Response]):
    """One call, which must be wrapped when it is made. Any tasks read and write;
    each response goes to one of them, and requests are sent one after the other.
    """

    def __init__(self, call: grpc.aio.StreamStreamCall[_Request, _Response]) -> None:
        """Takes over the call."""
        self._call = call
        # An iterator continues to the end of the responses, also behind a request that could not be sent.
        self._responses = call.__aiter__()
        self._reading = asyncio.Lock()
        # grpc.aio ends a call with an error of its own when a request is written before the one before was taken.
        self._writing = asyncio.Lock()
        self._kept: deque[_Response] = deque()
        self._begun, self._ended = False, asyncio.Event()
        self._status: grpc.aio.AioRpcError | None = None
        call.add_done_callback(self._record)

    def cancel(self) -> None:
        """Ends the call, if it has not ended."""
        self._call.cancel()

    def done(self) -> bool:
        """Returns whether the call has ended."""
        return self._call.done()

    async def write(self, request: _Request) -> None:
        """Sends a request; returns once it is sent, which may take until the server reads.

        Raises AioRpcError with the server's status when the server has ended the call, and asyncio.InvalidStateError
        when it did so without an error, or when the end of the requests was sent. What the server had sent before can
        be read all the same: it is no more than fits into the window of the stream.
        """
        try:
            async with self._writing:
                await (self._call.write(request) if self._begun else self._begin(request))
        except grpc.aio.AioRpcError:
            pass
        except asyncio.InvalidStateError:
            if not self._call.done():
                raise
        else:
            return
        # The status comes behind the responses.
        await self._keep_rest()
        status = await self.status()
        if status.code() is grpc.StatusCode.OK:
            raise asyncio.InvalidStateError("the server has ended the call")
        raise status

    async def end_requests(self) -> None:
        """Ends the requests; responses may still come."""
        # If the call has ended, reading reports how.
        with contextlib.suppress(grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError):
            async with self._writing:
                await self._call.done_writing()

    async def read(self) -> _Response | None:
        """Returns the next response; None when the server has ended the call without an error.
        Raises AioRpcError with the server's status.
        """
        async with self._reading:
            if self._kept:
                return self._kept.popleft()
            with contextlib.suppress(StopAsyncIteration, grpc.aio.AioRpcError):
                return await anext(self._responses)
        status = await self.status()
        if status.code() is grpc.StatusCode.OK:
            return None
        raise status

    async def status(self) -> grpc.aio.AioRpcError:
        """Returns the status once the responses have been read: the server's, or the library's if the connection broke;
        with the details UNSENT only if it never says.
        """
        # Also waits for the first status, if there is none yet.
        await self._call.code()
        loop, pause = asyncio.get_running_loop(), FIRST_PAUSE
        bound = loop.time() + SETTLE_SECONDS
        while self._status is None and loop.time() < bound:
            await asyncio.sleep(pause)
            self._record(self._call)
            pause = min(pause * 2, LAST_PAUSE)
        return self._status or _status(self._call)

    async def _begin(self, request: _Request) -> None:
        """Sends the first request. It is sent once the call has begun; grpc.aio's `write` waits for that for ever when
        the call is cancelled before. Raises asyncio.CancelledError for such a call.
        """
        writing = asyncio.ensure_future(self._call.write(request))
        ended = asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait((writing, ended), return_when=asyncio.FIRST_COMPLETED)
            # A call that has ended otherwise says so to who writes.
            if not writing.done() and self._call.cancelled():
                raise asyncio.CancelledError
            await writing
        finally:
            writing.cancel()
            ended.cancel()
        self._begun = True

    async def _keep_rest(self) -> None:
        async with self._reading:
            with contextlib.suppress(grpc.aio.AioRpcError):
                async for response in self._responses:
                    self._kept.append(response)

    def _record(self, call: Any) -> None:
        """Keeps the first status that is not the library's for a request that could not be sent."""
        self._ended.set()
        if self._status is None and _result(call.details()) != UNSENT:
            self._status = _status(call)


def _status(call: Any) -> grpc.aio.AioRpcError:
    before, after = _result(call.initial_metadata()), _result(call.trailing_metadata())
    return grpc.aio.AioRpcError(_result(call.code()), before, after, _result(call.details()))


def _result(coroutine: Coroutine[Any, Any, _Value]) -> _Value:
    """Returns the result of a coroutine that has nothing to wait for, as the call has ended."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        value: _Value = done.value
        return value
    coroutine.close()
    raise AssertionError("a call that has ended knows its status")
