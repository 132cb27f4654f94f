"""Shows the fleet to Prometheus: sessions, agents and amounts, by resource group,
from the leader only so that sums over managers are right.
"""

from __future__ import annotations

import asyncio

from prometheus_client import Gauge

from retinue.manager.store import groups
from retinue.manager.store.database import Database
from retinue.rpc.core.amounts import base_amount

_SECONDS = 10.0
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
    "retinue_capacity", "Amount of a slot that agents offer: bytes of mem, else units.", ["resource_group", "slot"]
)
_CLAIMED = Gauge(
    "retinue_claimed", "Amount of a slot that sessions hold: bytes of mem, else units.", ["resource_group", "slot"]
)


async def run(database: Database) -> None:
    """Reads the counts every 10 s until cancelled; a replica that no longer leads exports none."""
    _LEADER.set(1)
    try:
        while True:
            async with database.transaction() as tx:
                counts = await groups.count_live(tx)
            show(counts)
            await asyncio.sleep(_SECONDS)
    finally:
        _LEADER.set(0)
        for gauge in (_SESSIONS, _WAITING, _AGENTS, _CONDITIONS, _CAPACITY, _CLAIMED):
            gauge.clear()


def show(counts: groups.FleetCounts) -> None:
    """Sets the gauges; what is no longer there is no longer shown."""
    for gauge, found in (
        (_SESSIONS, counts.sessions),
        (_WAITING, {(group,): seconds for group, seconds in counts.waiting.items()}),
        (_AGENTS, counts.agents),
        (_CONDITIONS, counts.conditions),
        (_CAPACITY, {key: base_amount(key[1], amount) for key, amount in counts.capacity.items()}),
        (_CLAIMED, {key: base_amount(key[1], amount) for key, amount in counts.claimed.items()}),
    ):
        gauge.clear()
        for labels, value in found.items():
            gauge.labels(*labels).set(value)
