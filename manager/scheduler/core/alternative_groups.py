"""Finds other resource groups in which a waiting session would have room now, by itself. Pure.

Whether others go before there is not its concern, and nothing is held up for the session: it has to be asked for there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from retinue.manager.scheduler.core.snapshot import PastUsage, snapshot_of
from retinue.manager.scheduling.custom import Advice
from retinue.manager.scheduling.scheduling_pass import run_pass
from retinue.manager.scheduling.strategies import FAIR_SHARE, validate_policy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from retinue.manager.domain.scheduling.records import PendingSession
    from retinue.manager.scheduler.core.cache import Cache

MAX_TRIED, MAX_NAMED = 32, 3
_NOT_ASKED = "it is not asked for a hint"


def groups_with_room(cache: Cache, waiting: PendingSession, groups: Iterable[str], now: float) -> list[str]:
    """Returns those of `groups`, in their order, that would place the session at `now`, quotas and all: at most
    MAX_NAMED, of the first MAX_TRIED. None when its own group would, too: then it waits for its turn.

    `cache` has agents, claims, quotas and the policies of the groups; what waits in it is
    forgotten but for the session.
    """
    for other in list(cache.queue.row_of):
        cache.queue.remove(other)
    own = waiting.resource_group
    if _has_room(cache, waiting, own, now):
        return []
    found: list[str] = []
    for group in [group for group in groups if group != own][:MAX_TRIED]:
        if len(found) == MAX_NAMED:
            break
        if _has_room(cache, waiting, group, now):
            found.append(group)
    return found


def _has_room(cache: Cache, waiting: PendingSession, group: str, now: float) -> bool:
    row = cache.groups[group]
    policy = row.policy()
    settings = validate_policy(policy)
    cache.put_waiting([replace(waiting, resource_group=group)])
    # One session needs no order among owners.
    unused = PastUsage({}, settings.look_back_days, settings.usage_weights)
    snapshot = snapshot_of(cache, group, now, unused if settings.session_strategy == FAIR_SHARE else None)
    decisions = run_pass(
        snapshot.agents,
        snapshot.owners,
        snapshot.queue,
        policy,
        row.round_robin_cursor,
        advice=Advice(order_failure=_NOT_ASKED, placements_failure=_NOT_ASKED),
    )
    return decisions.explain(0) is None
