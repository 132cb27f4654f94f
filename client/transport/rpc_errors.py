"""The errors of the library for the answers of gRPC."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

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
from retinue.client.transport import proxy

if TYPE_CHECKING:
    from collections.abc import Mapping

_DETAILS_KEY = "grpc-status-details-bin"
# The server's text is for those who write headers by hand.
_NO_CREDENTIALS = "CREDENTIALS_MISSING"
# Messages of gRPC about a certificate that no trusted CA has signed, or that belongs to another server.
_UNTRUSTED = ("CERTIFICATE_VERIFY_FAILED", "Hostname Verification Check failed")
_UNTRUSTED_BECAUSE = re.compile(r"(?:CERTIFICATE_VERIFY_FAILED: |(?=Hostname Verification))([^:]+)")

# What gRPC says of a connection that it cannot make, and what that means; {0} is the address.
_UNREACHABLE = (
    (r"Connection refused", "no manager answers at {0} (connection refused): is it running, and is this its port?"),
    (r"No route to host|Network is unreachable", "{0} cannot be reached (there is no route to it): check the endpoint"),
    (
        r"WRONG_VERSION_NUMBER|PACKET_LENGTH|HTTP_REQUEST",
        "the server at {0} is no manager (it does not speak TLS): check the port",
    ),
    (
        r"ALPN|SETTINGS frame as the first",
        "the server at {0} is no manager (it does not speak gRPC): check host and port",
    ),
    (
        r"Endpoint closing|[Tt]imed out|Timeout occurred|FD [Ss]hutdown|Handshake timeout",
        "{0} does not answer (timed out): is its manager frozen or overloaded, or a firewall before it?",
    ),
    (
        r"Handshake read failed|Connection reset|Socket closed|Connection closed|EOF",
        "the server at {0} is no manager (it closes the connection): check host and port",
    ),
    (
        r"Domain name not found|Name or service not known|NXDOMAIN",
        "{0} is not known (no such host): check the endpoint",
    ),
    (r"address lookup failed|DNS|resolv", "the address of {0} cannot be looked up (DNS does not answer)"),
)
_REFUSED_BY_PROXY = "HTTP proxy returned"
_CANNOT_CONNECT = re.compile(r"failed to connect to all addresses|errors resolving|DNS resolution failed|lookup failed")
_ADDRESS = re.compile(r"ipv[46]:(?:%3A%3Affff%3A)?(\S+?): |(?:resolving|lookup failed for|failed for) ([^\s:]+)")
_LOST = re.compile(
    r"Socket closed|Connection reset|Broken pipe|[Pp]ing timeout|keepalive|GOAWAY|max connection age|Stream removed"
)

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
    message, status = error.details() or error.code().name, _status(error)
    if status is None:
        message = _without_answer(error.code(), message)
    return _made(error.code(), message, status, _answered_id(error) or request_id)


def _without_answer(code: grpc.StatusCode, message: str) -> str:
    """Returns what happened to a call that no manager answered, and what to do: in words where gRPC's are known."""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"the manager did not answer in time ({message})"
    if code is not grpc.StatusCode.UNAVAILABLE:
        return message
    if _CANNOT_CONNECT.search(message) is None:
        return f"the connection to the manager was lost ({message})" if _LOST.search(message) else message
    return _without_connection(message)


def _without_connection(message: str) -> str:
    match = _ADDRESS.search(message)
    address = "the manager's address" if match is None else unquote(match[1] or match[2])
    way = proxy.configured(os.environ)
    if way is not None and (way.is_at(address) or _REFUSED_BY_PROXY in message):
        return (
            f"the proxy {way.host}:{way.port} of ${way.variable} makes no connection to the manager: if the manager is to be "
            f"reached without it, put the manager's host into no_proxy ({message.partition('last error: ')[2] or message})"
        )
    if any(word in message for word in _UNTRUSTED):
        found = _UNTRUSTED_BECAUSE.search(message)
        return (
            f"the certificate of {address} is not trusted: set RETINUE_CA, or --ca, to a copy of the manager's ca.pem, "
            f"and check that the endpoint is the manager ({message if found is None else found[1]})"
        )
    for pattern, sentence in _UNREACHABLE:
        if re.search(pattern, message) is not None:
            return sentence.format(address)
    return f"no connection to the manager at {address} ({message})"


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
    if reason == _NO_CREDENTIALS:
        message = "no token: set RETINUE_TOKEN, or give one by --token (in Python by token=)"
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
