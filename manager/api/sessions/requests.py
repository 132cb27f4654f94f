"""Requests for sessions: each made into the rows of a session, or into the error it is answered with."""

from __future__ import annotations

import datetime as dt
import secrets
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from retinue.manager.agent_rpc.output import Span
from retinue.manager.api.sessions.convert import preview_message, spec_from_message
from retinue.manager.identity.principal import Principal
from retinue.manager.scheduler.preview import Preview
from retinue.manager.server import errors
from retinue.manager.session import submit
from retinue.manager.session.core.admission import MAX_CLUSTER_SIZE, admit, wrong_name
from retinue.manager.session.core.features import FEATURES
from retinue.manager.session.core.spec import SessionSpec
from retinue.manager.v1 import kernel_service_pb2, session_pb2
from retinue.manager.v1 import session_service_pb2 as pb

MAX_SPECS = 10_000
# A few bytes may ask for a thousand kernels.
MAX_KERNELS = 20_000
# Of one request as a message: an answer with the whole session fits in what clients take.
MAX_SPEC_BYTES = 512 * 1024
# Of the details in the answer to many requests; with ids and names it stays within 4 MiB.
MAX_RESULT_BYTES = 2 * 1024 * 1024
MAX_TAIL_LINES = 100_000
# Ten thousand names of eight random digits would be likely to hold one twice.
_MANY_DIGITS = 16

Drafted: TypeAlias = submit.Draft | errors.ApiError


def admitted(
    message: session_pb2.SessionSpec,
    principal: Principal,
    violations: Sequence[errors.Violation] = (),
    *,
    digits: int = 8,
) -> SessionSpec:
    """A request as it would be accepted; a name that is missing gets so many random `digits`.

    Raises InvalidRequest with every wrong field, those in `violations` included, and ProjectDenied.
    """
    if message.ByteSize() > MAX_SPEC_BYTES:
        raise errors.InvalidRequest([("spec", f"must be at most {MAX_SPEC_BYTES} bytes"), *violations])
    own_projects = [membership.project for membership in principal.memberships]
    try:
        spec = spec_from_message(
            message,
            default_name=_random_name(digits),
            default_project=own_projects[0] if len(own_projects) == 1 else "",
        )
    except ValueError as error:
        raise errors.InvalidRequest([(error.args[0], error.args[1])]) from error
    if not spec.project:
        raise errors.InvalidRequest([("spec.project", "is required: you are not a member of exactly one project")])
    if spec.project not in own_projects:
        raise errors.ProjectDenied(spec.project)
    spec, found = admit(spec)
    found += violations
    if found:
        raise errors.InvalidRequest(found)
    for feature in sorted(spec.features() - FEATURES[spec.type]):
        kind = spec.type.lower()
        raise errors.FeatureUnavailable(
            f"a session of type {kind} cannot have {feature}", f"session_type/{kind}", {"feature": feature.name}
        )
    return spec


def wrong_number(messages: Sequence[session_pb2.SessionSpec]) -> list[errors.Violation]:
    """What is wrong with how many sessions, or kernels in them, are asked for at once."""
    if not 1 <= len(messages) <= MAX_SPECS:
        return [("specs", f"must be from 1 to {MAX_SPECS}")]
    # Sessions that are too large are refused each by itself, and cost nothing.
    numbers = [max(1, item.cluster_size, sum(max(0, role.count) for role in item.roles)) for item in messages]
    kernels = sum(number for number in numbers if number <= MAX_CLUSTER_SIZE)
    return [("specs", f"must be at most {MAX_KERNELS} kernels in all")] if kernels > MAX_KERNELS else []


def draft_all(messages: Sequence[session_pb2.SessionSpec | errors.ApiError], principal: Principal) -> list[Drafted]:
    """Many requests, each by itself; errors stay as they are. Pure computation of up to a second."""
    drafted: list[Drafted] = []
    # Most of very many differ in nothing but their names.
    alike: dict[bytes, submit.Draft] = {}
    for message in messages:
        if isinstance(message, errors.ApiError):
            drafted.append(message)
            continue
        key = _nameless(message)
        if key in alike and not (message.name and wrong_name(message.name)):
            drafted.append(submit.draft_alike(alike[key], uuid.uuid4(), message.name or _random_name(_MANY_DIGITS)))
            continue
        try:
            spec = admitted(message, principal, digits=_MANY_DIGITS)
        except errors.ApiError as error:
            drafted.append(error)
            continue
        draft = submit.draft(uuid.uuid4(), principal.name, spec)
        drafted.append(draft)
        if not spec.depends_on:
            alike[key] = draft
    return drafted


def _nameless(message: session_pb2.SessionSpec) -> bytes:
    """What two requests have in common that differ in nothing but their names."""
    bare = session_pb2.SessionSpec()
    bare.CopyFrom(message)
    bare.ClearField("name")
    return bare.SerializeToString(deterministic=True)


def _random_name(digits: int) -> str:
    return f"s-{secrets.token_hex(digits // 2)}"


def result_message(
    position: int, drafted: Drafted, previews: Mapping[uuid.UUID, Preview], *, shown_id: bool
) -> pb.BatchCreateSessionsResult:
    """What became of the request at a position among many; paths of fields say at which."""
    if isinstance(drafted, submit.Draft):
        session = drafted.session
        accepted = pb.AcceptedSession(id=str(session["id"]) if shown_id else "", name=session["name"])
        if session["id"] in previews:
            accepted.preview.CopyFrom(preview_message(previews[session["id"]]))
        return pb.BatchCreateSessionsResult(accepted=accepted)
    if isinstance(drafted, errors.InvalidRequest):
        drafted = errors.InvalidRequest(
            [(f"specs[{position}]{path.removeprefix('spec')}", text) for path, text in drafted.violations]
        )
    return pb.BatchCreateSessionsResult(refused=drafted.status())


def bounded(results: Iterable[pb.BatchCreateSessionsResult]) -> list[pb.BatchCreateSessionsResult]:
    """Returns results that clients can take together: once the first ones take MAX_RESULT_BYTES, refusals are code and reason, and previews a
    reason. Few bytes of a request may be wrong in many ways.
    """
    total, short = 0, []
    for result in results:
        total += result.ByteSize()
        if total > MAX_RESULT_BYTES:
            if result.HasField("refused"):
                result.refused.CopyFrom(errors.short_status(result.refused))
            elif result.accepted.HasField("preview"):
                preview = result.accepted.preview
                result.accepted.preview.CopyFrom(pb.PlacementPreview(reason=preview.reason, tier=preview.tier))
        short.append(result)
    return short


def log_span(request: kernel_service_pb2.StreamLogsRequest) -> Span:
    """The part of outputs that a request asks for. Raises InvalidRequest."""
    violations: list[errors.Violation] = []
    if request.all and (request.hostname or request.offset or request.epoch):
        violations.append(("all", "takes neither hostname, offset nor epoch"))
    if request.epoch < 0:
        violations.append(("epoch", "must not be negative"))
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
