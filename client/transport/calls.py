"""One call, and one stream that outlives its connection, with errors as those of the library."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from typing import TYPE_CHECKING, TypeVar

import grpc
import grpc.aio

from retinue.client.errors import REQUEST_ID_KEY, CallError, DeadlineExceeded, Unavailable
from retinue.client.transport.backoff import TOO_MANY_CALLS, Backoff, RetryBudget
from retinue.client.transport.closing import closing_is_an_error
from retinue.client.transport.lazy_channel import ChannelMethod
from retinue.client.transport.opening import Opening
from retinue.client.transport.rpc_errors import from_rpc

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from grpc.aio import UnaryStreamMultiCallable, UnaryUnaryMultiCallable

CALL_SECONDS = 30.0
"""Deadline of a unary call, tries included, of a client that has none of its own."""

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


async def call(method: UnaryUnaryMultiCallable[_Request, _Response], request: _Request) -> _Response:
    """Calls a unary method. A call that the server refused because the caller makes too many is repeated later.
    Raises CallError.
    """
    identity = str(uuid.uuid4())
    own = method.timeout if isinstance(method, ChannelMethod) else None
    deadline = time.monotonic() + (CALL_SECONDS if own is None else own)
    while True:
        left = max(0.0, deadline - time.monotonic())
        try:
            with closing_is_an_error():
                return await method(request, timeout=left, metadata=((REQUEST_ID_KEY, identity),))
        except grpc.aio.AioRpcError as error:
            failure = from_rpc(error, identity)
            # Calls of this caller that were refused at the same time are not retried together.
            pause = (failure.retry_after or 0.0) * random.uniform(1.0, 3.0)  # noqa: S311  # no secret
            if failure.reason != TOO_MANY_CALLS or time.monotonic() + pause >= deadline:
                raise failure from error
        await asyncio.sleep(pause)


async def resumed(
    method: UnaryStreamMultiCallable[_Request, _Response],
    request: Callable[[], _Request],
    *,
    endless: bool,
    retry_budget: RetryBudget,
    is_progress: Callable[[_Response], bool] = lambda _: True,
    failed: Callable[[CallError], None] = lambda _: None,
) -> AsyncGenerator[_Response, None]:
    """Yields the responses of a stream that is opened again whenever it breaks.

    `request` is asked each time for what is still wanted, after everything yielded so far was taken in. An `endless`
    stream is also opened again when the server ends it. Raises CallError: at once when trying again is of no use, else
    when the retry budget is used up without a response that `is_progress`, as one that was yielded before is not.
    `failed` is called with how each try ended.
    """
    backoff = Backoff(retry_budget)
    while True:
        identity = str(uuid.uuid4())
        stream = method(request(), metadata=((REQUEST_ID_KEY, identity),))
        opening = Opening(method, stream.cancel, identity)
        failure: CallError
        try:
            with opening.errors():
                async for response in stream:
                    opening.end()
                    if is_progress(response):
                        backoff.progressed()
                    yield response
            if not endless:
                return
            failure = Unavailable("the server ended the stream", code=grpc.StatusCode.UNAVAILABLE, request_id=identity)
        except grpc.aio.AioRpcError as error:
            failure = from_rpc(error, identity)
        except DeadlineExceeded as error:
            failure = error
        finally:
            opening.end()
            stream.cancel()
        failed(failure)
        await backoff.failed(failure)
