"""Errors of the API: an answer other than OK, with its code, reason and metadata."""

from __future__ import annotations

import logging
import uuid

from retinue.agent.errors import PausedError, WorkDirectoryMissingError
from retinue.agent.node_faults import fault_of
from retinue.rpc.core.errors import ApiError, Code, ServiceError
from retinue.rpc.core.reasons import ErrorReason

_log = logging.getLogger(__name__)


def invalid(field: str, message: str) -> ApiError:
    """Returns INVALID_ARGUMENT for a field of the request."""
    return ServiceError(Code.INVALID_ARGUMENT, ErrorReason.INVALID_FIELD, f"{field}: {message}", field=field)


def unknown_attempt(attempt_id: str) -> ApiError:
    """Returns NOT_FOUND for an attempt that is not on this node."""
    message = f"there is no attempt {attempt_id} here"
    return ServiceError(Code.NOT_FOUND, ErrorReason.NOT_FOUND, message, kind="attempt", id=attempt_id)


def not_running(attempt_id: str, error: Exception) -> ApiError:
    """Returns FAILED_PRECONDITION for an attempt that does not run. One that is only paused, or has lost its
    work directory, is of no `kind`: managers wait for reports of an attempt that has ended.
    """
    ended = {} if isinstance(error, PausedError | WorkDirectoryMissingError) else {"kind": "attempt", "id": attempt_id}
    return ServiceError(Code.FAILED_PRECONDITION, ErrorReason.STATE_FORBIDS, str(error), **ended)


def answer_of(error: ApiError) -> ApiError:
    """Returns an error of the API as it is sent: where the node lacks something, with what to do. Others are sent as
    they are.
    """
    fault = fault_of(error)
    if fault is None or not isinstance(error, ServiceError) or error.code is not Code.UNAVAILABLE:
        return error
    _log.error("a call failed: %s", error)
    return ServiceError(error.code, error.reason, f"{error}: {fault}", **error.metadata)


def unforeseen(error: Exception) -> ApiError:
    """Returns the answer for an error that no handler knows: UNAVAILABLE where the node lacks something, with what to
    do, else `internal`; call it where the exception is handled.
    """
    fault = fault_of(error)
    if fault is None:
        return internal()
    _log.error("a call failed: %s", error)
    return ServiceError(Code.UNAVAILABLE, ErrorReason.UNAVAILABLE, str(fault))


def internal() -> ApiError:
    """Returns INTERNAL with the number of an incident, and logs the handled exception under it;
    call it where the exception is handled.
    """
    incident = uuid.uuid4().hex[:12]
    _log.exception("incident %s", incident)
    message = f"the agent has a defect; look for incident {incident} in its log"
    return ServiceError(Code.INTERNAL, ErrorReason.INTERNAL, message, incident=incident)
