"""Shows the fleet to Prometheus: sessions, agents and amounts, by resource group,
from the leader only so that sums over managers are right.
"""

from __future__ import annotations

import asyncio
from itertools import product
from typing import TYPE_CHECKING, Any

from prometheus_client import Gauge

from retinue.manager.domain.scheduling.records import AgentState
from retinue.manager.domain.session.states import LIVE_SESSION_STATES
from retinue.manager.store.fleet import groups
from retinue.rpc.core.amounts import base_amount
from retinue.rpc.core.reasons import AgentConditionType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from retinue.manager.store.postgres.database import Database

_SECONDS, _QUIET_SECONDS = 10.0, 60.0
_LEADER = Gauge("retinue_manager_leader", "1 in the manager that leads, 0 in others.")
_SESSIONS = Gauge("retinue_sessions", "Sessions that have not ended.", ["resource_group", "state"])
_WAITING = Gauge(
    "retinue_oldest_pending_seconds", "Seconds for which the oldest pending session waits.", ["resource_group"]
)
_AGENTS = Gauge("retinue_agents", "Agents that are not revoked.", ["resource_group", "state"])
_CONDITIONS = Gauge(
    "retinue_agent_conditions", "Agents with a condition, by its type.", ["resource_group", "condition"]
)
_CAPACITY = Gauge(
    "retinue_capacity",
    "Amount of a slot that agents offer: bytes of mem and disk, else units.",
    ["resource_group", "slot"],
)
_CLAIMED = Gauge(
    "retinue_claimed",
    "Amount of a slot that sessions hold: bytes of mem and disk, else units.",
    ["resource_group", "slot"],
)


_shown: dict[Gauge, set[tuple[str, ...]]] = {}
_GAUGES = (_SESSIONS, _WAITING, _AGENTS, _CAPACITY, _CLAIMED, _CONDITIONS)
_AGENT_STATES = [state.value for state in AgentState]
_LIVE_STATES = sorted(LIVE_SESSION_STATES)
# What an agent says may be any text: others are one series. That versions differ is not kept, and seen by builds.
_CONDITION_TYPES = [kind.value for kind in AgentConditionType if kind is not AgentConditionType.VERSION_DIFFERS]


async def run(database: Database) -> None:
    """Reads the counts until cancelled, every 10 s while anyone writes or a session waits;
    a replica that no longer leads exports none.
    """
    _LEADER.set(1)
    try:
        while True:
            seen = database.writes.number
            async with database.transaction() as tx:
                counts = await groups.count_live(tx)
            show(counts)
            longest = _SECONDS if counts.waiting else _QUIET_SECONDS
            await database.writes.rest(asyncio.Event(), seen, _SECONDS, longest)
    finally:
        _LEADER.set(0)
        for gauge in _GAUGES:
            gauge.clear()
        _shown.clear()


def show(counts: groups.FleetCounts) -> None:
    """Sets the gauges; what is no longer there is 0 while its resource group is, and then no longer shown."""
    conditions: dict[tuple[str, str], float] = {}
    for (group, kind), number in counts.conditions.items():
        key = group, kind if kind in _CONDITION_TYPES else AgentConditionType.OTHER
        conditions[key] = conditions.get(key, 0) + number
    wanted: Sequence[tuple[Gauge, Mapping[Any, float], Iterable[tuple[str, ...]]]] = (
        (_SESSIONS, counts.sessions, product(counts.groups, _LIVE_STATES)),
        (_WAITING, {(group,): seconds for group, seconds in counts.waiting.items()}, product(counts.groups)),
        (_AGENTS, counts.agents, product(counts.groups, _AGENT_STATES)),
        (_CAPACITY, _amounts(counts.capacity), ()),
        (_CLAIMED, _amounts(counts.claimed), counts.capacity),
        (_CONDITIONS, conditions, product(counts.groups, _CONDITION_TYPES)),
    )
    for gauge, found, labels in wanted:
        # A scrape may come at any time: no series is gone for a moment.
        values: dict[tuple[str, ...], float] = {**dict.fromkeys(labels, 0.0), **found}
        for series, value in values.items():
            gauge.labels(*series).set(value)
        for gone in _shown.get(gauge, set()) - values.keys():
            gauge.remove(*gone)
        _shown[gauge] = set(values)


def _amounts(found: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], float]:
    return {key: base_amount(key[1], amount) for key, amount in found.items()}
