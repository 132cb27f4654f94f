"""Reads what endpoints and revisions are asked for in requests, and finds the endpoint that one refers to."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from retinue.manager.api.endpoints.convert import endpoint_message
from retinue.manager.api.endpoints.settings_convert import Reader
from retinue.manager.api.sessions.spec_convert import MAX_SPEC_BYTES, to_spec
from retinue.manager.api.sessions.template_rendering import render
from retinue.manager.api.visibility import caller_visibility, full_view
from retinue.manager.domain import errors
from retinue.manager.domain.endpoints.hosts import OwnHosts, refusal
from retinue.manager.domain.endpoints.spec import ReplicaSpec, RevisionSpec
from retinue.manager.domain.reasons import ConditionType
from retinue.manager.domain.session.refusals import Refused, no_project
from retinue.manager.domain.session.spec_views import SpecView
from retinue.manager.endpoints.fleet import EndpointView, UnreadableEndpointError, view_of
from retinue.manager.server.fields import Violations
from retinue.manager.server.interceptors import current_principal
from retinue.manager.session.drafts import Request, prepare
from retinue.manager.session.submit import submit
from retinue.manager.store.endpoints import endpoint_replicas, endpoints
from retinue.manager.store.fleet import groups, routers
from retinue.manager.v1 import endpoint_pb2 as pb
from retinue.manager.v1 import session_pb2

if TYPE_CHECKING:
    import uuid
    from collections.abc import Collection, Sequence

    from google.protobuf.field_mask_pb2 import FieldMask

    from retinue.manager.domain.session.pending_limit import PendingLimit
    from retinue.manager.store.endpoints.endpoints import EndpointRecord
    from retinue.manager.store.postgres.database import Transaction

_log = logging.getLogger(__name__)

# Fields of a session that replicas do not have, or that their endpoint gives them.
_NOT_OF_REPLICAS = (
    "name",
    "project",
    "endpoint",
    "depends_on",
    "runs_after",
    "runs_after_failure",
    "runs_after_label",
    "earliest_start_time",
    "hold",
    "time_limit",
    "time_warning",
    "retry",
    "webhooks",
)
_PARTS = ("scaling", "routing", "access", "rollout", "labels")
_NAME = "replica"


async def read_revision_spec(
    tx: Transaction, message: pb.RevisionSpec, path: str, project: str, pending: PendingLimit
) -> RevisionSpec:
    """Returns a revision as it is stored. Raises what CreateSession would raise for its session,
    but for full quotas: replicas wait.
    """
    replica, asked = checked_revision(message, path)
    asked.project = project
    if asked.HasField("template"):
        (rendered,) = await render(tx, [asked])
        if isinstance(rendered, Refused):
            raise _session_error(rendered, path)
        asked = rendered
    asked.type, asked.project = session_pb2.SESSION_TYPE_INFERENCE, project
    # Where replicas go is for sessions of an endpoint only.
    asked.endpoint = _NAME
    try:
        spec = to_spec(asked, default_name=_NAME, default_project=project)
    except ValueError as error:
        raise errors.InvalidRequest([(_inner(path, error.args[0]), error.args[1])]) from None
    caller = current_principal()
    (prepared,) = prepare([Request(_NAME, spec)], caller)
    if isinstance(prepared, Refused):
        raise _session_error(prepared, path)
    submission = await submit(tx, caller.name, [prepared], pending, validate_only=True, replicas=True)
    (outcome,) = submission.outcomes
    if isinstance(outcome, Refused) and not isinstance(outcome.error, errors.QuotaExceeded | errors.NameTaken):
        raise _session_error(outcome, path)
    # Of the revision's own: its replicas stay what they are when the group's default changes.
    policy = (await groups.read_isolation_policies(tx, [prepared.spec.resource_group]))[prepared.spec.resource_group]
    return RevisionSpec(replace(prepared.spec, endpoint="", isolations=policy.resolve(prepared.spec)), replica)


def checked_revision(message: pb.RevisionSpec, path: str) -> tuple[ReplicaSpec, session_pb2.SessionSpec]:
    """Returns a revision's replicas as servers, and what is asked for of each as a session. Raises InvalidRequest."""
    violations = Violations()
    replica = Reader(violations).replica(message, path)
    given = message.session
    if given.ByteSize() > MAX_SPEC_BYTES:
        violations.add(f"{path}.session", f"must be at most {MAX_SPEC_BYTES} bytes")
    if given.type not in (session_pb2.SESSION_TYPE_UNSPECIFIED, session_pb2.SESSION_TYPE_INFERENCE):
        violations.add(f"{path}.session.type", "must be SESSION_TYPE_INFERENCE, or left out")
    for field, _ in given.ListFields():
        if field.name in _NOT_OF_REPLICAS:
            violations.add(f"{path}.session.{field.name}", "has no place in a revision")
    violations.raise_any()
    asked = session_pb2.SessionSpec()
    asked.CopyFrom(given)
    asked.type = session_pb2.SESSION_TYPE_INFERENCE
    return replica, asked


def _session_error(refused: Refused, path: str) -> errors.ApiError:
    error = refused.error
    return error.with_paths(lambda field: _inner(path, field)) if isinstance(error, errors.InvalidRequest) else error


def _inner(path: str, field: str) -> str:
    return f"{path}.session{field.removeprefix('spec')}"


def home_project(given: str) -> str:
    """Returns the project of a new endpoint. Raises InvalidRequest and ProjectDenied."""
    caller = current_principal()
    project = given or (caller.projects[0] if len(caller.projects) == 1 else "")
    if not project:
        raise errors.InvalidRequest([("spec.project", no_project(caller.name, caller.projects))])
    if project not in caller.projects:
        raise errors.ProjectDenied(project, caller.projects)
    return project


async def find_endpoint(tx: Transaction, reference: str, *, lock: bool = False) -> EndpointView:
    """Returns the endpoint of a reference. Raises NotFound, also for what the caller may not see,
    InvalidRequest when several match, and UnreadableEndpointError.
    """
    return await read_endpoint(tx, await find_id(tx, reference), lock=lock)


async def find_id(tx: Transaction, reference: str) -> uuid.UUID:
    """Returns the id of the endpoint of a reference, whether or not all of it can be read. Raises NotFound, also for
    what the caller may not see, and InvalidRequest when several match.
    """
    found = await endpoints.find(tx, reference, caller_visibility())
    if len(found) > 1 and str(found[0]) != reference.lower():
        raise errors.InvalidRequest([("endpoint", "several projects have one of this name: say PROJECT/NAME")])
    if not found:
        raise errors.NotFound("endpoint", reference)
    return found[0]


async def _read_record(tx: Transaction, endpoint_id: uuid.UUID, *, lock: bool) -> EndpointRecord:
    record = (
        await endpoints.lock(tx, endpoint_id) if lock else (await endpoints.read(tx, [endpoint_id])).get(endpoint_id)
    )
    if record is None:
        raise errors.NotFound("endpoint", str(endpoint_id))
    return record


async def find_record(tx: Transaction, reference: str) -> EndpointRecord:
    """Locks the endpoint of a reference, whether or not all of it can be read, and returns it.
    Raises as `find_id`.
    """
    return await _read_record(tx, await find_id(tx, reference), lock=True)


async def read_endpoint(tx: Transaction, endpoint_id: uuid.UUID, *, lock: bool = False) -> EndpointView:
    """Returns an endpoint by its id. Raises NotFound, and UnreadableEndpointError."""
    record = await _read_record(tx, endpoint_id, lock=lock)
    replicas = await endpoint_replicas.read(tx, [endpoint_id])
    return view_of(record, replicas.get(endpoint_id, ()))


async def shown_endpoint(tx: Transaction, view: EndpointView, domain: str) -> pb.Endpoint:
    """Returns an endpoint as its reader sees it, with the address that routers serve it at below `domain`."""
    now, base = await endpoints.read_clock(tx), await routers.read_url(tx)
    return endpoint_message(view, now, full_view(view.record.owner), url=_url(base, view.record, domain))


async def shown_endpoints(tx: Transaction, records: Sequence[EndpointRecord], domain: str) -> list[pb.Endpoint]:
    """Returns endpoints as a list shows them; of one that cannot be read, what is known of it without."""
    now, base = await endpoints.read_clock(tx), await routers.read_url(tx)
    replicas = await endpoint_replicas.read(tx, [record.id for record in records])
    shown = []
    for record in records:
        try:
            view = view_of(record, replicas.get(record.id, ()))
            message = endpoint_message(view, now, SpecView.BASIC, url=_url(base, record, domain))
        except UnreadableEndpointError as error:
            _log.error("endpoint %s of project %s is shown in part: %s", record.name, record.project, error)
            spec = pb.EndpointSpec(name=record.name, project=record.project)
            message = pb.Endpoint(id=str(record.id), spec=spec, owner=record.owner, host_label=record.host_label)
            message.create_time.FromDatetime(record.create_time)
            message.conditions.add(type=ConditionType.UNREADABLE, message=str(error))
        shown.append(message)
    return shown


def _url(base: str, record: EndpointRecord, domain: str) -> str:
    found = urlsplit(base)
    port = "" if found.port is None else f":{found.port}"
    return f"{found.scheme}://{record.host_label}.{domain}{port}" if found.scheme else ""


async def check_hosts(  # noqa: PLR0917  # what is given, and what it is compared with
    tx: Transaction, hosts: Sequence[str], before: Collection[str], endpoint_id: uuid.UUID, own: OwnHosts, path: str
) -> None:
    """Refuses further host names, but for those that the endpoint has already, that are the installation's own or
    another endpoint's. Raises InvalidRequest and NameTaken.
    """
    given = {host: place for place, host in enumerate(hosts) if host not in before}
    if not given:
        return
    names = set(map(_host_of, await routers.read_urls(tx)))
    refused = [(f"{path}[{place}]", why) for host, place in given.items() if (why := refusal(host, own, names))]
    if refused:
        raise errors.InvalidRequest(refused)
    if taken := await endpoints.hosts_taken(tx, list(given), endpoint_id):
        raise errors.NameTaken("host", min(taken))


def _host_of(url: str) -> str:
    """Returns the host of an address that a router says; empty when that is none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def updated_spec(
    before: pb.EndpointSpec, given: pb.EndpointSpec, mask: FieldMask
) -> tuple[pb.EndpointSpec, Sequence[str]]:
    """Returns what is asked for after an update, and the fields that it names. Raises InvalidRequest."""
    paths = list(dict.fromkeys(mask.paths)) or [field.name for field, _ in given.ListFields() if field.name in _PARTS]
    made = pb.EndpointSpec()
    made.CopyFrom(before)
    wrong = []
    for path in paths:
        part, _, field = path.partition(".")
        if part not in _PARTS or (field and (part == "labels" or field not in _fields(part))):
            wrong.append(
                (
                    "update_mask",
                    f"unknown path {path[:64]!r}; known are {', '.join(_PARTS)} and fields of the first four",
                )
            )
        elif not field:
            made.ClearField(part)  # type: ignore[arg-type]  # one of the names above
            only = pb.EndpointSpec()
            only.CopyFrom(given)
            for other in [name for name in only.DESCRIPTOR.fields_by_name if name != part]:
                only.ClearField(other)  # type: ignore[arg-type]  # a field of it
            made.MergeFrom(only)
        else:
            _copy_field(getattr(given, part), getattr(made, part), field)
    if wrong:
        raise errors.InvalidRequest(wrong)
    return made, paths


def _fields(part: str) -> Sequence[str]:
    message = pb.EndpointSpec.DESCRIPTOR.fields_by_name[part].message_type
    return list(message.fields_by_name) if message is not None else ()


def _copy_field(given: object, made: object, field: str) -> None:
    """Copies one field between two messages of a type; one that is not given goes back to its default."""
    only = type(given)()
    only.CopyFrom(given)  # type: ignore[attr-defined]  # a message
    for other in [name for name in only.DESCRIPTOR.fields_by_name if name != field]:  # type: ignore[attr-defined]
        only.ClearField(other)  # type: ignore[attr-defined]
    made.ClearField(field)  # type: ignore[attr-defined]
    made.MergeFrom(only)  # type: ignore[attr-defined]
