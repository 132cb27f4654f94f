"""Drains agents that report on attempts of others: one of the two is not what its certificate says."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from retinue.manager.dispatch.core.agent_conditions import OUT_OF_BOUNDS, with_found
from retinue.manager.reasons import AgentConditionReason
from retinue.manager.session.core.attempts import NodeCondition
from retinue.manager.store import agent_conditions, agents, cluster, leadership
from retinue.manager.store.database import Database

_log = logging.getLogger(__name__)

_PAUSE_SECONDS = 1.0


class OutOfBounds:
    """Counts what agents report of others' attempts, which is believed nowhere, and drains those agents."""

    def __init__(self, database: Database, term: int) -> None:
        self._database = database
        self._term = term
        # In this term, and those that the store does not have yet.
        self._totals: Counter[str] = Counter()
        self._fresh: set[str] = set()
        self._noted = asyncio.Event()

    def note(self, agent_id: str, attempts: int) -> None:
        """An agent reported on so many attempts of other agents."""
        self._totals[agent_id] += attempts
        self._fresh.add(agent_id)
        self._noted.set()

    async def run(self) -> None:
        """Records until cancelled. Raises NotLeader, StoreUnavailable."""
        while True:
            await self._noted.wait()
            self._noted.clear()
            for agent_id in sorted(self._fresh):
                await self._drain(agent_id)
                self._fresh.discard(agent_id)
            # An agent that does it all the time costs one commit a second.
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _drain(self, agent_id: str) -> None:
        message = f"reported {self._totals[agent_id]} times on attempts of other agents"
        _log.error("agent %s %s", agent_id, message)
        condition = NodeCondition(OUT_OF_BOUNDS, AgentConditionReason.FOREIGN_ATTEMPTS, message)
        async with self._database.transaction() as tx:
            await leadership.check(tx, self._term)
            # Of a restored database, another agent may have been given what this one runs since before.
            if not await cluster.was_restored(tx):
                await agents.set_drained(tx, agent_id, drained=True)
            await agent_conditions.change(
                tx, agent_id, "found", lambda before, now: with_found(OUT_OF_BOUNDS, condition, before, now)
            )
