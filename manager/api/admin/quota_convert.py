"""Quotas from messages, checked, and as messages."""

from __future__ import annotations

from typing import Literal

from retinue.manager.domain.session.admission import MAX_PRIORITY, MAX_SLOTS
from retinue.manager.server.etags import etag
from retinue.manager.server.fields import Violations
from retinue.manager.store.placement.quotas import PROJECT, RESOURCE_GROUP, USER, Limits, QuotaRecord, Use
from retinue.manager.v1 import account_service_pb2 as pb
from retinue.rpc.core.amounts import AmountError, format_amount, parse_asked

MAX_COUNT = 1_000_000_000
KINDS = {
    pb.QUOTA_KIND_USER: USER,
    pb.QUOTA_KIND_PROJECT: PROJECT,
    pb.QUOTA_KIND_RESOURCE_GROUP: RESOURCE_GROUP,
}
_NUMBERS = {kind: number for number, kind in KINDS.items()}


def checked_limits(message: pb.Quota) -> Limits:
    """Returns the limits of a quota. Raises InvalidRequest."""
    violations = Violations()
    violations.enum("quota.kind", message.kind, pb.QuotaKind.DESCRIPTOR)
    if not message.name:
        violations.add("quota.name", "is required")
    violations.mapping("quota.slots", message.slots, MAX_SLOTS)
    limits = Limits(
        _slots(message, violations) if len(message.slots) <= MAX_SLOTS else {},
        _limit(message, "max_sessions", MAX_COUNT, violations),
        _limit(message, "max_pending_sessions", MAX_COUNT, violations),
        _limit(message, "max_system_sessions", MAX_COUNT, violations),
        _limit(message, "highest_priority", MAX_PRIORITY, violations),
    )
    if message.HasField("max_system_sessions") and message.kind != pb.QUOTA_KIND_USER:
        violations.add("quota.max_system_sessions", "is for users only")
    violations.raise_any()
    return limits


def _limit(
    message: pb.Quota,
    name: Literal["max_sessions", "max_pending_sessions", "max_system_sessions", "highest_priority"],
    most: int,
    violations: Violations,
) -> int | None:
    return violations.integer(f"quota.{name}", getattr(message, name), 0, most) if message.HasField(name) else None


def _slots(message: pb.Quota, violations: Violations) -> dict[str, int]:
    slots = {}
    for slot, amount in sorted(message.slots.items()):
        try:
            # None at all is a limit too.
            slots[slot] = parse_asked(slot, amount, zero=True)
        except AmountError as error:
            violations.add(f"quota.slots[{slot[:64]!r}]", str(error))
    return slots


def quota_message(quota: QuotaRecord, use: Use) -> pb.Quota:
    """A quota and what counts against it; one that is only imagined (version 0) has no etag.

    Amounts that are none are left out.
    """
    # Typed as it should be, and stored as the writer of the row had it.
    stored: object = quota.slots
    known = stored if isinstance(stored, dict) else {}
    slots = {slot: amount for slot, amount in known.items() if type(amount) is int and amount >= 0}
    message = pb.Quota(
        kind=_NUMBERS[quota.kind],
        name=quota.name,
        slots={slot: format_amount(slot, amount) for slot, amount in slots.items()},
        etag=etag(quota.version) if quota.version else "",
        usage=pb.QuotaUsage(
            slots={slot: format_amount(slot, use.slots.get(slot, 0)) for slot in slots},
            sessions=use.sessions,
            pending_sessions=use.pending_sessions,
        ),
    )
    if quota.max_sessions is not None:
        message.max_sessions = quota.max_sessions
    if quota.max_pending_sessions is not None:
        message.max_pending_sessions = quota.max_pending_sessions
    if quota.max_system_sessions is not None:
        message.max_system_sessions = quota.max_system_sessions
    if quota.highest_priority is not None:
        message.highest_priority = quota.highest_priority
    return message
