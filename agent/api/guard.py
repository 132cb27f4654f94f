"""Surrounds every call: only managers get in, errors become answers, and nothing touches a call that has ended."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from typing import TYPE_CHECKING, Any, NoReturn

import grpc

from retinue.agent.api.errors import answer_of, unforeseen
from retinue.agent.v1.agent_service_pb2 import DESCRIPTOR
from retinue.rpc.core.errors import ApiError, Code, ServiceError
from retinue.rpc.core.reasons import ErrorReason
from retinue.rpc.enrollment.peers import is_manager
from retinue.rpc.open_call import CallEndedError, OpenCall

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence


SERVICE = DESCRIPTOR.services_by_name["AgentService"].full_name
SERIALISED_METHODS = frozenset({f"/{SERVICE}/OpenPort"})
"""Methods whose handlers take and return serialised messages."""


class HandlerContext:
    """The context that a handler gets in place of the library's: it offers only what handlers may do."""

    def __init__(self, call: OpenCall, peer: str) -> None:
        """Writes to the call; `peer` is who called, as gRPC writes it."""
        self._call = call
        self.peer = peer

    async def write(self, response: Any) -> None:
        """Sends a response."""
        await self._call.write(response)

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        """Ends the call. Raises ApiError, for the layers around the handler."""
        raise ServiceError(Code[code.name], code.name, details)


class Guard(grpc.aio.ServerInterceptor):
    """Lets managers in, and turns every exception into an answer that says no more than it should."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Handles every call; called by gRPC."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        kinds: tuple[tuple[Any, Any, Any], ...] = (
            (handler.unary_unary, _answering, grpc.unary_unary_rpc_method_handler),
            (handler.stream_unary, _answering, grpc.stream_unary_rpc_method_handler),
            (handler.unary_stream, _streaming, grpc.unary_stream_rpc_method_handler),
            (handler.stream_stream, _streaming, grpc.stream_stream_rpc_method_handler),
        )
        reader, writer = handler.request_deserializer, handler.response_serializer
        if handler_call_details.method in SERIALISED_METHODS:
            reader = writer = None
        behavior, guard, remake = next(kind for kind in kinds if kind[0] is not None)
        remade: grpc.RpcMethodHandler[Any, Any] = remake(guard(behavior), reader, writer)
        return remade


def require_manager(identities: Mapping[str, Sequence[bytes]]) -> None:
    """Raises ApiError unless the peer's certificate is that of a manager."""
    if not is_manager(identities):
        raise ServiceError(Code.PERMISSION_DENIED, ErrorReason.METHOD_DENIED, "only a manager may call this")


@contextlib.asynccontextmanager
async def _guarded(context: Any) -> AsyncIterator[OpenCall]:
    call, identities = OpenCall(context), context.auth_context()
    with call.until_ended():
        try:
            require_manager(identities)
            yield call
        except ApiError as error:
            await call.fail(answer_of(error))
        except (grpc.aio.AbortError, CallEndedError):
            raise
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            # The library answers nothing then, and the caller would wait for ever.
            message = "the call was cancelled within the agent, and nothing asked for that"
            await call.fail(ServiceError(Code.UNAVAILABLE, ErrorReason.UNAVAILABLE, message))
        except Exception as error:  # noqa: BLE001  # logged by unforeseen()
            await call.fail(unforeseen(error))


def _answering(behavior: Any) -> Any:
    async def answer(request: Any, context: Any) -> Any:
        async with _guarded(context) as call:
            return await behavior(call.requests(request), HandlerContext(call, context.peer()))

    return answer


def _streaming(behavior: Any) -> Any:
    # Writes by itself: of a generator whose response cannot be sent, the library leaves the rest to the garbage
    # collector, and its tasks would outlive the call.
    async def stream(request: Any, context: Any) -> None:
        async with _guarded(context) as call:
            responses = behavior(call.requests(request), HandlerContext(call, context.peer()))
            if inspect.isawaitable(responses):
                await responses
                return
            async with contextlib.aclosing(responses):
                async for response in responses:
                    await call.write(response)

    return stream
