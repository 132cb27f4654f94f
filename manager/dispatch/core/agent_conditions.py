"""Conditions of agents, as stored with them: which of them block placements, and since when each holds. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any

from retinue.manager.session.core.attempts import NodeCondition

QUARANTINED, OUT_OF_BOUNDS, ORPHANS = "QUARANTINED", "OUT_OF_BOUNDS", "ORPHANS"
# An agent that is out of bounds is drained as well, until an administrator puts it back.
BLOCKING = frozenset({"DISK_FULL", "UNKILLABLE", "NETWORK_DEGRADED", "ENGINE_UNRESPONSIVE", QUARANTINED, ORPHANS})


def stored(
    conditions: Iterable[NodeCondition], before: Iterable[Mapping[str, Any]], now: dt.datetime
) -> list[dict[str, Any]]:
    """Returns a full set of conditions as it is stored in place of `before`: one of each type and reason, in the order given.

    One that does not say since when it holds, holds since it was stored first, or `now`.
    """
    known = {(row.get("type"), row.get("reason")): row.get("since") for row in before}
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for condition in conditions:
        key = condition.type, condition.reason
        since = condition.since.isoformat() if condition.since else known.get(key) or now.isoformat()
        rows.setdefault(
            key,
            {
                "type": condition.type,
                "reason": condition.reason,
                "message": condition.message,
                "since": since,
                "blocks": condition.type in BLOCKING,
            },
        )
    return list(rows.values())


def with_found(
    kind: str, condition: NodeCondition | None, before: Iterable[Mapping[str, Any]], now: dt.datetime
) -> list[dict[str, Any]]:
    """Returns the conditions that managers have found, with `condition` in place of all of its kind; None takes those off."""
    others = [dict(row) for row in before if row.get("type") != kind]
    known = [row for row in before if row.get("type") == kind]
    return others + stored([] if condition is None else [condition], known, now)
