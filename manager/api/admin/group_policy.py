"""Policies of resource groups, from messages: checked, with defaults filled in, as stored."""

from __future__ import annotations

import datetime as dt
from types import MappingProxyType
from typing import TYPE_CHECKING

from retinue.manager.api.admin import scheduling_policy
from retinue.manager.api.sessions.idle_convert import checked_policy
from retinue.manager.api.sessions.isolation_convert import ISOLATIONS, isolation_number
from retinue.manager.api.sessions.pull_policy_convert import PULL_POLICIES
from retinue.manager.domain.scheduling.records import DEFAULT_RULE
from retinue.manager.domain.session.admission import MAX_GRACE_SECONDS
from retinue.manager.domain.session.image_registries import check_patterns
from retinue.manager.domain.session.isolation import Isolation
from retinue.manager.domain.session.mounts import MountRoot, check_roots
from retinue.manager.domain.session.spec import DEFAULT_GRACE_SECONDS
from retinue.manager.v1 import fleet_service_pb2 as pb
from retinue.manager.v1.session_pb2 import SessionType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.field_mask_pb2 import FieldMask

    from retinue.manager.domain.idle.policy import IdlePolicy
    from retinue.manager.domain.scheduling.policy import Policy
    from retinue.manager.domain.session.isolation_policy import IsolationPolicy
    from retinue.manager.server.fields import Violations
    from retinue.manager.store.fleet.groups import GroupPolicy

DEFAULT_START_TIMEOUT = dt.timedelta(minutes=10)
SHORTEST_START_TIMEOUT, LONGEST_START_TIMEOUT = dt.timedelta(seconds=1), dt.timedelta(days=1)
DEFAULT_MAX_GRACE, LONGEST_GRACE = dt.timedelta(minutes=5), dt.timedelta(seconds=MAX_GRACE_SECONDS)
# A session that asks for no grace is taken by every group.
SHORTEST_MAX_GRACE = dt.timedelta(seconds=DEFAULT_GRACE_SECONDS)
MAX_WEIGHTS, MAX_WEIGHT = 10_000, 1_000_000
MAX_PERCENT, MAX_MASS_LOSS_AGENTS = 100, 100_000
SHORTEST_MASS_LOSS_WINDOW, LONGEST_MASS_LOSS_WINDOW = dt.timedelta(seconds=1), dt.timedelta(days=1)
_SCHEDULING = "scheduling_policy"
MUTABLE = (
    _SCHEDULING,
    *(f"{_SCHEDULING}.{field}" for field in scheduling_policy.FIELDS),
    "owner_weights",
    "start_timeout",
    "max_grace",
    "egress",
    "mount_roots",
    "image_registries",
    "session_types",
    "isolations",
    "default_isolation",
    "default_pull_policy",
    "mass_loss_percent",
    "mass_loss_agents",
    "mass_loss_window",
    "idle_policy",
)
_EGRESS_PREFIX = "EGRESS_POLICY_"


def new_policy(message: pb.ResourceGroup, violations: Violations) -> GroupPolicy:
    """The policy of a group to be made, by column; what is wrong goes to `violations`."""
    return {
        **_scheduling(scheduling_policy.to_policy(message.scheduling_policy, violations)),
        "owner_weights": _owner_weights(message, violations),
        "start_timeout_seconds": _start_timeout(message, violations),
        "max_grace_seconds": _max_grace(message, violations),
        "egress": _egress(message, violations),
        "mount_roots": _mount_roots(message, violations),
        "image_registries": _image_registries(message, violations),
        "session_types": _session_types(message, violations),
        **_isolation_policy(message, violations),
        "default_pull_policy": _pull_policy(message, violations),
        "mass_loss_percent": _mass_loss_percent(message, violations),
        "mass_loss_agents": _mass_loss_agents(message, violations),
        "mass_loss_window_seconds": _mass_loss_window(message, violations),
        "idle_policy": _idle_policy(message, violations),
    }


def changed_policy(
    stored: Policy,
    isolation: IsolationPolicy,
    message: pb.ResourceGroup,
    mask: FieldMask,
    violations: Violations,
) -> GroupPolicy:
    """The columns that change of a group whose policies of scheduling and isolation are `stored` and `isolation`; a
    field in the mask that is empty goes back to its default.

    Without a mask, the fields that are set change. Both policies are checked as a whole, as they would be afterwards;
    options that a newer version wrote stay, unless all of them are replaced.
    """
    paths = violations.mask("update_mask", mask, MUTABLE)
    if not mask.paths:
        paths = [field.name for field, _ in message.ListFields() if field.name in MUTABLE and field.name != _SCHEDULING]
        paths += [f"{_SCHEDULING}.{field.name}" for field, _ in message.scheduling_policy.ListFields()]
    policy: GroupPolicy = {}
    for path in paths:
        if path in _COLUMNS:
            policy.update(_COLUMNS[path](message, violations))
    if not {"isolations", "default_isolation"}.isdisjoint(paths):
        policy.update(_changed_isolation(isolation, message, paths, violations))
    fields = [path.removeprefix(f"{_SCHEDULING}.") for path in paths if path.startswith(f"{_SCHEDULING}.")]
    if _SCHEDULING in paths:
        fields = list(scheduling_policy.FIELDS)
    if fields:
        wanted = scheduling_policy.merge(scheduling_policy.to_message(stored), message.scheduling_policy, fields)
        changed = scheduling_policy.to_policy(wanted, violations)
        kept = {} if _SCHEDULING in paths else scheduling_policy.unread_options(stored, changed, fields)
        policy.update(_scheduling(changed, kept))
    return policy


def _scheduling(policy: Policy, kept: Mapping[str, str] = MappingProxyType({})) -> GroupPolicy:
    """Returns the columns of a scheduling policy, with options that are `kept` from before."""
    return {
        "session_strategy": policy.session_strategy,
        "agent_strategy": policy.agent_strategy,
        "options": {**kept, **policy.options},
    }


def _owner_weights(message: pb.ResourceGroup, violations: Violations) -> dict[str, int]:
    violations.mapping("resource_group.owner_weights", message.owner_weights, MAX_WEIGHTS)
    for owner, weight in sorted(message.owner_weights.items()):
        if not 1 <= weight <= MAX_WEIGHT:
            violations.add(f"resource_group.owner_weights[{owner[:64]!r}]", f"must be from 1 to {MAX_WEIGHT}")
    return dict(message.owner_weights)


def _start_timeout(message: pb.ResourceGroup, violations: Violations) -> int:
    if not message.HasField("start_timeout"):
        return int(DEFAULT_START_TIMEOUT.total_seconds())
    return _seconds("start_timeout", message.start_timeout, SHORTEST_START_TIMEOUT, LONGEST_START_TIMEOUT, violations)


def _max_grace(message: pb.ResourceGroup, violations: Violations) -> int:
    if not message.HasField("max_grace"):
        return int(DEFAULT_MAX_GRACE.total_seconds())
    return _seconds("max_grace", message.max_grace, SHORTEST_MAX_GRACE, LONGEST_GRACE, violations)


def _mass_loss_percent(message: pb.ResourceGroup, violations: Violations) -> int:
    wanted = message.mass_loss_percent or DEFAULT_RULE.percent
    return violations.integer("resource_group.mass_loss_percent", wanted, 1, MAX_PERCENT)


def _mass_loss_agents(message: pb.ResourceGroup, violations: Violations) -> int:
    wanted = message.mass_loss_agents or DEFAULT_RULE.agents
    return violations.integer("resource_group.mass_loss_agents", wanted, 1, MAX_MASS_LOSS_AGENTS)


def _mass_loss_window(message: pb.ResourceGroup, violations: Violations) -> int:
    if not message.HasField("mass_loss_window"):
        return int(DEFAULT_RULE.window)
    shortest, longest = SHORTEST_MASS_LOSS_WINDOW, LONGEST_MASS_LOSS_WINDOW
    return _seconds("mass_loss_window", message.mass_loss_window, shortest, longest, violations)


def _seconds(field: str, message: Duration, least: dt.timedelta, most: dt.timedelta, violations: Violations) -> int:
    path = f"resource_group.{field}"
    value = violations.duration(path, message, least, most)
    if value.microseconds:
        violations.add(path, "must be whole seconds")
    return int(value.total_seconds())


def _egress(message: pb.ResourceGroup, violations: Violations) -> str:
    value = message.egress or pb.EGRESS_POLICY_ALLOW
    if value not in pb.EgressPolicy.values():
        violations.add("resource_group.egress", "is not a policy that is known here")
        return "ALLOW"
    return pb.EgressPolicy.Name(value).removeprefix(_EGRESS_PREFIX)


def _changed_egress(message: pb.ResourceGroup, violations: Violations) -> str:
    # In a create the zero value stands for the default; here it would open what was closed.
    if message.egress == pb.EGRESS_POLICY_UNSPECIFIED:
        violations.add("resource_group.egress", "must be given when the mask names it")
    return _egress(message, violations)


def _mount_roots(message: pb.ResourceGroup, violations: Violations) -> list[MountRoot]:
    roots = [
        MountRoot(root.path, root.writable, tuple(root.projects), root.owner.account, root.owner.uid, root.owner.gid)
        for root in message.mount_roots
    ]
    for position, root in enumerate(message.mount_roots):
        if root.HasField("owner") and not (root.owner.account or root.owner.uid or root.owner.gid):
            # Numbers that are 0, root's, are not to be seen in a message.
            violations.add(f"resource_group.mount_roots[{position}].owner", "must say whose: never root's")
    found: list[tuple[str, str]] = []
    check_roots(roots, "resource_group.mount_roots", found)
    for path, description in found:
        violations.add(path, description)
    return roots


def _image_registries(message: pb.ResourceGroup, violations: Violations) -> list[str]:
    patterns = list(message.image_registries)
    found: list[tuple[str, str]] = []
    check_patterns(patterns, "resource_group.image_registries", found)
    for path, description in found:
        violations.add(path, description)
    return patterns


def _session_types(message: pb.ResourceGroup, violations: Violations) -> list[str]:
    known = {number: name.removeprefix("SESSION_TYPE_") for name, number in SessionType.items() if number}
    types = [known.get(number, "") for number in message.session_types]
    if not all(types) or len(set(types)) < len(types):
        violations.add("resource_group.session_types", "must be known types, each once")
    return types


def _isolation_policy(message: pb.ResourceGroup, violations: Violations) -> GroupPolicy:
    names = [ISOLATIONS.get(number, "") for number in message.isolations]
    if not all(names) or len(set(names)) < len(names):
        violations.add("resource_group.isolations", "must be known isolations, each once")
    default = ISOLATIONS.get(message.default_isolation, "")
    if message.default_isolation and not default:
        violations.add("resource_group.default_isolation", "must be a known isolation")
    elif default and names and default not in names:
        violations.add("resource_group.default_isolation", "must be one of isolations")
    return {"isolations": names, "default_isolation": default}


def _changed_isolation(
    stored: IsolationPolicy, message: pb.ResourceGroup, paths: Sequence[str], violations: Violations
) -> GroupPolicy:
    """Returns both columns: what is not in `paths` stays as it is stored."""
    wanted = pb.ResourceGroup(isolations=message.isolations, default_isolation=message.default_isolation)
    if "isolations" not in paths:
        wanted.isolations[:] = [isolation_number(Isolation(name)) for name in stored.allowed]
    if "default_isolation" not in paths:
        wanted.default_isolation = isolation_number(Isolation(stored.default) if stored.default else None)
    return _isolation_policy(wanted, violations)


def _pull_policy(message: pb.ResourceGroup, violations: Violations) -> str:
    policy = PULL_POLICIES.get(message.default_pull_policy, "")
    if message.default_pull_policy and not policy:
        violations.add("resource_group.default_pull_policy", "must be a known pull policy")
    return policy


def _idle_policy(message: pb.ResourceGroup, violations: Violations) -> IdlePolicy:
    path = "resource_group.idle_policy"
    return checked_policy(message.idle_policy, path, violations, partial=False)


# Columns by field. Scheduling and isolation are not here: several fields of each are checked together.
_COLUMNS: Mapping[str, Callable[[pb.ResourceGroup, Violations], GroupPolicy]] = {
    "start_timeout": lambda message, violations: {"start_timeout_seconds": _start_timeout(message, violations)},
    "max_grace": lambda message, violations: {"max_grace_seconds": _max_grace(message, violations)},
    "egress": lambda message, violations: {"egress": _changed_egress(message, violations)},
    "mount_roots": lambda message, violations: {"mount_roots": _mount_roots(message, violations)},
    "image_registries": lambda message, violations: {"image_registries": _image_registries(message, violations)},
    "session_types": lambda message, violations: {"session_types": _session_types(message, violations)},
    "default_pull_policy": lambda message, violations: {"default_pull_policy": _pull_policy(message, violations)},
    "mass_loss_percent": lambda message, violations: {"mass_loss_percent": _mass_loss_percent(message, violations)},
    "mass_loss_agents": lambda message, violations: {"mass_loss_agents": _mass_loss_agents(message, violations)},
    "mass_loss_window": lambda message, violations: {
        "mass_loss_window_seconds": _mass_loss_window(message, violations)
    },
    "idle_policy": lambda message, violations: {"idle_policy": _idle_policy(message, violations)},
    "owner_weights": lambda message, violations: {"owner_weights": _owner_weights(message, violations)},
}
