"""Surrounds every call with layers: request id, log line, errors, deadline, authentication, authorisation, limits,
audit, in this order.

The layers are context managers around the handler, the same for all four kinds of handlers. Streams are also ended
here: when the server stops, and when the caller's credentials are no longer good.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc
import grpc.aio
from prometheus_client import Counter, Histogram

from retinue.manager.domain import errors
from retinue.manager.identity.principal import Kind, Principal
from retinue.manager.server import lower_errors
from retinue.manager.server.arrivals import Arrivals
from retinue.manager.server.authentication import Authenticator, node_of
from retinue.manager.server.authorization import Access, access_to, authorise
from retinue.manager.server.call_limits import (
    DEFAULT_LIMITS,
    DEFAULT_STREAM_LIMIT,
    STREAM_LIMITS,
    Caller,
    CallerClass,
    CallLimits,
    Limits,
    weight_of,
)
from retinue.manager.server.calls import REQUEST_ID_KEY, Browsers, Call, Context, HandlerAbortedError, read_call
from retinue.manager.server.messages import Reader, Reading, read
from retinue.manager.server.responses import HandlerContext, Relay, end, produce
from retinue.manager.server.turn_taking import TurnTaking
from retinue.manager.server.wrong_tokens import WrongTokens
from retinue.manager.store.postgres.database import StoreUnavailable
from retinue.manager.store.postgres.lanes import Lane, enter_lane
from retinue.rpc.logs import serving
from retinue.rpc.open_call import CallEndedError, OpenCall
from retinue.rpc.stream_limits import OpenStreams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from retinue.manager.server.auditing import Auditor
    from retinue.manager.server.connection_watch import ConnectionCalls

_log = logging.getLogger(__name__)

_CALLS = Counter("retinue_manager_calls", "Calls that have ended, by method and outcome.", ["method", "code"])
_CALL_SECONDS = Histogram("retinue_manager_call_seconds", "Seconds that calls took that are not streams.", ["method"])

UNARY_SECONDS = 30.0
# How often the credentials of an open stream are checked.
RECHECK_SECONDS = 2.0
# Their handlers take and give messages as they are on the wire.
SERIALISED_METHODS = frozenset({"/retinue.manager.v1.KernelService/OpenPort"})

_SUBJECTS = {
    CallerClass.USER: "users",
    CallerClass.ADMIN: "users",
    CallerClass.AGENT: "agents",
    CallerClass.ADDRESS: "addresses",
}

_LANES = {
    CallerClass.USER: Lane.USERS,
    CallerClass.ADMIN: Lane.ADMINISTRATORS,
    CallerClass.AGENT: Lane.AGENTS,
    CallerClass.ADDRESS: Lane.CREDENTIALS,
}

_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

_principal: ContextVar[Principal] = ContextVar("principal")
_address: ContextVar[str] = ContextVar("address", default="")


def current_principal() -> Principal:
    """Returns the caller. Raises LookupError outside a call, and in calls that need no credentials."""
    return _principal.get()


def current_address() -> str:
    """Returns the address or network that the call comes from; empty outside a call."""
    return _address.get()


class CallInterceptor(grpc.aio.ServerInterceptor):
    """All layers in one."""

    def __init__(
        self,
        authenticator: Authenticator,
        stopping: asyncio.Event,
        connections: ConnectionCalls,
        *,
        recheck_seconds: float = RECHECK_SECONDS,
        limits: Limits = DEFAULT_LIMITS,
        auditor: Auditor | None = None,
        browsers: Browsers | None = None,
    ) -> None:
        """Streams end when `stopping` is set. `connections` are told of calls. Without an `auditor` no call leaves a
        record. Calls that a console makes are those of `browsers`.
        """
        self._browsers = browsers
        self._authenticator = authenticator
        self._stopping = stopping
        self._connections = connections
        self._auditor = auditor
        self._recheck_seconds = recheck_seconds
        self._open_streams = OpenStreams(STREAM_LIMITS, DEFAULT_STREAM_LIMIT)
        self._wrong_tokens = WrongTokens()
        self._limits = CallLimits(limits)
        self._turns = TurnTaking()
        self._arrivals = Arrivals()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        """Returns the handler with the layers around it; for an unknown method one that refuses it."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None:
            return grpc.stream_stream_rpc_method_handler(self._refusing(method))
        reader = None if method in SERIALISED_METHODS else handler.request_deserializer
        writer = None if method in SERIALISED_METHODS else handler.response_serializer
        # To the library all requests are streams: the one of a unary call it would receive, and read, before the caller
        # is authenticated.
        many = handler.request_streaming
        if not handler.response_streaming:
            behaviour = handler.stream_unary if many else handler.unary_unary
            answer = self._answering(method, behaviour, reader, many=many)
            return grpc.stream_unary_rpc_method_handler(answer, None, writer)
        behaviour = handler.stream_stream if many else handler.unary_stream
        return grpc.stream_stream_rpc_method_handler(
            self._streaming(method, behaviour, reader, handler.request_deserializer, many=many), None, writer
        )

    @contextlib.contextmanager
    def _opened(self, method: str, context: Context) -> Iterator[tuple[Call, OpenCall, Callable[[], None]]]:
        """Reads and counts a call for as long as its task runs. Yields what is to be called once its caller has
        authenticated, too.
        """
        call = read_call(method, context, self._browsers)
        opened = OpenCall(context, ((REQUEST_ID_KEY, call.request_id),))
        # TLS has checked certificates before the call, also where none is asked for, and while the database is away.
        certified = node_of(call.identities) is not None
        with opened.until_ended(), self._connections.calling(call.peer, authenticated=certified) as authenticated:
            yield call, opened, authenticated

    def _refusing(self, method: str) -> Any:
        async def refuse(requests: Any, context: Context) -> None:
            del requests
            with self._opened(method, context) as (_, opened, _):
                await opened.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")

        return refuse

    def _answering(self, method: str, behaviour: Any, reader: Reader | None, *, many: bool) -> Any:
        async def answer(requests: Any, context: Context) -> Any:
            with self._opened(method, context) as (call, opened, authenticated):
                async with self._around(call, opened, authenticated, UNARY_SECONDS) as (_, caller):
                    request = await self._request(opened.requests(requests), reader, caller, many=many)
                    # Once its request is there: one that does not come takes no place of others.
                    async with self._turns.place(caller, weight_of(method)):
                        audited = self._audited(call, behaviour, reader, many=many, stream=False)
                        return await audited(request, HandlerContext())

        return answer

    def _streaming(
        self, method: str, behaviour: Any, reader: Reader | None, parser: Reader | None, *, many: bool
    ) -> Any:
        # Writes by itself: of a generator whose response cannot be sent, the library leaves the rest to the garbage
        # collector, and its tasks would outlive the call.
        async def stream(requests: Any, context: Context) -> None:
            with self._opened(method, context) as (call, opened, authenticated):
                async with self._around(call, opened, authenticated, None) as (access, caller):
                    request = await self._request(opened.requests(requests), reader, caller, many=many)
                    audited = self._audited(call, behaviour, parser, many=many, stream=True)
                    await self._relay(call, opened, access, audited, request)

        return stream

    def _audited(self, call: Call, behaviour: Any, parser: Reader | None, *, many: bool, stream: bool) -> Any:
        if self._auditor is None:
            return behaviour
        return self._auditor.audited(call, _principal.get(None), behaviour, parser, many=many, stream=stream)

    def _note(self, call: Call, error: errors.ApiError) -> None:
        if self._auditor is not None:
            self._auditor.note(call, _principal.get(None), error)

    async def _request(self, requests: Any, reader: Reader | None, caller: Caller, *, many: bool) -> Any:
        """Returns what a handler takes: the one message of a call, or the stream of them."""
        if not many:
            return read(await self._arrivals.one(requests, caller), reader)
        return requests if reader is None else Reading(requests, reader)

    async def _relay(self, call: Call, opened: OpenCall, access: Access, behaviour: Any, request: Any) -> None:
        """Sends the responses of a handler until it ends, or until the stream has to."""
        principal = _principal.get(None)
        # Of those who need not say who they are, an address counts as one; no name has a space.
        caller = f"address {call.address}" if principal is None else principal.name
        with self._open_streams.hold(call.method, caller):
            relay = Relay()
            # The handler runs in one task from its start to its end: what it enters it also leaves there.
            work = relay.start(produce(behaviour, request, relay))
            ending = relay.start(self._end(call, access, principal))
            try:
                while True:
                    if ending.done():
                        ending.result()
                    elif relay.waiting:
                        await opened.write(relay.take())
                    elif work.done():
                        work.result()
                        return
                    else:
                        await relay.changed()
            finally:
                await end(ending, work)

    async def _end(self, call: Call, access: Access, before: Principal | None) -> None:
        """Raises what a stream is to end with, when it is to end."""
        while True:
            try:
                async with asyncio.timeout(self._recheck_seconds):
                    await self._stopping.wait()
            except TimeoutError:
                if access is not Access.ANYONE:
                    # An outage of the database is no reason to cut streams that need none.
                    with contextlib.suppress(StoreUnavailable):
                        _check_rights(before, await self._authenticator.authenticate(call))
            else:
                raise errors.Unavailable("the server is stopping: resume at another, or in a moment")

    @contextlib.asynccontextmanager
    async def _around(
        self, call: Call, opened: OpenCall, authenticated: Callable[[], None], seconds: float | None
    ) -> AsyncIterator[tuple[Access, Caller]]:
        with serving(call.request_id):
            async with (
                _logged(call, opened, stream=seconds is None),
                _answered(opened, partial(self._note, call)),
                _within(call, seconds),
            ):
                access = access_to(call.method)
                if access is not Access.ANYONE:
                    with self._counting_wrong_tokens(call):
                        principal = await self._authenticator.authenticate(call)
                    authenticated()
                    # Before it is denied: log and audit say who it was.
                    _principal.set(principal)
                    authorise(access, principal, call.method)
                    _address.set(call.address)
                    caller = _caller(call, principal)
                    enter_lane(_LANES[caller.kind])
                    async with self._limited(call, caller, stream=seconds is None):
                        yield access or Access.ANYONE, caller
                else:
                    # A join token is in the request.
                    caller = _caller(call, None)
                    enter_lane(_LANES[caller.kind])
                    with self._counting_wrong_tokens(call):
                        async with self._limited(call, caller, stream=seconds is None):
                            yield access, caller

    @contextlib.asynccontextmanager
    async def _limited(self, call: Call, caller: Caller, *, stream: bool) -> AsyncIterator[None]:
        """Counts a call for as long as the block lasts, which begins when it is the caller's turn.
        Raises TooManyCalls.
        """
        refusal = self._limits.begin(caller, call.method, time.monotonic(), stream=stream)
        if refusal is not None:
            await self._turns.before_refusal(caller)
            subject = f"{_SUBJECTS[caller.kind]}/{caller.name}"
            raise errors.TooManyCalls(subject, refusal.description, refusal.retry_seconds)
        try:
            async with self._turns.paced(caller, weight_of(call.method), stream=stream):
                yield
        finally:
            if not stream:
                self._limits.end(caller, call.method)

    @contextlib.contextmanager
    def _counting_wrong_tokens(self, call: Call) -> Iterator[None]:
        """Has a caller wait whose address has sent too many wrong tokens; raises TooManyWrongTokens then."""
        try:
            yield
        except Exception as error:
            if not isinstance(lower_errors.to_api_error(error), errors.TokenInvalid | errors.JoinTokenInvalid):
                raise
            seconds = self._wrong_tokens.count(call.address, time.monotonic())
            if seconds > 0:
                raise errors.TooManyWrongTokens(seconds) from error
            raise


def _caller(call: Call, principal: Principal | None) -> Caller:
    if principal is None:
        return Caller(CallerClass.ADDRESS, call.address)
    if principal.kind in {Kind.AGENT, Kind.ROUTER}:
        return Caller(CallerClass.AGENT, principal.name)
    return Caller(CallerClass.ADMIN if principal.is_admin else CallerClass.USER, principal.name)


def _check_rights(before: Principal | None, now: Principal) -> None:
    """Raises Unavailable when the caller has lost a right that a stream may have begun with: opened again,
    it counts.
    """
    if before is not None and before.lost(now):
        raise errors.Unavailable("your role or memberships have changed: open the stream again")


@contextlib.asynccontextmanager
async def _logged(call: Call, opened: OpenCall, *, stream: bool) -> AsyncIterator[None]:
    began = time.monotonic()
    outcome = "CANCELLED"
    try:
        yield
        outcome = "OK"
    except grpc.aio.AbortError:
        outcome = "ABORTED" if opened.code is None else opened.code.name
        raise
    finally:
        seconds = time.monotonic() - began
        _CALLS.labels(call.method.removeprefix("/"), outcome).inc()
        if not stream:
            _CALL_SECONDS.labels(call.method.removeprefix("/")).observe(seconds)
        principal = _principal.get(None)
        caller = f"{principal.kind.lower()} {principal.name}" if principal is not None else "anyone"
        # Most streams end when their client has read enough.
        expected = outcome == "OK" or (stream and outcome == "CANCELLED")
        _log.log(
            logging.DEBUG if expected else logging.INFO,
            "%s %s %.1f ms, %s at %s",
            call.method,
            outcome,
            1000 * seconds,
            caller,
            call.peer,
        )


@contextlib.asynccontextmanager
async def _answered(opened: OpenCall, note: Callable[[errors.ApiError], None]) -> AsyncIterator[None]:
    """Ends a call that failed with a status; an unexpected error goes to the log,
    and only its incident number to the caller. `note` is called with the error.
    """
    try:
        yield
    except (grpc.aio.AbortError, CallEndedError):
        raise
    except HandlerAbortedError as error:
        await opened.abort(error.code, error.details)
    except Exception as error:  # noqa: BLE001  # logged whole; its text must not reach the caller
        found = lower_errors.to_api_error(error)
        if found is None:
            incident = secrets.token_hex(8)
            _log.exception("incident %s", incident)
            found = errors.Internal(incident)
        note(found)
        await opened.fail(found)


@contextlib.asynccontextmanager
async def _within(call: Call, seconds: float | None) -> AsyncIterator[None]:
    """Bounds a call by the caller's deadline and by ours, whichever is sooner; None: ours is none."""
    if seconds is None:
        yield
        return
    remaining = call.remaining(time.monotonic())
    try:
        async with asyncio.timeout(seconds if remaining is None else min(remaining, seconds)) as scope:
            yield
    except TimeoutError as error:
        if not scope.expired():
            raise
        raise errors.DeadlineExceeded("the call took too long") from error
