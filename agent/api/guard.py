"""What surrounds every call: only managers get in, errors become answers, and nothing touches a call that has ended.

grpc.aio frees a call when the task that serves it ends. Its context stays, and asks a null pointer from then on: the process dies of
a read or a write that comes later. So `OpenCall` alone holds a context, and releases it when its call ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from typing import TYPE_CHECKING, Any, NoReturn

import grpc

from retinue.agent.api.errors import ApiError, internal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence

MANAGER_IDENTITY = b"spiffe://retinue/manager"
"""Name, of kind URI, in the certificate of a manager."""


class CallEndedError(Exception):
    """The call has ended: nothing can be read from it or written to it any more."""


class OpenCall:
    """A call for as long as its task runs: the only holder of its context."""

    def __init__(self, context: Any) -> None:
        """Reads who calls; the call cannot have ended yet."""
        self._context = context
        self.identities: Mapping[str, Sequence[bytes]] = context.auth_context()

    @contextlib.contextmanager
    def until_ended(self) -> Iterator[None]:
        """Releases the call at the end of the block, which is to be that of its task."""
        try:
            yield
        except CallEndedError as error:
            # To the library, a caller who is gone is a call that was cancelled, wherever that is noticed first.
            raise asyncio.CancelledError from error
        finally:
            self._context = None

    async def write(self, response: Any) -> None:
        """Sends a response; returns when there is room for the next. Raises CallEndedError."""
        try:
            await self._held().write(response)
        except grpc.aio.BaseError as error:
            raise CallEndedError from error

    async def abort(self, error: ApiError) -> NoReturn:
        """Ends the call with an error. Raises grpc.aio.AbortError, which its task has to end with, or CallEndedError."""
        try:
            await self._held().abort_with_status(error.status())
        except grpc.aio.AbortError:
            raise
        except grpc.aio.BaseError as failure:
            raise CallEndedError from failure
        raise AssertionError("abort always raises")

    def requests(self, request: Any) -> Any:
        """What the handler takes: the one request, or the stream of them behind the same guard."""
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


class HandlerContext:
    """What a handler gets in place of the library's context: all that one may do there."""

    def __init__(self, call: OpenCall) -> None:
        """Writes to the call."""
        self._call = call

    async def write(self, response: Any) -> None:
        """Sends a response."""
        await self._call.write(response)

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        """Ends the call. Raises ApiError, for the layers around the handler."""
        raise ApiError(code, code.name, details)


class Guard(grpc.aio.ServerInterceptor):
    """Lets managers in, and turns every exception into an answer that says no more than it should."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Called by gRPC for every call."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        kinds: tuple[tuple[Any, Any, Any], ...] = (
            (handler.unary_unary, _answering, grpc.unary_unary_rpc_method_handler),
            (handler.stream_unary, _answering, grpc.stream_unary_rpc_method_handler),
            (handler.unary_stream, _streaming, grpc.unary_stream_rpc_method_handler),
            (handler.stream_stream, _streaming, grpc.stream_stream_rpc_method_handler),
        )
        behavior, guard, remake = next(kind for kind in kinds if kind[0] is not None)
        remade: grpc.RpcMethodHandler[Any, Any] = remake(
            guard(behavior), handler.request_deserializer, handler.response_serializer
        )
        return remade


def require_manager(identities: Mapping[str, Sequence[bytes]]) -> None:
    """Raises ApiError unless the peer's certificate is that of a manager."""
    if MANAGER_IDENTITY not in identities.get("x509_subject_alternative_name", ()):
        raise ApiError(grpc.StatusCode.PERMISSION_DENIED, "METHOD_DENIED", "only a manager may call this")


@contextlib.asynccontextmanager
async def _guarded(context: Any) -> AsyncIterator[OpenCall]:
    call = OpenCall(context)
    with call.until_ended():
        try:
            require_manager(call.identities)
            yield call
        except ApiError as error:
            await call.abort(error)
        except (grpc.aio.AbortError, CallEndedError):
            raise
        except Exception:  # noqa: BLE001 - logged by internal()
            await call.abort(internal())


def _answering(behavior: Any) -> Any:
    async def answer(request: Any, context: Any) -> Any:
        async with _guarded(context) as call:
            return await behavior(call.requests(request), HandlerContext(call))

    return answer


def _streaming(behavior: Any) -> Any:
    # Writes by itself: of a generator whose response cannot be sent, the library leaves the rest to the garbage collector, and its
    # tasks would outlive the call.
    async def stream(request: Any, context: Any) -> None:
        async with _guarded(context) as call:
            responses = behavior(call.requests(request), HandlerContext(call))
            if inspect.isawaitable(responses):
                await responses
                return
            async with contextlib.aclosing(responses):
                async for response in responses:
                    await call.write(response)

    return stream
