"""Translates errors of lower layers and of agents into errors of the API: here and nowhere else."""

from __future__ import annotations

from retinue.manager.agent_rpc import relay
from retinue.manager.endpoints import fleet
from retinue.manager.server import errors, preconditions
from retinue.manager.session import kernel_locator, transaction
from retinue.manager.store.fleet import agents
from retinue.manager.store.journal import journal, requests
from retinue.manager.store.leadership import leadership
from retinue.manager.store.postgres.database import StoreBusy, StoreUnavailable
from retinue.rpc.core.reasons import ErrorReason


def to_api_error(error: Exception) -> errors.ApiError | None:
    """Returns the API error for an error of a lower layer; None for an unexpected one."""
    match error:
        case errors.ApiError():
            return error
        case StoreBusy():
            found: errors.ApiError = errors.Unavailable("too many calls wait for the database: try again in a moment")
        case StoreUnavailable() | leadership.NotLeader():
            found = errors.Unavailable(_of_database(error))
        case journal.RevisionCompacted():
            found = errors.RevisionCompacted(error.oldest)
        case journal.RevisionInFuture():
            found = errors.RevisionInFuture(error.newest)
        case journal.RevisionLost():
            found = errors.RevisionLost(error.incarnation)
        case journal.ReaderTooSlow():
            found = errors.ReaderTooSlow(error.revision)
        case requests.RequestIdReused():
            found = errors.RequestIdReused("the request_id was used with another body")
        case agents.JoinRefused():
            found = errors.JoinTokenInvalid()
        case agents.AgentIdInUse():
            found = errors.AgentIdInUse(str(error))
        case agents.AgentRevoked():
            found = errors.AgentRevoked()
        case _:
            return _stored_error(error)
    return found


def _of_database(error: StoreUnavailable | leadership.NotLeader) -> str:
    fault = error.fault if isinstance(error, StoreUnavailable) else None
    if fault is None or fault.passes:
        return "the database is out of reach for a moment"
    return f"the database cannot work, {fault.summary}: an administrator has to act"


def _stored_error(error: Exception) -> errors.ApiError | None:
    """Translates what is stored and cannot be read."""
    match error:
        case transaction.UnreadableSessionError():
            return preconditions.StateForbids(str(error), f"session/{error.session_id}")
        case fleet.UnreadableEndpointError():
            why = f"{error}: another version of the manager wrote it, or it is damaged"
            return preconditions.StateForbids(why, "endpoint")
        case _:
            return _kernel_error(error)


def _kernel_error(error: Exception) -> errors.ApiError | None:
    """Translates errors of one session, on the way to its kernels."""
    match error:
        case relay.AgentUnavailableError():
            found = {"agent": error.agent_id, "cause": error.cause, "hostname": error.hostname}
            kind = errors.AgentNotReached if error.cause else errors.Unavailable
            return kind(str(error), {key: value for key, value in found.items() if value})
        case relay.AgentRefusedError():
            return _agent_error(error)
        case kernel_locator.KernelUnknownError():
            return errors.InvalidRequest([("hostname", "is not the name of a kernel of this session")])
        case kernel_locator.KernelNotRunningError():
            return preconditions.StateForbids(str(error), f"kernel/{error.hostname}", {"state": error.state})
        case kernel_locator.KernelRestartedError():
            return preconditions.StateForbids(str(error), f"kernel/{error.hostname}")
        case _:
            return None


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
