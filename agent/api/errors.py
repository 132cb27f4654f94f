"""Errors of the API: an answer other than OK, with its code, reason and metadata."""

from __future__ import annotations

import logging
import uuid

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

log = logging.getLogger(__name__)

DOMAIN = "retinue"


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
