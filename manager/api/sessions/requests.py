"""Requests for many sessions: their bounds, and the answers to each."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, TypeVar

from retinue.manager.agent_rpc.output import Span
from retinue.manager.api.sessions.convert import preview_message
from retinue.manager.domain import errors
from retinue.manager.domain.session.admission import MAX_CLUSTER_SIZE, MAX_DEPENDENCIES
from retinue.manager.domain.session.refusals import Refused
from retinue.manager.v1 import kernel_service_pb2, session_pb2
from retinue.manager.v1 import session_service_pb2 as pb
from retinue.rpc.errors import short_status, status_of

if TYPE_CHECKING:
    import uuid
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from retinue.manager.scheduler.preview import Preview
    from retinue.manager.session.submit import Outcome

MAX_SPECS = 10_000
# A few bytes may ask for a thousand kernels.
MAX_KERNELS = 20_000
# In one request; a graph denser than this is a mistake.
MAX_EDGES = 100_000
# Of the details in the answer to many requests; with ids and names it stays within 4 MiB.
MAX_RESULT_BYTES = 2 * 1024 * 1024
MAX_TAIL_LINES = 100_000
# Of the sessions of an array together: what they have in common is sent once, and kept for each.
MAX_ARRAY_BYTES = 64 * 1024 * 1024
MAX_INDEX_VARIABLES = 8
ARRAY_LABEL, INDEX_LABEL, OFFSET_LABEL = "array", "array.index", "array.offset"
MAIN = "main"


def wrong_references(references: Collection[str]) -> list[errors.Violation]:
    """Returns what is wrong with the number of sessions that are named at once."""
    return [] if 1 <= len(references) <= MAX_SPECS else [("sessions", f"must be from 1 to {MAX_SPECS}")]


def wrong_number(messages: Sequence[session_pb2.SessionSpec]) -> list[errors.Violation]:
    """Returns what is wrong with the numbers of sessions, of kernels and of dependencies that are asked for at once."""
    if not 1 <= len(messages) <= MAX_SPECS:
        return [("specs", f"must be from 1 to {MAX_SPECS}")]
    # Sessions that are too large are refused each by itself, and cost nothing.
    numbers = [max(1, item.cluster_size, sum(max(0, role.count) for role in item.roles)) for item in messages]
    if sum(number for number in numbers if number <= MAX_CLUSTER_SIZE) > MAX_KERNELS:
        return [("specs", f"must be at most {MAX_KERNELS} kernels in all")]
    edges = sum(
        number
        for item in messages
        if (number := len(item.depends_on) + len(item.runs_after) + len(item.runs_after_failure)) <= MAX_DEPENDENCIES
    )
    return [("specs", f"must be at most {MAX_EDGES} dependencies in all")] if edges > MAX_EDGES else []


def wrong_array(request: pb.BatchCreateSessionsRequest) -> list[errors.Violation]:
    """Returns what is wrong with an array but for what its sessions ask for."""
    array, found = request.array, list[errors.Violation]()
    if request.specs:
        found.append(("specs", "must be empty beside an array"))
    if not array.spec.name:
        found.append(("array.spec.name", "is required: sessions are called by it and by their index"))
    if not 1 <= len(array.indices) <= MAX_SPECS:
        found.append(("array.indices", f"must be from 1 to {MAX_SPECS}"))
    elif min(array.indices) < 0 or len(set(array.indices)) < len(array.indices):
        found.append(("array.indices", "must not be negative, and none may be there twice"))
    if array.at_a_time < 0:
        found.append(("array.at_a_time", "must not be negative"))
    for field in ("index_variables", "offset_variables"):
        if len(getattr(array, field)) > MAX_INDEX_VARIABLES:
            found.append((f"array.{field}", f"must be at most {MAX_INDEX_VARIABLES}"))
    if (array.spec.ByteSize() + sum(map(len, array.depends_on_each))) * len(array.indices) > MAX_ARRAY_BYTES:
        found.append(("array", f"must be at most {MAX_ARRAY_BYTES // 2**20} MiB with what its sessions have in common"))
    return found


def sessions_of(array: pb.SessionArray) -> list[session_pb2.SessionSpec]:
    """Returns the sessions of a sound array."""
    name, made = array.spec.name, list[session_pb2.SessionSpec]()
    common = session_pb2.SessionSpec()
    common.CopyFrom(array.spec)
    if not any(role.role == MAIN for role in common.roles):
        common.roles.add(role=MAIN)
    for offset, index in enumerate(array.indices):
        one = session_pb2.SessionSpec()
        one.CopyFrom(common)
        one.name = f"{name}-{index}"
        one.labels[ARRAY_LABEL] = name
        one.labels[INDEX_LABEL], one.labels[OFFSET_LABEL] = str(index), str(offset)
        # Of an array that is named by its number, a session has no name that is known here.
        one.depends_on.extend(f"{each}{'_' if each.isdecimal() else '-'}{index}" for each in array.depends_on_each)
        if array.at_a_time and offset >= array.at_a_time:
            one.runs_after.append(made[offset - array.at_a_time].name)
        variables = next(role for role in one.roles if role.role == MAIN).kernel.environment
        variables.update(dict.fromkeys(array.index_variables, str(index)))
        variables.update(dict.fromkeys(array.offset_variables, str(offset)))
        made.append(one)
    return made


def result_message(
    position: int, outcome: Outcome, previews: Mapping[uuid.UUID, Preview], *, shown_id: bool
) -> pb.BatchCreateSessionsResult:
    """Returns what became of the request at a position among many; paths of fields include the position."""
    if isinstance(outcome, Refused):
        error = outcome.error
        if isinstance(error, errors.InvalidRequest):
            error = error.with_paths(lambda path: f"specs[{position}]{path.removeprefix('spec')}")
        return pb.BatchCreateSessionsResult(refused=status_of(error))
    session = outcome.draft.session
    accepted = pb.AcceptedSession(id=str(session.id) if shown_id else "", name=session.name, number=outcome.number)
    if session.id in previews:
        accepted.preview.CopyFrom(preview_message(previews[session.id]))
    return pb.BatchCreateSessionsResult(accepted=accepted)


_Result = TypeVar("_Result", pb.BatchCreateSessionsResult, pb.BatchTerminateSessionsResult)


def bounded(results: Iterable[_Result]) -> list[_Result]:
    """Returns results that clients can take together: once the first ones take MAX_RESULT_BYTES, refusals are code and
    reason, and previews a reason. Few bytes of a request may be wrong in many ways.
    """
    total, short = 0, []
    for result in results:
        total += result.ByteSize()
        if total > MAX_RESULT_BYTES:
            if result.HasField("refused"):
                result.refused.CopyFrom(short_status(result.refused))
            elif isinstance(result, pb.BatchCreateSessionsResult) and result.accepted.HasField("preview"):
                preview = result.accepted.preview
                result.accepted.preview.CopyFrom(pb.PlacementPreview(reason=preview.reason, tier=preview.tier))
        short.append(result)
    return short


def log_span(request: kernel_service_pb2.StreamLogsRequest) -> Span:
    """Returns the part of outputs that a request asks for. Raises InvalidRequest."""
    violations: list[errors.Violation] = []
    if request.all and (request.hostname or request.offset or request.attempt):
        violations.append(("all", "takes neither hostname, offset nor attempt"))
    if request.attempt < 0:
        violations.append(("attempt", "must not be negative"))
    if request.offset < 0:
        violations.append(("offset", "must not be negative"))
    if not 0 <= request.tail_lines <= MAX_TAIL_LINES:
        violations.append(("tail_lines", f"must be from 0 to {MAX_TAIL_LINES}"))
    since = None
    if request.HasField("since_time"):
        try:
            since = request.since_time.ToDatetime(dt.UTC)
        except (ValueError, OverflowError):
            violations.append(("since_time", "is not a valid time"))
    if violations:
        raise errors.InvalidRequest(violations)
    return Span(request.offset, since, request.tail_lines)
