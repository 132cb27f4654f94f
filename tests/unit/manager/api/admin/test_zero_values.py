"""The zero value of an enum never acts: each one in a request that changes something is refused,
or stands for what is documented.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.json_format import ParseDict
from google.protobuf.message_factory import GetMessageClass

from retinue.manager.api.admin.accounts import checked_role, checked_user, checked_user_role
from retinue.manager.api.admin.enrollment import checked_kind
from retinue.manager.api.admin.group_policy import changed_policy, new_policy
from retinue.manager.api.admin.quota_convert import checked_limits
from retinue.manager.api.endpoints.requests import checked_revision, updated_spec
from retinue.manager.api.endpoints.settings_convert import Reader
from retinue.manager.api.sessions.idle_convert import checked_override
from retinue.manager.api.sessions.requests import sessions_of
from retinue.manager.api.sessions.spec_convert import to_spec
from retinue.manager.api.sessions.template_requests import check_content, updated
from retinue.manager.api.streams.ports import checked_start
from retinue.manager.domain.errors import InvalidRequest
from retinue.manager.domain.scheduling.policy import Policy
from retinue.manager.domain.session.isolation_policy import IsolationPolicy
from retinue.manager.scheduling import strategies
from retinue.manager.server.fields import Violations
from retinue.manager.v1 import endpoint_pb2, session_pb2
from tests.unit.manager.contract import methods

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from google.protobuf.descriptor import Descriptor, EnumDescriptor

    from retinue.manager.store.fleet.groups import GroupPolicy

REFUSED = "REFUSED"
OWN = "own"
SESSION = {
    "type": REFUSED,
    "cluster_mode": "CLUSTER_MODE_SINGLE_NODE",
    "agent_choice": "AGENT_CHOICE_PREFERRED",
    # No value: the group's agent strategy decides.
    "replica_placement": None,
    # No value: the group's default decides.
    "kernel.isolation": None,
    "roles.kernel.isolation": None,
    "kernel.pull_policy": None,
    "roles.kernel.pull_policy": None,
    "webhooks.events": REFUSED,
}
# A template may leave any field of a session open: what it is made of is checked with the session.
TEMPLATE = {path: rule if rule == REFUSED and path != "type" else None for path, rule in SESSION.items()}
SCHEDULING = {
    "session_strategy.external.fallback": "SESSION_FALLBACK_DRF",
    "session_strategy.custom.fallback": "SESSION_FALLBACK_DRF",
    "agent_strategy.external.fallback": "AGENT_FALLBACK_CONCENTRATED",
    "agent_strategy.custom.fallback": "AGENT_FALLBACK_CONCENTRATED",
    "preemption.mode": "PREEMPTION_MODE_OFF",
    "preemption.order": "PREEMPTION_ORDER_NEWEST",
}
RULES: dict[str, dict[str, str | None]] = {
    "CreateSession": {f"spec.{path}": rule for path, rule in SESSION.items()},
    "BatchCreateSessions": {
        f"{above}.{path}": rule for above in ("specs", "array.spec") for path, rule in SESSION.items()
    },
    "CreateTemplate": {f"template.spec.{path}": rule for path, rule in TEMPLATE.items()},
    "UpdateTemplate": {f"template.spec.{path}": rule for path, rule in TEMPLATE.items()},
    "CreateUser": {"user.role": "USER_ROLE_USER", "user.memberships.role": REFUSED},
    "SetMembership": {"role": REFUSED},
    "SetUserRole": {"role": REFUSED},
    "SetQuota": {"quota.kind": REFUSED},
    # No value: that of the group.
    "SetIdleOverride": {
        "override.policy.utilization.operator": None,
        "override.policy.join": None,
        "override.exempt": REFUSED,
    },
    "CreateResourceGroup": {
        **{f"resource_group.scheduling_policy.{path}": rule for path, rule in SCHEDULING.items()},
        "resource_group.egress": "EGRESS_POLICY_ALLOW",
        "resource_group.session_types": REFUSED,
        "resource_group.isolations": REFUSED,
        # No value: the image of a kernel decides.
        "resource_group.default_isolation": None,
        "resource_group.default_pull_policy": None,
        "resource_group.idle_policy.utilization.operator": "UTILIZATION_OPERATOR_ALL",
        # No value: all of them.
        "resource_group.idle_policy.join": None,
    },
    "UpdateResourceGroup": {
        **{f"resource_group.scheduling_policy.{path}": rule for path, rule in SCHEDULING.items()},
        "resource_group.egress": REFUSED,
        "resource_group.session_types": REFUSED,
        "resource_group.isolations": REFUSED,
        "resource_group.default_isolation": None,
        "resource_group.default_pull_policy": None,
        "resource_group.idle_policy.utilization.operator": "UTILIZATION_OPERATOR_ALL",
        # No value: all of them.
        "resource_group.idle_policy.join": None,
    },
}
REVISION = {
    **{f"session.{path}": rule for path, rule in SESSION.items() if path != "webhooks.events"},
    "session.type": "SESSION_TYPE_INFERENCE",
    "protocol": "APP_PROTOCOL_HTTP1",
}
POLICIES = {"spec.routing.algorithm": "ROUTING_ALGORITHM_LEAST_REQUEST", "spec.access.mode": "ACCESS_MODE_TOKEN"}
RULES |= {
    "CreateEndpoint": {**{f"spec.revision.{path}": rule for path, rule in REVISION.items()}, **POLICIES},
    "UpdateEndpoint": dict(POLICIES),
    "DeployRevision": {f"revision.{path}": rule for path, rule in REVISION.items()},
    "Enroll": {"kind": "NODE_KIND_AGENT"},
    "RecoverCertificate": {"kind": "NODE_KIND_AGENT"},
    "CreateJoinToken": {"kind": "NODE_KIND_AGENT"},
    # No value: a port.
    "OpenPort": {"start.files": None},
}
# Requests that nothing but a zero value makes wrong.
SOUND_SPEC = {"name": "s", "project": "p", "type": "SESSION_TYPE_INTERACTIVE"}
SOUND: dict[str, dict[str, Any]] = {
    "CreateSession": {"spec": SOUND_SPEC},
    "BatchCreateSessions": {"specs": [SOUND_SPEC], "array": {"spec": SOUND_SPEC, "indices": [0]}},
    "CreateTemplate": {"template": {"name": "t"}},
    "UpdateTemplate": {"template": {"name": "t", "spec": {}}},
    "CreateUser": {"user": {"name": "u"}},
    "SetMembership": {"user": "u", "project": "p", "role": "PROJECT_ROLE_MEMBER"},
    "SetUserRole": {"user": "u", "role": "USER_ROLE_USER"},
    "SetQuota": {"quota": {"kind": "QUOTA_KIND_USER", "name": "u"}},
    "SetIdleOverride": {"override": {"user": "u"}},
    "CreateResourceGroup": {"resource_group": {"name": "g"}},
    "UpdateResourceGroup": {"resource_group": {"name": "g"}},
    "CreateEndpoint": {"spec": {"name": "e", "revision": {"port": 1}}},
    "UpdateEndpoint": {"endpoint": "e"},
    "DeployRevision": {"endpoint": "e", "revision": {"port": 1}},
    "Enroll": {},
    "RecoverCertificate": {},
    "CreateJoinToken": {},
    "OpenPort": {"start": {"session": "s", "port": "p"}},
}


class OwnStrategy:
    """A strategy of others without options."""

    options = ()

    def __init__(self, options: dict[str, str]) -> None:
        """Takes none."""


@pytest.fixture(autouse=True)
def installed_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has one strategy of others installed."""
    monkeypatch.setattr(strategies, "installed", lambda _group: {OWN: None})
    monkeypatch.setattr(strategies, "load", lambda _group, _name: OwnStrategy)


def enums(message: Descriptor, above: str = "", seen: frozenset[str] = frozenset()) -> Iterator[str]:
    """Returns the paths of the enum fields of a message."""
    for field in message.fields if message.full_name not in seen else ():
        if field.enum_type is not None:
            yield above + field.name
        elif field.message_type is not None:
            yield from enums(field.message_type, f"{above}{field.name}.", seen | {message.full_name})


def _group(message: Any) -> GroupPolicy:
    violations = Violations()
    policy = new_policy(message, violations)
    violations.raise_any()
    return policy


def _changed_group(request: Any) -> GroupPolicy:
    violations = Violations()
    paths = ["egress", "idle_policy", "scheduling_policy", "session_types", "isolations", "default_isolation"]
    paths.append("default_pull_policy")
    request.update_mask.CopyFrom(FieldMask(paths=paths))
    policy = changed_policy(
        Policy("drf", "concentrated"), IsolationPolicy(), request.resource_group, request.update_mask, violations
    )
    violations.raise_any()
    return policy


def _template(template: Any) -> Any:
    violations = Violations()
    check_content(template, violations)
    violations.raise_any()
    return template.spec


def _settings(spec: Any) -> Any:
    violations = Violations()
    settings = Reader(violations).settings(spec, "spec")
    violations.raise_any()
    return settings


def _revision(revision: Any) -> Any:
    replica, session = checked_revision(revision, "spec.revision")
    return replica, _spec(session)


def _spec(spec: Any) -> Any:
    try:
        return to_spec(spec, default_name="", default_project="")
    except ValueError as error:
        raise InvalidRequest([(error.args[0], error.args[1])]) from error


def _outcome(check: Callable[[Any], Any], request: Any) -> Any:
    """Returns what a request is read as, or what is wrong with it."""
    try:
        return check(request)
    except InvalidRequest as refused:
        return refused.violations


def _enum_of(message: Descriptor, path: str) -> EnumDescriptor:
    *above, last = path.split(".")
    for name in above:
        inner = message.fields_by_name[name].message_type
        assert inner is not None
        message = inner
    found = message.fields_by_name[last].enum_type
    assert found is not None
    return found


CHECKS: dict[str, Callable[[Any], Any]] = {
    "CreateSession": lambda request: _spec(request.spec),
    "BatchCreateSessions": lambda request: [_spec(spec) for spec in (*request.specs, *sessions_of(request.array))],
    "CreateTemplate": lambda request: _template(request.template),
    "UpdateTemplate": lambda request: _template(updated(request, "", session_pb2.SessionSpec())),
    "CreateUser": checked_user,
    "SetMembership": checked_role,
    "SetUserRole": checked_user_role,
    "SetQuota": lambda request: checked_limits(request.quota),
    "SetIdleOverride": lambda request: checked_override(request.override),
    "CreateResourceGroup": lambda request: _group(request.resource_group),
    "UpdateResourceGroup": _changed_group,
    "CreateEndpoint": lambda request: (_settings(request.spec), _revision(request.spec.revision)),
    "UpdateEndpoint": lambda request: _settings(
        updated_spec(endpoint_pb2.EndpointSpec(), request.spec, FieldMask())[0]
    ),
    "DeployRevision": lambda request: _revision(request.revision),
    "Enroll": checked_kind,
    "RecoverCertificate": checked_kind,
    "CreateJoinToken": checked_kind,
    "OpenPort": checked_start,
}
BY_NAME = {method.name: method for method in methods()}
CASES = [
    (name, path)
    for name, method in BY_NAME.items()
    for path in enums(method.input_type)
    # Replicas have no webhooks at all, and an update takes no revision.
    if not path.endswith("revision.session.webhooks.events")
    and not (name == "UpdateEndpoint" and path.startswith("spec.revision."))
    # None of what changes is an enum.
    and name != "UpdateSession"
]


def request_with(method: str, path: str, value: str | int) -> Any:
    """Returns a sound request with one enum value; repeated messages on the way have one element."""
    kind = BY_NAME[method].input_type
    request: Any = ParseDict(SOUND[method], GetMessageClass(kind)())
    holder: Any = request
    *above, last = path.split(".")
    for name in above:
        field = holder.DESCRIPTOR.fields_by_name[name]
        holder = getattr(holder, name)
        if field.is_repeated:
            holder = holder[0] if holder else holder.add()
            if name == "roles":
                holder.role = "sub"
        else:
            holder.SetInParent()
    if method == "UpdateResourceGroup" and not path.endswith("egress"):
        ParseDict({"egress": "EGRESS_POLICY_DENY"}, request.resource_group)
    if path.endswith("utilization.operator"):
        ParseDict({"window": "60s", "thresholds": {"cpu": 1}}, holder)
    if path.endswith("webhooks.events"):
        holder.url = "http://example.test/"
    if ".custom." in path:
        holder.name = OWN
    if ".external." in path:
        request.resource_group.scheduling_policy.external_server.address = "127.0.0.1:1"
    if path.endswith("memberships.role"):
        holder.project = "p"
    number = _enum_of(kind, path).values_by_name[value].number if isinstance(value, str) else value
    if holder.DESCRIPTOR.fields_by_name[last].is_repeated:
        getattr(holder, last).append(number)
    else:
        setattr(holder, last, number)
    return request


def test_every_enum_of_a_request_that_changes_something_has_a_rule() -> None:
    assert {(method, path) for method, rules in RULES.items() for path in rules} == set(CASES)
    assert len(CASES) > 20


@pytest.mark.parametrize(("method", "path"), CASES, ids=[f"{method}-{path}" for method, path in CASES])
def test_the_zero_value_does_not_act(method: str, path: str) -> None:
    rule, check = RULES[method][path], CHECKS[method]
    zero = request_with(method, path, 0)
    if rule == REFUSED:
        with pytest.raises(InvalidRequest) as refused:
            check(zero)
        (violation,) = refused.value.violations
        # Elements are named by their positions; sessions in a list, by the caller.
        named = violation[0].replace("[0]", "")
        if method == "BatchCreateSessions":
            named = named.replace("spec.", "array.spec." if "array" in path else "specs.")
        assert named == path
    elif rule is None:
        field = _enum_of(BY_NAME[method].input_type, path)
        for value in field.values[1:]:
            assert check(zero) != _outcome(check, request_with(method, path, value.name)), value.name
    else:
        assert check(zero) == check(request_with(method, path, rule))
