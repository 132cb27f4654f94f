"""Errors of an API as they are sent: a gRPC status with `google.rpc` details, within what metadata carries."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import grpc
import grpc.aio
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, PreconditionFailure, QuotaFailure, RetryInfo
from google.rpc.status_pb2 import Status

from retinue.rpc.core.errors import (
    ApiError,
    Code,
    Detail,
    FieldViolations,
    QuotaViolations,
    RetryDelay,
    UnmetPrecondition,
    Violation,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.protobuf.message import Message

DOMAIN = "retinue"
MAX_VIOLATIONS = 20
# Details travel as metadata, of which clients take 8 KiB.
MAX_STATUS_BYTES = 4096

_GRPC_CODES = {code: grpc.StatusCode[code.name] for code in Code}


def grpc_code(code: Code) -> grpc.StatusCode:
    """Returns a code as gRPC's library has it."""
    return _GRPC_CODES[code]


def broken_stream(text: str) -> grpc.aio.AioRpcError:
    """Returns the error of a stream that ended before it had to."""
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), text)


def status_of(error: ApiError) -> Status:
    """Returns an error as it is sent, within MAX_STATUS_BYTES."""
    status = Status(code=error.code, message=str(error))
    information = ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=error.metadata)
    for message in (information, *(_message(error, detail) for detail in error.details())):
        packed = AnyMessage()
        packed.Pack(message)
        status.details.append(packed)
    return status


def short_status(status: Status) -> Status:
    """Returns code and reason of an error that is sent."""
    short = Status(code=status.code)
    for detail in status.details:
        information = ErrorInfo()
        if detail.Unpack(information):
            short.details.add().Pack(ErrorInfo(reason=information.reason, domain=information.domain))
    return short


def _message(error: ApiError, detail: Detail) -> Message:
    message: Message
    match detail:
        case FieldViolations(violations):
            message = _bad_request(violations)
        case QuotaViolations(violations):
            exceeded = [
                QuotaFailure.Violation(subject=subject, description=text)
                for subject, text in violations[:MAX_VIOLATIONS]
            ]
            message = QuotaFailure(violations=exceeded)
        case UnmetPrecondition(subject):
            unmet = PreconditionFailure.Violation(type=error.reason, subject=subject, description=str(error))
            message = PreconditionFailure(violations=[unmet])
        case RetryDelay(seconds):
            delay = Duration()
            delay.FromMilliseconds(math.ceil(1000 * seconds))
            message = RetryInfo(retry_delay=delay)
    return message


def _bad_request(violations: Sequence[Violation]) -> BadRequest:
    request, size = BadRequest(), 0
    for path, text in violations[:MAX_VIOLATIONS]:
        violation = BadRequest.FieldViolation(field=path, description=text)
        size += violation.ByteSize() + 4
        if size > MAX_STATUS_BYTES - 1024:
            break
        request.field_violations.append(violation)
    return request
