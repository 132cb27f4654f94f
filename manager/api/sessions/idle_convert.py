"""Idle policies and overrides from messages, checked, and as messages; and what checkers make of a session."""

from __future__ import annotations

import datetime as dt
import math
from typing import TYPE_CHECKING, Any

from retinue.manager.domain.idle.policy import Check, Checker, IdlePolicy
from retinue.manager.domain.idle.utilization import MEASURED
from retinue.manager.server.etags import etag
from retinue.manager.server.fields import Violations
from retinue.manager.store.postgres.documents import Unreadable
from retinue.manager.v1 import idle_pb2 as pb
from retinue.rpc.times import duration

if TYPE_CHECKING:
    from collections.abc import Iterable

    from retinue.manager.store.sessions.idle import OverrideRecord

_DAY = dt.timedelta(days=1)
_NOTHING, _SECOND = dt.timedelta(0), dt.timedelta(seconds=1)
# Field, its name in a stored policy, and its bounds.
_SPANS = (
    ("grace_period", "grace", _NOTHING, 30 * _DAY),
    ("warning", "warning", _NOTHING, _DAY),
    ("max_extension", "extension", _NOTHING, 365 * _DAY),
    ("interaction_timeout", "interaction", 2 * _SECOND, 365 * _DAY),
    ("max_lifetime", "lifetime", _SECOND, 3650 * _DAY),
)
_SHORTEST_WINDOW, _LONGEST_WINDOW = _SECOND, 30 * _DAY
_ALL_OF_IT = 100.0


def checked_policy(message: pb.IdlePolicy, path: str, violations: Violations, *, partial: bool) -> IdlePolicy:
    """Returns a policy; what is wrong is added to `violations`. One that is not `partial`
    has all that its checkers need.
    """
    spans: dict[str, Any] = {
        name: violations.duration(f"{path}.{field}", getattr(message, field), lowest, highest).total_seconds()
        for field, name, lowest, highest in _SPANS
        if message.HasField(field)  # type: ignore[arg-type]  # one of the names above
    }
    join = violations.enum(f"{path}.join", message.join, pb.IdleJoin.DESCRIPTOR, unspecified=True)
    spans["any_checker"] = join == pb.IDLE_JOIN_ANY if join else None
    if not message.HasField("utilization"):
        return IdlePolicy(**spans)
    utilization, path = message.utilization, f"{path}.utilization"
    if utilization.HasField("window"):
        window = violations.duration(f"{path}.window", utilization.window, _SHORTEST_WINDOW, _LONGEST_WINDOW)
        spans["window"] = window.total_seconds()
    elif not partial:
        violations.add(f"{path}.window", "is required")
    for slot, threshold in sorted(utilization.thresholds.items()):
        where = f"{path}.thresholds[{slot[:64]!r}]"
        if slot not in MEASURED:
            violations.add(where, f"is not measured; {', '.join(sorted(MEASURED))} are")
        elif not (math.isfinite(threshold) and 0 < threshold <= _ALL_OF_IT):
            violations.add(where, "must be more than 0 and at most 100 per cent")
    if not utilization.thresholds and not partial:
        violations.add(f"{path}.thresholds", "must have an entry")
    operator = violations.enum(
        f"{path}.operator", utilization.operator, pb.UtilizationOperator.DESCRIPTOR, unspecified=True
    )
    return IdlePolicy(
        **spans,
        thresholds=dict(utilization.thresholds),
        any_slot=None if partial and not operator else operator == pb.UTILIZATION_OPERATOR_ANY,
    )


def policy_message(policy: IdlePolicy | Unreadable) -> pb.IdlePolicy | None:
    """Returns a policy; None for an empty one, and for one that cannot be read: it ends nothing."""
    if isinstance(policy, Unreadable):
        return None
    message = pb.IdlePolicy()
    for field, name, _, _ in _SPANS:
        if (seconds := getattr(policy, name)) is not None:
            getattr(message, field).CopyFrom(duration(seconds))
    if policy.window is not None:
        message.utilization.window.CopyFrom(duration(policy.window))
    for slot, threshold in policy.thresholds.items():
        message.utilization.thresholds[slot] = threshold
    if policy.any_slot is not None:
        message.utilization.operator = pb.UTILIZATION_OPERATOR_ANY if policy.any_slot else pb.UTILIZATION_OPERATOR_ALL
    if policy.any_checker is not None:
        message.join = pb.IDLE_JOIN_ANY if policy.any_checker else pb.IDLE_JOIN_ALL
    return message if message.ListFields() else None


def checked_override(message: pb.IdleOverride) -> IdlePolicy:
    """Returns what differs from the policies for a user. Raises InvalidRequest."""
    violations = Violations()
    if not message.user:
        violations.add("override.user", "is required")
    policy = checked_policy(message.policy, "override.policy", violations, partial=True)
    exempt = []
    for position, number in enumerate(message.exempt):
        violations.enum(f"override.exempt[{position}]", number, pb.IdleChecker.DESCRIPTOR)
        if number and number in pb.IdleChecker.values():
            exempt.append(Checker(pb.IdleChecker.Name(number).removeprefix("IDLE_CHECKER_")))
    violations.raise_any()
    return policy.then(IdlePolicy(exempt=frozenset(exempt)))


def override_message(override: OverrideRecord) -> pb.IdleOverride:
    """Returns what differs from the policies for a user; version 0, which is not stored, has no etag."""
    exempt = () if isinstance(override.policy, Unreadable) else override.policy.exempt
    return pb.IdleOverride(
        user=override.user_name,
        policy=policy_message(override.policy),
        exempt=[pb.IdleChecker.Value(f"IDLE_CHECKER_{checker}") for checker in sorted(exempt)],
        etag=etag(override.version) if override.version else "",
    )


def check_messages(checks: Iterable[Check]) -> list[pb.IdleCheck]:
    """Returns the results of a session's checkers."""
    return [
        pb.IdleCheck(
            checker=pb.IdleChecker.Value(f"IDLE_CHECKER_{check.checker}"),
            status=pb.IdleStatus.Value(f"IDLE_STATUS_{check.status}"),
            limit=duration(check.limit),
            remaining=None if check.remaining is None else duration(check.remaining),
            measured=check.measured,
        )
        for check in checks
    ]
