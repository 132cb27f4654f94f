"""Guards the one object that touches a call of grpc.aio.

grpc.aio frees a call when the task that serves it ends. Its context stays, and dereferences a null pointer from then
on: the process dies of a later `peer`, `auth_context`, read or write. So nothing but `OpenCall` holds a context,
and it drops the context when its call ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
import grpc.aio
from grpc_status import rpc_status

from retinue.rpc.errors import status_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from retinue.rpc.core.errors import ApiError


class CallEndedError(Exception):
    """The call has ended: nothing can be read from it or written to it any more."""


class OpenCall:
    """The call itself for as long as its task runs: the only holder of its context."""

    def __init__(self, context: Any, trailers: tuple[tuple[str, str], ...] = ()) -> None:
        """Takes the context of a call that cannot have ended yet, and metadata that is sent at its end,
        however that comes.
        """
        self._context = context
        self._trailers = trailers
        if trailers:
            context.set_trailing_metadata(trailers)
        self.code: grpc.StatusCode | None = None
        """The status that the call was aborted with."""

    @contextlib.contextmanager
    def until_ended(self) -> Iterator[None]:
        """Drops the call at the end of the block, which must be that of its task."""
        try:
            yield
        except CallEndedError as error:
            # To the library and to logs, a caller who disconnected is a call that was cancelled,
            # wherever that is noticed first.
            raise asyncio.CancelledError from error
        finally:
            self._context = None

    async def write(self, response: Any) -> None:
        """Sends a response; returns when there is room for the next. Raises CallEndedError."""
        context = self._held()
        try:
            await context.write(response)
        except grpc.aio.BaseError as error:
            raise CallEndedError from error

    async def abort(self, code: grpc.StatusCode, details: str, metadata: tuple[tuple[str, Any], ...] = ()) -> NoReturn:
        """Ends the call with a status. Raises grpc.aio.AbortError, which its task has to end with,
        or CallEndedError.
        """
        context = self._held()
        self.code = code
        try:
            await context.abort(code, details, (*metadata, *self._trailers))
        except grpc.aio.AbortError:
            raise
        except grpc.aio.BaseError as error:
            raise CallEndedError from error
        raise AssertionError("abort always raises")

    async def fail(self, error: ApiError) -> NoReturn:
        """Ends the call with an error and its details. Raises what `abort` raises."""
        status = rpc_status.to_status(status_of(error))
        await self.abort(status.code, status.details, status.trailing_metadata)

    def requests(self, request: Any) -> Any:
        """Returns what a handler takes: the one request, or the stream of requests behind the same guard."""
        return _Requests(self, request) if hasattr(request, "__anext__") else request

    def check(self) -> None:
        """Raises CallEndedError when the call must not be touched any more."""
        self._held()

    def _held(self) -> Any:
        if self._context is None:
            raise CallEndedError
        return self._context


class _Requests:
    def __init__(self, call: OpenCall, requests: Any) -> None:
        self._call = call
        # Not by `aiter` yet: of a receiver that is never read, the library warns.
        self._requests = requests

    def __aiter__(self) -> _Requests:
        return self

    async def __anext__(self) -> Any:
        self._call.check()
        return await anext(self._requests)
