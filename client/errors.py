"""The errors of the client, as one tree.

RetinueError
├── UsageError              a value given to the library makes no sense; nothing was sent
├── CallError               the server, or the connection to it, refused a call
│   ├── InvalidRequest      INVALID_ARGUMENT; `violations` name the fields
│   ├── Unauthenticated     UNAUTHENTICATED
│   ├── PermissionDenied    PERMISSION_DENIED
│   ├── NotFound            NOT_FOUND
│   ├── AlreadyExists       ALREADY_EXISTS
│   ├── FailedPrecondition  FAILED_PRECONDITION
│   ├── Aborted             ABORTED, for instance a changed etag
│   ├── OutOfRange          OUT_OF_RANGE: a revision or an offset that is not there
│   ├── ResourceExhausted   RESOURCE_EXHAUSTED: a quota, or a reader that was too slow
│   ├── Unavailable         UNAVAILABLE: try again later
│   ├── DeadlineExceeded    DEADLINE_EXCEEDED
│   └── ServerFault         INTERNAL, UNKNOWN and all others
├── TransferError           a file cannot be copied
├── SessionEnded            a session ended before it reached the awaited state
└── WaitTimeout             what was waited for did not come in time
"""

# the names say what happened, as those of the status codes do
# ruff: noqa: N818  # the names say what happened, as those of the status codes do
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retinue.manager.v1 import session_pb2

REQUEST_ID_KEY = "x-request-id"
"""Metadata key under which a call and its answer carry the id of the call."""
_DETAILS_KEY = "grpc-status-details-bin"


class RetinueError(Exception):
    """Root of all errors of the library."""


class UsageError(RetinueError):
    """A value given to the library makes no sense; nothing was sent."""


class TransferError(RetinueError):
    """A file cannot be copied; the text says which, and why."""


class WaitTimeout(RetinueError):
    """The awaited state or answer did not come in time."""


class SessionEnded(RetinueError):
    """A session ended before it reached the awaited state."""

    def __init__(self, message: str, session: session_pb2.Session) -> None:
        """`session` is as it was at the end."""
        super().__init__(message)
        self.session = session


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One wrong field of a request, or one quota that it exceeds: its path, or whose quota (`users/ann`), and what is wrong there."""

    field: str
    description: str


class CallError(RetinueError):
    """The server, or the connection to it, refused a call.

    `code` is the gRPC status code, `reason` an UPPER_SNAKE word of the server (empty when the answer came from
    another program), `metadata` its details, `violations` the wrong fields or the quotas exceeded, `request_id` what to look for in the server's
    log, `retry_after` seconds to wait or None.
    """

    def __init__(  # the plain values of one answer
        self,
        message: str,
        *,
        code: grpc.StatusCode = grpc.StatusCode.UNKNOWN,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        violations: tuple[FieldViolation, ...] = (),
        request_id: str = "",
        retry_after: float | None = None,
    ) -> None:
        """The values of one answer; what it did not say is empty."""
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason
        self.metadata = dict(metadata or {})
        self.violations = violations
        self.request_id = request_id
        self.retry_after = retry_after


class InvalidRequest(CallError):
    """The request is wrong, whatever the state of the system."""


class Unauthenticated(CallError):
    """There are no credentials, or they are not good."""


class PermissionDenied(CallError):
    """The caller may not do that."""


class NotFound(CallError):
    """There is no such thing, or none that the caller may read."""


class AlreadyExists(CallError):
    """The name is taken."""


class FailedPrecondition(CallError):
    """The state of the thing forbids it."""


class Aborted(CallError):
    """The thing has changed since it was read."""


class OutOfRange(CallError):
    """A revision or an offset that is not there."""


class ResourceExhausted(CallError):
    """A quota is used up, or a reader was too slow."""


class Unavailable(CallError):
    """The server cannot be reached or cannot answer now."""


class DeadlineExceeded(CallError):
    """The call took too long."""


class ServerFault(CallError):
    """A bug of the server, or an answer that is none."""


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
