"""Errors of the API, and the one place where they, and the right to call at all, meet gRPC.

ApiError                    an answer other than OK; carries code, reason and metadata
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import uuid
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

log = logging.getLogger(__name__)

DOMAIN = "retinue"
MANAGER_IDENTITY = b"spiffe://retinue/manager"
"""Name, of kind URI, in the certificate of a manager."""


class ApiError(Exception):
    """An answer other than OK; `reason` is an ErrorReason without its prefix, the text is for people."""

    def __init__(self, code: grpc.StatusCode, reason: str, message: str, **metadata: str) -> None:
        """Whatever is in the message is also in `metadata`, for programs."""
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.metadata = metadata

    def status(self) -> grpc.Status:
        """The answer, with its ErrorInfo."""
        detail = any_pb2.Any()
        detail.Pack(error_details_pb2.ErrorInfo(reason=self.reason, domain=DOMAIN, metadata=self.metadata))
        number = self.code.value[0]
        status: grpc.Status = rpc_status.to_status(status_pb2.Status(code=number, message=str(self), details=[detail]))
        return status


def invalid(field: str, message: str) -> ApiError:
    """INVALID_ARGUMENT on a field of the request."""
    return ApiError(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", f"{field}: {message}", field=field)


def internal() -> ApiError:
    """INTERNAL with the number of an incident; called where the exception is handled, and logs it under the number."""
    incident = uuid.uuid4().hex[:12]
    log.exception("incident %s", incident)
    message = f"the agent has a defect; look for incident {incident} in its log"
    return ApiError(grpc.StatusCode.INTERNAL, "INTERNAL", message, incident=incident)


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
        kinds: tuple[tuple[Any, Any], ...] = (
            (handler.unary_unary, grpc.unary_unary_rpc_method_handler),
            (handler.unary_stream, grpc.unary_stream_rpc_method_handler),
            (handler.stream_unary, grpc.stream_unary_rpc_method_handler),
            (handler.stream_stream, grpc.stream_stream_rpc_method_handler),
        )
        behavior, remake = next((behavior, remake) for behavior, remake in kinds if behavior is not None)
        guarded = _generator(behavior) if inspect.isasyncgenfunction(behavior) else _coroutine(behavior)
        remade: grpc.RpcMethodHandler[Any, Any] = remake(
            guarded, handler.request_deserializer, handler.response_serializer
        )
        return remade


def require_manager(context: Any) -> None:
    """Raises ApiError unless the peer's certificate is that of a manager."""
    names = context.auth_context().get("x509_subject_alternative_name", ())
    if MANAGER_IDENTITY not in names:
        raise ApiError(grpc.StatusCode.PERMISSION_DENIED, "METHOD_DENIED", "only a manager may call this")


def _generator(behavior: Any) -> Any:
    async def guarded(request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            require_manager(context)
            async with contextlib.aclosing(behavior(request, context)) as responses:
                async for response in responses:
                    yield response
        except ApiError as error:
            await context.abort_with_status(error.status())
        except grpc.aio.AbortError:
            raise
        except Exception:  # noqa: BLE001 - logged by internal()
            await context.abort_with_status(internal().status())

    return guarded


def _coroutine(behavior: Any) -> Any:
    async def guarded(request: Any, context: Any) -> Any:
        try:
            require_manager(context)
            return await behavior(request, context)
        except ApiError as error:
            await context.abort_with_status(error.status())
        except grpc.aio.AbortError:
            raise
        except Exception:  # noqa: BLE001 - logged by internal()
            await context.abort_with_status(internal().status())

    return guarded
