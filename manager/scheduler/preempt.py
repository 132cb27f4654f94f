"""Commits preemptions: ends or requeues the victims and holds their capacity for the winner, in one transaction."""

from __future__ import annotations

import uuid

from retinue.manager.dispatch.desired_state import Affected
from retinue.manager.scheduler.core.snapshot import Snapshot
from retinue.manager.scheduling.columns import Running
from retinue.manager.scheduling.records import Nomination
from retinue.manager.scheduling.scheduling_pass import Decisions
from retinue.manager.scheduling.strategies import REQUEUE, Settings
from retinue.manager.session.core.spec import DEFAULT_GRACE_SECONDS
from retinue.manager.session.core.states import STARTING_SESSION_STATES, SessionState
from retinue.manager.session.transaction import load_for_update, save
from retinue.manager.store import attempts, leadership, placements
from retinue.manager.store.database import Database

_PLACED = STARTING_SESSION_STATES | {SessionState.RUNNING}


async def preempt(  # noqa: PLR0917  # all that a pass knows
    database: Database, term: int, settings: Settings, snapshot: Snapshot, running: Running, decisions: Decisions
) -> Affected:
    """Ends or requeues the victims of a pass, and nominates their agents for the winners. Winners that no longer wait are left out."""
    winners = {snapshot.ids[each.winner]: each for each in decisions.preemptions}
    victims = {winner: [uuid.UUID(running.ids[victim]) for victim in each.victims] for winner, each in winners.items()}
    async with database.transaction() as tx:
        await leadership.check(tx, term)
        taken = await load_for_update(tx, {*winners, *(victim for each in victims.values() for victim in each)})
        nominations = []
        for winner, preemption in winners.items():
            if winner not in taken.machines or taken.machines[winner].session.state is not SessionState.PENDING:
                continue
            priority = taken.records[winner].priority
            grace = 0.0
            for victim in victims[winner]:
                machine = taken.machines.get(victim)
                if machine is None or machine.session.state not in _PLACED:
                    # It has ended by itself.
                    continue
                record = taken.records[victim]
                if not record.spec.get("preemptible") or record.priority >= priority:
                    continue
                machine.preempt(str(winner), requeue=settings.preemption == REQUEUE)
                grace = max(grace, record.spec.get("grace_seconds", DEFAULT_GRACE_SECONDS))
            agents = [snapshot.agents.ids[row] for row in preemption.agents.tolist()]
            nominations.append(Nomination(winner, agents, grace + settings.preemption_hold_seconds))
        await placements.nominate(tx, nominations)
        await save(tx, taken)
        return await attempts.find_affected_agents(tx, [victim for each in victims.values() for victim in each])
