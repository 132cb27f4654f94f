"""Sends and receives on one bidirectional stream, and keeps the status that it ended with."""

from __future__ import annotations

import asyncio
from typing import Any, Generic, TypeVar

import grpc
import grpc.aio

from retinue.client.errors import REQUEST_ID_KEY, CallError, Unavailable, UsageError
from retinue.client.transport.opening import Opening
from retinue.client.transport.rpc_errors import from_rpc
from retinue.rpc.bidi_call import UNSENT, BidiCall

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


class BidiStream(Generic[_Request, _Response]):
    """One call whose requests and responses are both streams, with the errors of the library; one task at a time reads,
    and any number send.
    """

    def __init__(self, method: Any, identity: str) -> None:
        """Calls a method of a stub; `identity` is the id of the request."""
        self._call = BidiCall[_Request, _Response](method(metadata=((REQUEST_ID_KEY, identity),)))
        self._identity = identity
        self._opening = Opening(method, self._call.cancel, identity)
        self.ended_well: bool = False
        """Returns whether the server ended the call without an error."""

    def cancel(self) -> None:
        """Ends the call, if it has not ended."""
        self._opening.end()
        self._call.cancel()

    async def send(self, request: _Request) -> None:
        """Sends a request; returns once it is sent, which may take until the server reads.
        Raises CallError, as `receive`, and ClientClosed.
        """
        try:
            with self._opening.errors():
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
            with self._opening.errors():
                response = await self._call.read()
        except grpc.aio.AioRpcError as status:
            raise self._failure(status) from None
        finally:
            self._opening.end()
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
