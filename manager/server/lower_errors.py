"""Translates errors of the database and of agents into errors of the API: here and nowhere else."""

from __future__ import annotations

from retinue.manager.agent_rpc import relay
from retinue.manager.domain import errors, preconditions
from retinue.manager.store.leadership import leadership
from retinue.manager.store.postgres.database import StoreBusy, StoreUnavailable
from retinue.rpc.core.reasons import ErrorReason


def to_api_error(error: Exception) -> errors.ApiError | None:
    """Returns the API error for an error that a call met; None for an unexpected one."""
    match error:
        case errors.ApiError():
            return error
        case StoreBusy():
            return errors.Unavailable("too many calls wait for the database: try again in a moment")
        case StoreUnavailable() | leadership.NotLeader():
            return errors.Unavailable(_of_database(error))
        case relay.AgentUnavailableError():
            found = {"agent": error.agent_id, "cause": error.cause, "hostname": error.hostname}
            kind = errors.AgentNotReached if error.cause else errors.Unavailable
            return kind(str(error), {key: value for key, value in found.items() if value})
        case relay.AgentRefusedError():
            return _agent_error(error)
        case _:
            return None


def _of_database(error: StoreUnavailable | leadership.NotLeader) -> str:
    fault = error.fault if isinstance(error, StoreUnavailable) else None
    if fault is None or fault.passes:
        return "the database is out of reach for a moment"
    return f"the database cannot work, {fault.summary}: an administrator has to act"


def _agent_error(error: relay.AgentRefusedError) -> errors.ApiError | None:
    """Translates an agent's error; None for one that no agent returns unless the manager has a defect."""
    found: errors.ApiError | None = None
    match error.reason:
        case ErrorReason.STATE_FORBIDS | ErrorReason.NOT_FOUND if error.metadata.get("kind") != "file":
            # An attempt that is not there, or no more, is a kernel that does not run.
            found = preconditions.StateForbids(str(error), "kernel")
        case "RUN_NOT_FOUND":
            found = errors.NotFound("run", error.metadata.get("id", ""))
        case ErrorReason.LANGUAGE_UNAVAILABLE:
            found = preconditions.LanguageUnavailable(str(error), "kernel/main1", error.metadata)
        case ErrorReason.OFFSET_PAST_END:
            found = errors.OffsetPastEnd(error.metadata.get("size", ""))
        case ErrorReason.STREAM_LIMIT:
            found = errors.StreamLimit(error.metadata.get("limit", ""))
        case ErrorReason.UNAVAILABLE:
            found = errors.Unavailable(str(error))
        case ErrorReason.PORT_CLOSED:
            found = preconditions.PortClosed(error.metadata.get("port", ""))
        case ErrorReason.APP_FAILED:
            found = preconditions.AppFailed(str(error))
        case ErrorReason.CONNECTION_RESET:
            found = errors.ConnectionReset(str(error))
        case _:
            found = _file_error(error)
    return found


def _file_error(error: relay.AgentRefusedError) -> errors.ApiError | None:
    """Translates an agent's error about files of a work directory."""
    path = error.metadata.get("path", "")
    found: errors.ApiError | None = None
    match error.reason:
        case ErrorReason.NOT_FOUND:
            found = errors.NotFound("file", path)
        case ErrorReason.FILE_REFUSED:
            found = preconditions.FileRefused(path, str(error))
        case ErrorReason.NO_SPACE:
            found = errors.NoSpace(path, str(error))
        case ErrorReason.INVALID_FIELD if field := error.metadata.get("field"):
            found = errors.InvalidRequest([(field, str(error).removeprefix(f"{field}: "))])
    return found
