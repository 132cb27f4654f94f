"""Conditions of agents, as kept with them: which of them block placements, and since when each holds. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from retinue.manager.domain.session.attempts import AgentCondition, NodeCondition
from retinue.rpc.core.reasons import AgentConditionReason, AgentConditionType

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable

QUARANTINED = AgentConditionType.QUARANTINED
OUT_OF_BOUNDS = AgentConditionType.OUT_OF_BOUNDS
ORPHANS = AgentConditionType.ORPHANS
STARTS_FAILING = AgentConditionType.STARTS_FAILING
NOT_REACHED = AgentConditionType.NOT_REACHED
LOSS_HELD = AgentConditionType.LOSS_HELD
NOT_FOLLOWING = AgentConditionType.NOT_FOLLOWING
# An agent that is out of bounds is drained as well, until an administrator puts it back.
BLOCKING = frozenset(
    {
        AgentConditionType.DISK_FULL,
        AgentConditionType.UNKILLABLE,
        AgentConditionType.NETWORK_DEGRADED,
        AgentConditionType.ENGINE_UNRESPONSIVE,
        QUARANTINED,
        ORPHANS,
        STARTS_FAILING,
        # A session there could neither be used nor looked at, and its output not be collected.
        NOT_REACHED,
        LOSS_HELD,
        NOT_FOLLOWING,
    }
)


def kept(
    conditions: Iterable[NodeCondition], before: Iterable[AgentCondition], now: dt.datetime
) -> list[AgentCondition]:
    """Returns a full set of conditions as it is kept in place of `before`: one of each type and reason,
    in the order given.

    Types and reasons that are not known here are all OTHER, and differ by their messages. A condition that does not say
    since when it holds, holds since it was kept first, or `now`.
    """
    known = {_key(old): old.since for old in before}
    found: dict[object, AgentCondition] = {}
    for new in conditions:
        key = _key(new)
        since = new.since or known.get(key, now)
        found.setdefault(key, AgentCondition(new.type, new.reason, new.message, since, new.type in BLOCKING))
    return list(found.values())


def _key(condition: NodeCondition | AgentCondition) -> object:
    kind, reason = condition.type, condition.reason
    return kind, reason, condition.message if AgentConditionReason.OTHER in (kind, reason) else ""


def with_condition(
    kind: str, condition: NodeCondition | None, before: Iterable[AgentCondition], now: dt.datetime
) -> list[AgentCondition]:
    """Returns the conditions that managers have found, with `condition` in place of all of its kind;
    None takes those off.
    """
    before = list(before)
    others = [old for old in before if old.type != kind]
    known = [old for old in before if old.type == kind]
    return others + kept([] if condition is None else [condition], known, now)


def with_loss_confirmed(before: Iterable[AgentCondition], _now: dt.datetime, *, by: str) -> list[AgentCondition]:
    """Returns the conditions that managers have found, where a loss that is held is confirmed by an administrator."""
    return [
        replace(old, reason=AgentConditionReason.CONFIRMED, message=f"{by} confirmed that it is lost")
        if old.type == LOSS_HELD and old.reason != AgentConditionReason.CONFIRMED
        else old
        for old in before
    ]
