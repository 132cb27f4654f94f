"""Sends and receives on one bidirectional stream, and keeps the status that it ended with."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

import grpc
import grpc.aio

from retinue.client.closing import closing_is_an_error
from retinue.client.errors import CallError, Unavailable, UsageError
from retinue.client.rpc_errors import from_rpc
from retinue.rpc.bidi_call import UNSENT, BidiCall

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


class BidiStream(Generic[_Request, _Response]):
    """One call whose requests and responses are both streams, with the errors of the library; one task at a time reads,
    and any number send.
    """

    def __init__(self, call: grpc.aio.StreamStreamCall[_Request, _Response], identity: str) -> None:
        """`identity` is the id of the request that the call was made with."""
        self._call = BidiCall(call)
        self._identity = identity
        self.ended_well: bool = False
        """Returns whether the server ended the call without an error."""

    def cancel(self) -> None:
        """Ends the call, if it has not ended."""
        self._call.cancel()

    async def send(self, request: _Request) -> None:
        """Sends a request; returns once it is sent, which may take until the server reads.
        Raises CallError, as `receive`, and ClientClosed.
        """
        try:
            with closing_is_an_error():
                await self._call.write(request)
        except grpc.aio.AioRpcError as status:
            raise self._failure(status) from None
        except asyncio.InvalidStateError as error:
            if not self._call.done():
                raise UsageError("the end of the requests was sent already") from error
            raise self._end() from None

    async def end_requests(self) -> None:
        """Ends the requests; responses may still come."""
        await self._call.end_requests()

    async def receive(self) -> _Response:
        """Returns the next response. Raises how the call ended: CallError,
        which is Unavailable when the server ended it without an error; ClientClosed once it was ended here.
        """
        try:
            with closing_is_an_error():
                response = await self._call.read()
        except grpc.aio.AioRpcError as status:
            raise self._failure(status) from None
        if response is None:
            raise self._end()
        return response

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

    def _failure(self, status: grpc.aio.AioRpcError) -> CallError:
        if status.details() == UNSENT:
            return self._unavailable("the connection broke")
        return from_rpc(status, self._identity)

    def _end(self) -> CallError:
        self.ended_well = True
        return self._unavailable("the server ended the stream")

    def _unavailable(self, message: str) -> Unavailable:
        return Unavailable(message, code=grpc.StatusCode.UNAVAILABLE, request_id=self._identity)
