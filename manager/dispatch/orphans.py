"""Attempts that agents run and that the database knows nothing of, because it was restored
from a backup that is older than they are.

They are recorded and listed, and run until an administrator or their session's owner ends them: no work ends because a
record of it was lost. What the database knows and has ended is named to the agent instead, which ends nothing by
itself. Meanwhile nothing is placed on an agent with orphans, whose devices, memory and network numbers they use,
and sessions of which an orphan runs are not placed again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING

from retinue.manager.domain.agents.agent_conditions import ORPHANS, OUT_OF_BOUNDS, with_condition
from retinue.manager.domain.session.attempts import AttemptStatus, NodeCondition, NodeReport, attempt_id
from retinue.manager.domain.session.states import ENDED_OBSERVATIONS
from retinue.manager.store.fleet import agent_conditions, agents
from retinue.manager.store.leadership import leadership
from retinue.manager.store.placement import orphans
from retinue.manager.store.placement.orphans import AttemptKey, ReportedOrphan
from retinue.manager.store.postgres import cluster
from retinue.manager.store.postgres.writes import QUIET_SECONDS
from retinue.manager.supervision import for_links
from retinue.rpc.core.reasons import AgentConditionReason

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from retinue.manager.dispatch.desired_state import Affected
    from retinue.manager.store.postgres.database import Database, Transaction

_log = logging.getLogger(__name__)

_PAUSE_SECONDS = 1.0
_POLL_SECONDS = 1.0
_UNREPORTED_POLL_SECONDS = 0.2


class Orphans:
    """The orphans of all agents, as one leader sees them. `committed` is called with the
    agents that have something new to do.
    """

    def __init__(self, database: Database, term: int, committed: Callable[[Affected], None]) -> None:
        self._database = database
        self._term = term
        self._committed = committed
        # By agent: what is recorded, so that other reports cost no query.
        self._known: dict[str, set[AttemptKey]] = {}

    async def removable(self, agent_id: str, reports: Sequence[AttemptStatus]) -> Collection[str]:
        """Returns those of an agent's undesired attempts that it is to end and remove;
        records those that are unknown here and run.

        Raises ListenerBrokenError.
        """
        with for_links("what it runs"):
            async with self._database.transaction() as tx:
                await leadership.check(tx, self._term)
                return await self._sort(tx, agent_id, reports)

    async def _sort(self, tx: Transaction, agent_id: str, reports: Sequence[AttemptStatus]) -> Collection[str]:
        keys = {report.key: report for report in reports}
        known = await orphans.read_known(tx, list(keys)) if keys else {}
        # Of another agent: the kernel was placed again since, and there must not be two of it.
        removed = {key for key, (owner, ended) in known.items() if ended or owner != agent_id}
        unknown = [
            ReportedOrphan(*key, report.session_id, report.state)
            for key, report in keys.items()
            if key not in known and report.state not in ENDED_OBSERVATIONS
        ]
        ending = await orphans.replace(tx, agent_id, unknown)
        self._known[agent_id] = {(item.kernel_id, item.epoch) for item in unknown}
        if unknown:
            _log.warning("agent %s runs %d attempts that the database does not know", agent_id, len(unknown))
        await _note(tx, agent_id, len(unknown))
        return [attempt_id(*key) for key in removed | ending]

    async def reported(self, report: NodeReport) -> None:
        """Takes note of orphans that have ended. Raises ListenerBrokenError."""
        known = self._known.get(report.agent_id)
        if not known:
            return
        gone = known & {item.key for item in report.attempts if item.state in ENDED_OBSERVATIONS}.union(
            report.removed_attempts
        )
        if not gone:
            return
        with for_links("the end of orphans"):
            async with self._database.transaction() as tx:
                await leadership.check(tx, self._term)
                await orphans.forget(tx, report.agent_id, gone)
                await _note(tx, report.agent_id, await orphans.count(tx, report.agent_id))
        known -= gone
        self._committed({report.agent_id: None})

    async def run(self) -> None:
        """Has agents end what is to be ended, until cancelled; they are asked again as long as it runs."""
        writes = self._database.writes
        while True:
            seen = writes.number
            if ending := await self._request_ends():
                self._committed(dict.fromkeys(ending))
            await writes.rest(asyncio.Event(), seen, _POLL_SECONDS, _POLL_SECONDS if ending else QUIET_SECONDS)

    async def _request_ends(self) -> list[str]:
        """Returns the agents that have something to end."""
        async with self._database.transaction() as tx:
            # Most clusters have none, and are not written to for that.
            if not await orphans.are_there_any(tx):
                return []
            await leadership.check(tx, self._term)
            await orphans.request_ends_of_ended_sessions(tx)
            return [agent for agent, *_ in await orphans.read_ending(tx)]

    async def wait_until_reported(self, seconds: float) -> None:
        """Returns once every agent has said what it runs since the database was restored, or after so long.

        A session that waits in the backup may run already: it must not be placed a second time.
        """
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            async with self._database.transaction() as tx:
                unreported = await orphans.read_unreported(tx)
            if not unreported:
                return
            if asyncio.get_running_loop().time() >= deadline:
                names = ", ".join(unreported)
                _log.warning(
                    "the database was restored, and agents have not said what they run: %s; placing now", names
                )
                return
            await asyncio.sleep(_UNREPORTED_POLL_SECONDS)


async def _note(tx: Transaction, agent_id: str, number: int) -> None:
    """Puts the condition on the agent, or takes it off."""
    condition = None
    if number:
        message = (
            f"runs {number} attempts that the database does not know: `retinue agents orphans {agent_id}` lists them"
        )
        condition = NodeCondition(ORPHANS, message=message)

    await agent_conditions.change(
        tx, agent_id, "found", lambda before, now: with_condition(ORPHANS, condition, before, now)
    )


_log = logging.getLogger(__name__)


class OutOfBounds:
    """Counts what agents report of others' attempts, which is believed nowhere, and drains those agents:
    one is not what its certificate says.
    """

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
                tx, agent_id, "found", lambda before, now: with_condition(OUT_OF_BOUNDS, condition, before, now)
            )
