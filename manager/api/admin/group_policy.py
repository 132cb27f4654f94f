"""Policies of resource groups, from messages: checked, with defaults filled in, as stored."""

from __future__ import annotations

import datetime as dt
from typing import Any

from google.protobuf.field_mask_pb2 import FieldMask

from retinue.manager.api.admin import scheduling_policy
from retinue.manager.api.sessions.idle_convert import checked_policy
from retinue.manager.scheduling.columns import Policy
from retinue.manager.server.fields import Violations
from retinue.manager.session.core.image_registries import check_patterns
from retinue.manager.session.core.mounts import MountRoot, check_roots
from retinue.manager.store.tables import ResourceGroup
from retinue.manager.v1 import fleet_service_pb2 as pb
from retinue.manager.v1.scheduling_policy_pb2 import SchedulingPolicy

DEFAULT_START_TIMEOUT = dt.timedelta(minutes=10)
SHORTEST_START_TIMEOUT, LONGEST_START_TIMEOUT = dt.timedelta(seconds=1), dt.timedelta(days=1)
MAX_WEIGHTS, MAX_WEIGHT = 10_000, 1_000_000
_SCHEDULING = "scheduling_policy"
MUTABLE = (
    _SCHEDULING,
    *(f"{_SCHEDULING}.{field}" for field in scheduling_policy.FIELDS),
    "owner_weights",
    "start_timeout",
    "egress",
    "mount_roots",
    "image_registries",
    "idle_policy",
)
_EGRESS_PREFIX = "EGRESS_POLICY_"


def new_policy(message: pb.ResourceGroup, violations: Violations) -> dict[str, Any]:
    """The policy of a group to be made, by column; what is wrong goes to `violations`."""
    return {
        **_scheduling(message.scheduling_policy, violations),
        "owner_weights": _owner_weights(message, violations),
        "start_timeout_seconds": _start_timeout(message, violations),
        "egress": _egress(message, violations),
        "mount_roots": _mount_roots(message, violations),
        "image_registries": _image_registries(message, violations),
        "idle_policy": _idle_policy(message, violations),
    }


def changed_policy(
    group: ResourceGroup, message: pb.ResourceGroup, mask: FieldMask, violations: Violations
) -> dict[str, Any]:
    """The columns of a group that change; a field in the mask that is empty goes back to its default.

    Without a mask, the fields that are set change. The scheduling policy is checked as a whole, as it would be afterwards.
    """
    paths = violations.mask("update_mask", mask, MUTABLE)
    if not mask.paths:
        paths = [field.name for field, _ in message.ListFields() if field.name in MUTABLE and field.name != _SCHEDULING]
        paths += [f"{_SCHEDULING}.{field.name}" for field, _ in message.scheduling_policy.ListFields()]
    policy: dict[str, Any] = {}
    for path in paths:
        match path:
            case "start_timeout":
                policy["start_timeout_seconds"] = _start_timeout(message, violations)
            case "egress":
                # In a create the zero value stands for the default; here it would open what was closed.
                if message.egress == pb.EGRESS_POLICY_UNSPECIFIED:
                    violations.add("resource_group.egress", "must be given when the mask names it")
                policy[path] = _egress(message, violations)
            case "mount_roots":
                policy[path] = _mount_roots(message, violations)
            case "image_registries":
                policy[path] = _image_registries(message, violations)
            case "idle_policy":
                policy[path] = _idle_policy(message, violations)
            case "owner_weights":
                policy[path] = _owner_weights(message, violations)
    fields = [path.removeprefix(f"{_SCHEDULING}.") for path in paths if path.startswith(f"{_SCHEDULING}.")]
    if _SCHEDULING in paths:
        fields = list(scheduling_policy.FIELDS)
    if fields:
        current = scheduling_policy.to_message(Policy(group.session_strategy, group.agent_strategy, group.options))
        wanted = scheduling_policy.merge(current, message.scheduling_policy, fields)
        policy.update(_scheduling(wanted, violations))
    return policy


def _scheduling(message: SchedulingPolicy, violations: Violations) -> dict[str, Any]:
    """Returns the columns of a scheduling policy."""
    policy = scheduling_policy.to_policy(message, violations)
    return {
        "session_strategy": policy.session_strategy,
        "agent_strategy": policy.agent_strategy,
        "options": dict(policy.options),
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
    path = "resource_group.start_timeout"
    value = violations.duration(path, message.start_timeout, SHORTEST_START_TIMEOUT, LONGEST_START_TIMEOUT)
    if value.microseconds:
        violations.add(path, "must be whole seconds")
    return int(value.total_seconds())


def _egress(message: pb.ResourceGroup, violations: Violations) -> str:
    value = message.egress or pb.EGRESS_POLICY_ALLOW
    if value not in pb.EgressPolicy.values():
        violations.add("resource_group.egress", "is not a policy that is known here")
        return "ALLOW"
    return pb.EgressPolicy.Name(value).removeprefix(_EGRESS_PREFIX)


def _mount_roots(message: pb.ResourceGroup, violations: Violations) -> list[dict[str, Any]]:
    roots = [MountRoot(root.path, root.writable, tuple(root.projects)) for root in message.mount_roots]
    found: list[tuple[str, str]] = []
    check_roots(roots, "resource_group.mount_roots", found)
    for path, description in found:
        violations.add(path, description)
    return [root.to_json() for root in roots]


def _image_registries(message: pb.ResourceGroup, violations: Violations) -> list[str]:
    patterns = list(message.image_registries)
    found: list[tuple[str, str]] = []
    check_patterns(patterns, "resource_group.image_registries", found)
    for path, description in found:
        violations.add(path, description)
    return patterns


def _idle_policy(message: pb.ResourceGroup, violations: Violations) -> dict[str, Any]:
    path = "resource_group.idle_policy"
    return checked_policy(message.idle_policy, path, violations, partial=False).to_json()
