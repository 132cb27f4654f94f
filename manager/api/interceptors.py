"""What happens around every call: request id, log line, errors, deadline, authentication, authorisation, in this order.

The layers are context managers around the handler, the same for all four kinds of handlers. Streams are also ended here: when
the server stops, and when the caller's credentials are no longer good.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import inspect
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextvars import ContextVar
from typing import Any, TypeAlias

import grpc
import grpc.aio
from grpc_status import rpc_status

from manager.api import errors, lower_errors
from manager.api.authentication import Authenticator
from manager.api.authorization import Access, access_to, authorise
from manager.api.messages import Reader, Reading, read
from manager.api.open_streams import OpenStreams
from manager.api.wrong_tokens import WrongTokens, address_of
from manager.identity.principal import Principal
from manager.store.database import StoreUnavailable

_log = logging.getLogger(__name__)

UNARY_SECONDS = 30.0
# How often the credentials of an open stream are looked at.
RECHECK_SECONDS = 2.0
# Their handlers take and give messages as they are on the wire.
SERIALISED_METHODS = frozenset({"/retinue.manager.v1.SessionService/OpenPort"})
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

_Context = grpc.aio.ServicerContext[Any, Any]
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

_principal: ContextVar[Principal] = ContextVar("principal")
_request_id: ContextVar[str] = ContextVar("request_id", default="")


def current_principal() -> Principal:
    """Who is calling. Raises LookupError outside a call, and in calls that anyone may make."""
    return _principal.get()


def current_request_id() -> str:
    """The id of the call that is being served, for logs; empty outside."""
    return _request_id.get()


class CallInterceptor(grpc.aio.ServerInterceptor):
    """All layers in one."""

    def __init__(
        self, authenticator: Authenticator, stopping: asyncio.Event, *, recheck_seconds: float = RECHECK_SECONDS
    ) -> None:
        """Streams end when `stopping` is set."""
        self._authenticator = authenticator
        self._stopping = stopping
        self._recheck_seconds = recheck_seconds
        self._open_streams = OpenStreams()
        self._wrong_tokens = WrongTokens()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        """The handler with the layers around it; unknown methods pass through to be refused by the library."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        method = handler_call_details.method
        reader = None if method in SERIALISED_METHODS else handler.request_deserializer
        writer = None if method in SERIALISED_METHODS else handler.response_serializer
        # The library reads nothing itself: it would before anybody knows who calls.
        match handler.request_streaming, handler.response_streaming:
            case False, False:
                answer = self._answering(method, handler.unary_unary, reader)
                return grpc.unary_unary_rpc_method_handler(answer, None, writer)
            case True, False:
                answer = self._answering(method, handler.stream_unary, reader)
                return grpc.stream_unary_rpc_method_handler(answer, None, writer)
            case False, True:
                stream = self._streaming(method, handler.unary_stream, reader)
                return grpc.unary_stream_rpc_method_handler(stream, None, writer)
        return grpc.stream_stream_rpc_method_handler(
            self._streaming(method, handler.stream_stream, reader), None, writer
        )

    def _answering(self, method: str, behaviour: Any, reader: Reader | None) -> Any:
        async def answer(request: Any, context: _Context) -> Any:
            async with self._around(method, context, UNARY_SECONDS):
                return await behaviour(_readable(request, reader), context)

        return answer

    def _streaming(self, method: str, behaviour: Any, reader: Reader | None) -> Any:
        async def stream(request: Any, context: _Context) -> AsyncIterator[Any]:
            async with self._around(method, context, None) as access, contextlib.AsyncExitStack() as held:
                principal = _principal.get(None)
                # Of those who need not say who they are, an address counts as one; no name has a space.
                caller = f"address {address_of(context.peer())}" if principal is None else principal.name
                held.enter_context(self._open_streams.hold(method, caller))
                relay = _Relay()
                # The handler runs in one task from its start to its end: what it enters it also leaves there.
                work = relay.start(_produce(behaviour, _readable(request, reader), context, relay))
                end = relay.start(self._end(context, access, principal))
                try:
                    while True:
                        if end.done():
                            end.result()
                        elif relay.waiting:
                            yield relay.take()
                        elif work.done():
                            work.result()
                            return
                        else:
                            await relay.changed()
                finally:
                    await _cancelled(work)
                    await _cancelled(end)

        return stream

    async def _end(self, context: _Context, access: Access, before: Principal | None) -> None:
        """Raises what a stream is to end with, when it is to end."""
        while True:
            try:
                async with asyncio.timeout(self._recheck_seconds):
                    await self._stopping.wait()
            except TimeoutError:
                if access is not Access.ANYONE:
                    # An outage of the database is no reason to cut streams that need none.
                    with contextlib.suppress(StoreUnavailable):
                        _check_rights(before, await self._authenticator.authenticate(context))
            else:
                raise errors.Unavailable("the server is stopping: resume at another, or in a moment")

    @contextlib.asynccontextmanager
    async def _around(self, method: str, context: _Context, seconds: float | None) -> AsyncIterator[Access]:
        _request_id.set(_request_id_of(context))
        async with _logged(method, context), _told(context), _within(context, seconds):
            access = access_to(method)
            if access is not Access.ANYONE:
                with self._counting_wrong_tokens(context):
                    principal = await self._authenticator.authenticate(context)
                authorise(access, principal)
                _principal.set(principal)
                yield access or Access.ANYONE
            else:
                # A join token is in the request.
                with self._counting_wrong_tokens(context):
                    yield access

    @contextlib.contextmanager
    def _counting_wrong_tokens(self, context: _Context) -> Iterator[None]:
        """Tells a caller whose address has sent too many wrong tokens to wait; raises TooManyWrongTokens then."""
        try:
            yield
        except Exception as error:
            if not isinstance(lower_errors.told(error), errors.TokenInvalid | errors.JoinTokenInvalid):
                raise
            seconds = self._wrong_tokens.count(address_of(context.peer()), time.monotonic())
            if seconds > 0:
                raise errors.TooManyWrongTokens(seconds) from error
            raise


def _check_rights(before: Principal | None, now: Principal) -> None:
    """Raises Unavailable when the caller has lost a right that a stream may have begun with: opened again, it counts."""
    if before is not None and before.lost(now):
        raise errors.Unavailable("your role or memberships have changed: open the stream again")


def _readable(request: Any, reader: Reader | None) -> Any:
    """What a handler takes, of the one message of a call or of the stream of them."""
    return read(request, reader) if isinstance(request, bytes) or reader is None else Reading(request, reader)


class _Relay:
    """Hands responses from the task of a handler to the task of its call, one at a time."""

    def __init__(self) -> None:
        self._responses: collections.deque[Any] = collections.deque()
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task whose end counts as a change."""
        task = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._changed.set())
        return task

    @property
    def waiting(self) -> bool:
        """Whether a response waits to be taken."""
        return bool(self._responses)

    def take(self) -> Any:
        """The response that waits."""
        self._room.set()
        return self._responses.popleft()

    async def put(self, response: Any) -> None:
        """Leaves a response, and returns when it was taken."""
        self._responses.append(response)
        self._changed.set()
        self._room.clear()
        await self._room.wait()

    async def changed(self) -> None:
        """Returns when something has changed since the last call."""
        await self._changed.wait()
        self._changed.clear()


async def _produce(behaviour: Any, request: Any, context: _Context, relay: _Relay) -> None:
    responses = behaviour(request, context)
    if inspect.isawaitable(responses):
        # It writes to the context by itself.
        await responses
        return
    async with contextlib.aclosing(responses):
        async for response in responses:
            await relay.put(response)


async def _cancelled(task: asyncio.Future[Any]) -> None:
    """Cancels a task and waits until it is over; how it ended is the affair of whoever waits for its result."""
    if not task.done():
        task.cancel()
        await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()


@contextlib.asynccontextmanager
async def _logged(method: str, context: _Context) -> AsyncIterator[None]:
    began = time.monotonic()
    outcome = "CANCELLED"
    # Asked for now: a call that is over must not be touched any more, the library would read freed memory.
    peer = context.peer()
    try:
        yield
        outcome = "OK"
    except grpc.aio.AbortError:
        outcome = _code_name(context.code())
        raise
    finally:
        principal = _principal.get(None)
        caller = f"{principal.kind.lower()} {principal.name}" if principal is not None else "anyone"
        _log.log(
            logging.DEBUG if outcome == "OK" else logging.INFO,
            "%s %s %.1f ms, %s at %s, request %s",
            method,
            outcome,
            1000 * (time.monotonic() - began),
            caller,
            peer,
            _request_id.get(),
        )


def _code_name(code: Any) -> str:
    """The library tells a code as an enum or as its number."""
    return next((known.name for known in grpc.StatusCode if code in (known, known.value[0])), str(code))


@contextlib.asynccontextmanager
async def _told(context: _Context) -> AsyncIterator[None]:
    """Ends a call that failed with a status; what nobody expected goes to the log, and only its incident number to the caller."""
    try:
        yield
    except grpc.aio.AbortError:
        raise
    except Exception as error:  # noqa: BLE001  # logged whole; its text must not reach the caller
        told = lower_errors.told(error)
        if told is None:
            incident = secrets.token_hex(8)
            _log.exception("incident %s", incident)
            told = errors.Internal(incident)
        await context.abort_with_status(rpc_status.to_status(told.status()))


@contextlib.asynccontextmanager
async def _within(context: _Context, seconds: float | None) -> AsyncIterator[None]:
    """Bounds a call by the caller's deadline and by ours, whichever is sooner; None: ours is none."""
    remaining = context.time_remaining()
    if seconds is None:
        yield
        return
    try:
        async with asyncio.timeout(seconds if remaining is None else min(remaining, seconds)) as scope:
            yield
    except TimeoutError as error:
        if not scope.expired():
            raise
        raise errors.DeadlineExceeded("the call took too long") from error


def _request_id_of(context: _Context) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == "x-request-id" and isinstance(value, str) and _REQUEST_ID.fullmatch(value):
            return value
    return secrets.token_hex(8)
