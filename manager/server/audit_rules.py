"""Says which calls leave a record in the audit, and what of their requests it shows. One table, beside the one of
`authorization`; a test fails for a method that is not in it.

Recorded are acts with the rights of an administrator and acts on accounts. Not recorded are reads, unless they show
what another user's session holds; what users do with their own sessions and endpoints, which the journal has; and what
nodes do for themselves. Denied calls are counted whatever the table says.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message

from retinue.manager.identity.principal import Kind, Principal
from retinue.manager.server.fields import parse_uuid
from retinue.rpc.core.errors import printable
from retinue.rpc.fields import is_map

MAX_NAME, MAX_SUMMARY = 128, 512
MAX_REFERENCES = 10_000
"""What one call is on at most; handlers take no more."""
# Tokens and tickets of all kinds, secrets of webhooks, and JWTs.
_SECRET = re.compile(r"\b(?:rt[a-z]_|whsec_|eyJ)\S*")
_HIDDEN = "(hidden)"


class Recorded(enum.Enum):
    """The calls of a method that are recorded."""

    NEVER = enum.auto()
    ALWAYS = enum.auto()
    ADMINISTRATORS = enum.auto()
    """Those of administrators, of the whole system or of a project."""
    OTHERS = enum.auto()
    """Those on what another user owns: only administrators have the right to it."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What becomes of the calls of a method. `name` is the path of the field that names the object, of the given kind;
    when it is empty, the object is the caller. `fields` are the paths of all fields whose values a record may show:
    none that may hold a secret, nor what a user has written freely.
    """

    recorded: Recorded
    kind: str = ""
    name: str = ""
    fields: tuple[str, ...] = ()


_NEVER = Rule(Recorded.NEVER)


def _always(kind: str, name: str, *fields: str) -> Rule:
    return Rule(Recorded.ALWAYS, kind, name, fields)


def _session(*fields: str, name: str = "session") -> Rule:
    return Rule(Recorded.OTHERS, "session", name, fields)


def _endpoint(*fields: str) -> Rule:
    return Rule(Recorded.OTHERS, "endpoint", "endpoint", fields)


def _template(name: str, *fields: str) -> Rule:
    return Rule(Recorded.ADMINISTRATORS, "template", name, fields)


def _methods(service: str, rules: Mapping[str, Rule]) -> dict[str, Rule]:
    return {f"/{service}/{method}": rule for method, rule in rules.items()}


RULES: Mapping[str, Rule] = {
    **_methods(
        "retinue.manager.v1.SessionService",
        {
            "CreateSession": _NEVER,
            "BatchCreateSessions": _NEVER,
            "GetSession": _NEVER,
            "ListSessions": _NEVER,
            "GetSessionGraph": _NEVER,
            "TerminateSession": _session("force"),
            "BatchTerminateSessions": _session("force", name="sessions"),
            "RestartSession": _session("force", "request_id"),
            "UpdateSession": _session("spec.name", "spec.priority", "spec.hold", "update_mask", "request_id"),
            "ExtendSession": _session("duration"),
            "WatchSessions": _NEVER,
            "ExplainSession": _NEVER,
        },
    ),
    **_methods(
        "retinue.manager.v1.KernelService",
        {
            "StreamLogs": _session("hostname", "all"),
            "StreamStats": _NEVER,
            "ListUsageSamples": _NEVER,
            "Attach": _session("start.hostname", "start.spec.detached", name="start.session"),
            "OpenPort": _session("start.hostname", "start.port", "start.files", name="start.session"),
            "CreatePortTicket": _session("port"),
            "CreatePortTunnel": _session("port"),
            "CreateSshCertificate": _session("ttl"),
            "ExecuteCode": _session(name="open.session"),
            "UploadFiles": _session("start.hostname", name="start.session"),
            "DownloadFiles": _session("hostname"),
            "ListFiles": _session("hostname"),
        },
    ),
    **_methods(
        "retinue.manager.v1.AppService",
        {
            "StartApp": _session("app"),
            # Its address may hold the token of the app.
            "GetApp": _session("app"),
            "StopApp": _session("app"),
        },
    ),
    **_methods(
        "retinue.manager.v1.TemplateService",
        {
            "CreateTemplate": _template("template.name", "template.project", "template.for_all_projects", "request_id"),
            "GetTemplate": _NEVER,
            "ListTemplates": _NEVER,
            "UpdateTemplate": _template("template.name", "template.id", "template.project", "update_mask"),
            "DeleteTemplate": _template("template", "project"),
            "RenderTemplate": _NEVER,
        },
    ),
    **_methods(
        "retinue.manager.v1.EndpointService",
        {
            "CreateEndpoint": _NEVER,
            "GetEndpoint": _NEVER,
            "ListEndpoints": _NEVER,
            "UpdateEndpoint": _endpoint("update_mask", "request_id"),
            "DeleteEndpoint": _endpoint(),
            "DeployRevision": _endpoint("request_id"),
            "GetRevision": _NEVER,
            "ListRevisions": _NEVER,
            "PromoteRollout": _endpoint("request_id"),
            "PauseRollout": _endpoint("request_id"),
            "ResumeRollout": _endpoint("request_id"),
            "RollBackEndpoint": _endpoint("to_revision", "request_id"),
            "SetTraffic": _endpoint("request_id"),
            "SetScalingFloor": _endpoint("replicas", "duration", "request_id"),
            "ExplainEndpoint": _NEVER,
            "WatchEndpoints": _NEVER,
            "StreamEndpointStats": _NEVER,
            "GetEndpointHistory": _NEVER,
            "CreateEndpointToken": _always("endpoint", "endpoint", "lifetime"),
            "ListEndpointTokens": _NEVER,
            "RevokeEndpointToken": _always("endpoint", "endpoint", "token_id"),
        },
    ),
    **_methods(
        "retinue.manager.v1.FleetService",
        {
            "GetAgent": _NEVER,
            "ListAgents": _NEVER,
            "DrainAgent": _always("agent", "agent", "keep_system", "deadline"),
            "UndrainAgent": _always("agent", "agent"),
            "RevokeAgent": _always("agent", "agent"),
            "DeleteAgent": _always("agent", "agent"),
            "ConfirmLostAgents": _always("resource_group", "resource_group", "agents"),
            "ListOrphans": _NEVER,
            "EndOrphans": _always("agent", "agent", "attempt_ids"),
            "GetRouter": _NEVER,
            "ListRouters": _NEVER,
            "RevokeRouter": _always("router", "router"),
            "GetResourceGroup": _NEVER,
            "ListResourceGroups": _NEVER,
            "CreateResourceGroup": _always("resource_group", "resource_group.name", "request_id"),
            "UpdateResourceGroup": _always("resource_group", "resource_group.name", "update_mask"),
            "DeleteResourceGroup": _always("resource_group", "name"),
            "ListShares": _NEVER,
            "ListShareHistories": _NEVER,
            "VerifyLedger": _NEVER,
            "CreateJoinToken": _always("resource_group", "resource_group", "agent", "ttl", "uses", "kind"),
        },
    ),
    **_methods(
        "retinue.manager.v1.AccountService",
        {
            "GetCaller": _NEVER,
            "CreateProject": _always("project", "project.name", "request_id"),
            "GetProject": _NEVER,
            "ListProjects": _NEVER,
            "DeleteProject": _always("project", "name"),
            "CreateUser": _always(
                *("user", "user.name"),
                *("user.role", "user.memberships", "user.file_owner.uid", "user.file_owner.gid", "request_id"),
            ),
            "GetUser": _NEVER,
            "ListUsers": _NEVER,
            "DeleteUser": _always("user", "name"),
            "SetMembership": _always("user", "user", "project", "role"),
            "DeleteMembership": _always("user", "user", "project"),
            "SetFileOwner": _always("user", "user", "file_owner.uid", "file_owner.gid"),
            "SetUserRole": _always("user", "user", "role"),
            "CreateToken": _always("user", "user", "ttl"),
            "ListTokens": _NEVER,
            "RevokeToken": _always("token", "token_id"),
            "CreateConsoleTicket": _always("user", ""),
            "CreateSshKey": _always("user", ""),
            "ListSshKeys": _NEVER,
            "DeleteSshKey": _always("ssh_key", "fingerprint"),
            "SetQuota": _always(
                *("quota", "quota.name", "quota.kind", "quota.slots", "quota.max_sessions"),
                *("quota.max_pending_sessions", "quota.highest_priority", "quota.max_system_sessions"),
            ),
            "GetQuota": _NEVER,
            "ListQuotas": _NEVER,
            "SetIdleOverride": _always("user", "override.user", "override.exempt"),
            "ListIdleOverrides": _NEVER,
            "ListAuditRecords": _NEVER,
        },
    ),
    # What nodes do for themselves. An administrator's act is to make a join token, and to revoke.
    **_methods(
        "retinue.manager.v1.EnrollmentService",
        dict.fromkeys(("Enroll", "BeginRecovery", "RecoverCertificate", "Announce", "RenewCertificate"), _NEVER),
    ),
    **_methods("grpc.health.v1.Health", dict.fromkeys(("Check", "List", "Watch"), _NEVER)),
    **_methods("grpc.reflection.v1.ServerReflection", {"ServerReflectionInfo": _NEVER}),
    **_methods("grpc.reflection.v1alpha.ServerReflection", {"ServerReflectionInfo": _NEVER}),
}


def rule_for(method: str, principal: Principal | None) -> Rule | None:
    """Returns the rule by which a call may be recorded; None when it is not, whatever its request says."""
    rule = RULES.get(method, _NEVER)
    match rule.recorded:
        case Recorded.NEVER:
            return None
        case Recorded.ALWAYS:
            return rule
        case _:
            return rule if principal is not None and is_administrator(principal) else None


def is_administrator(principal: Principal) -> bool:
    """Returns whether a caller has the rights of an administrator, of the whole system or of a project."""
    return principal.kind is Kind.USER and (principal.is_admin or bool(principal.administered))


def references_of(rule: Rule, request: Message) -> list[str]:
    """Returns how a request names what it is on, each once; MAX_REFERENCES at most."""
    return list(dict.fromkeys(islice(_texts(request, rule.name), MAX_REFERENCES))) if rule.name else []


def object_of(rule: Rule, request: Message, principal: Principal) -> str:
    """Returns the name of what a call is on as a record has it; the caller's when it names none."""
    value = next(iter(references_of(rule, request)), "")
    if rule.kind == "token" and parse_uuid(value) is None:
        # A part of the token itself, by mistake.
        return _HIDDEN
    return shown(value, MAX_NAME) or (principal.name if rule.kind == "user" else "")


def summary_of(rule: Rule, request: Message) -> str:
    """Returns the fields that a record may show, as `role=USER_ROLE_ADMIN ttl=3600s`; those that are not given are left
    out.
    """
    parts = ((path, ",".join(_texts(request, path))) for path in rule.fields)
    return shown(" ".join(f"{path}={value}" for path, value in parts if value), MAX_SUMMARY)


def shown(text: str, longest: int) -> str:
    """Returns a text as a record has it: printable, at most `longest` bytes, and without what looks like a secret."""
    return printable(_SECRET.sub(_HIDDEN, text), longest)


def _texts(message: Message, path: str) -> Iterator[str]:
    """Yields the values of a field; none when it is not given."""
    name, _, rest = path.partition(".")
    field = message.DESCRIPTOR.fields_by_name[name]
    value = getattr(message, name)
    if rest:
        if message.HasField(name):
            yield from _texts(value, rest)
    elif is_map(field):
        yield from (f"{key}:{value[key]}" for key in sorted(value))
    elif field.is_repeated:
        yield from (_text(field, item) for item in value)
    elif message.HasField(name) if field.has_presence else value:
        yield _text(field, value)


def _text(field: Any, value: Any) -> str:
    if isinstance(value, Duration):
        return _span(value)
    if isinstance(value, FieldMask):
        return ",".join(value.paths)
    if isinstance(value, Message):
        return "/".join(text for part in value.DESCRIPTOR.fields for text in _texts(value, part.name))
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    return str(value).lower() if isinstance(value, bool) else str(value)


def _span(value: Duration) -> str:
    try:
        return value.ToJsonString()
    except ValueError:
        # Out of range, or of two signs: the handler refuses it.
        return f"{value.seconds}s{value.nanos:+}ns"


Parser = Callable[[bytes], Message]
"""Reads a message of a stream whose handler takes it as it is on the wire."""
