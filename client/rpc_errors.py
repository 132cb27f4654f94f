"""The errors of the library for the answers of gRPC."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from retinue.client.errors import (
    REQUEST_ID_KEY,
    Aborted,
    AlreadyExists,
    CallError,
    DeadlineExceeded,
    FailedPrecondition,
    FieldViolation,
    InvalidRequest,
    NotFound,
    OutOfRange,
    PermissionDenied,
    ResourceExhausted,
    ServerFault,
    Unauthenticated,
    Unavailable,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_DETAILS_KEY = "grpc-status-details-bin"
# Messages of gRPC about a certificate that no trusted CA has signed, or that belongs to another server.
_UNTRUSTED = ("CERTIFICATE_VERIFY_FAILED", "Hostname Verification Check failed")

_BY_CODE: Mapping[grpc.StatusCode, type[CallError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExists,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPrecondition,
    grpc.StatusCode.ABORTED: Aborted,
    grpc.StatusCode.OUT_OF_RANGE: OutOfRange,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhausted,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
}


def from_rpc(error: grpc.aio.AioRpcError, request_id: str = "") -> CallError:
    """Returns the error of the tree for a failed call; `request_id` is what the call was sent with."""
    message = error.details() or error.code().name
    return _made(error.code(), message, _status(error), _answered_id(error) or request_id)


def from_status(status: status_pb2.Status) -> CallError:
    """Returns the error of the tree for a part of a request that was refused by itself."""
    code = next((code for code in grpc.StatusCode if code.value[0] == status.code), grpc.StatusCode.UNKNOWN)
    return _made(code, status.message or code.name, status, "")


def _made(code: grpc.StatusCode, message: str, status: status_pb2.Status | None, request_id: str) -> CallError:
    reason, metadata, violations, retry_after = "", {}, [], None
    for detail in status.details if status is not None else ():
        info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
        retry, answered = error_details_pb2.RetryInfo(), error_details_pb2.RequestInfo()
        quota = error_details_pb2.QuotaFailure()
        if detail.Unpack(info):
            reason, metadata = info.reason, dict(info.metadata)
        elif detail.Unpack(bad):
            violations += [FieldViolation(violation.field, violation.description) for violation in bad.field_violations]
        elif detail.Unpack(quota):
            violations += [FieldViolation(violation.subject, violation.description) for violation in quota.violations]
        elif detail.Unpack(retry):
            retry_after = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
        elif detail.Unpack(answered):
            request_id = answered.request_id or request_id
    kind = _BY_CODE.get(code, ServerFault)
    if code is grpc.StatusCode.UNAVAILABLE and status is None and any(word in message for word in _UNTRUSTED):
        message = (
            "the manager's certificate is not trusted: set RETINUE_CA, or --ca, to a copy of the manager's ca.pem, "
            f"and check that the endpoint is the manager ({message})"
        )
    return kind(
        message,
        code=code,
        reason=reason,
        metadata=metadata,
        violations=tuple(violations),
        request_id=request_id,
        retry_after=retry_after,
    )


def _status(error: grpc.aio.AioRpcError) -> status_pb2.Status | None:
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS_KEY and isinstance(value, bytes):
            try:
                return status_pb2.Status.FromString(value)
            except DecodeError:
                # Something between us and the server wrote it: the code and the text are all there is.
                return None
    return None


def _answered_id(error: grpc.aio.AioRpcError) -> str:
    for metadata in (error.trailing_metadata(), error.initial_metadata()):
        for key, value in metadata or ():
            if key == REQUEST_ID_KEY:
                return value if isinstance(value, str) else value.decode(errors="replace")
    return ""
