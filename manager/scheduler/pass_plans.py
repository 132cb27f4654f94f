"""The decisions of a scheduling pass between its planning and its commit, and the commit of its preemptions."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from retinue.manager.domain.scheduling.records import Nomination
from retinue.manager.domain.session.states import STARTING_SESSION_STATES, SessionState
from retinue.manager.scheduler.core.cache import Holdings
from retinue.manager.scheduler.core.snapshot import Snapshot
from retinue.manager.scheduling.columns import Integers, Running
from retinue.manager.scheduling.scheduling_pass import Decisions
from retinue.manager.scheduling.strategies import REQUEUE, Settings
from retinue.manager.session.transaction import load_for_update, save
from retinue.manager.store.leadership import leadership
from retinue.manager.store.placement import attempts, placements
from retinue.manager.store.placement.placements import Network

if TYPE_CHECKING:
    from retinue.manager.dispatch.desired_state import Affected
    from retinue.manager.store.postgres.database import Database

_PLACED = STARTING_SESSION_STATES | {SessionState.RUNNING}
# A pass over no more kernels and agents than these is small.
_SMALL_KERNELS, _SMALL_AGENTS = 16, 500


@dataclass(frozen=True, slots=True)
class Plan:
    """The placements to be committed: sessions in order of decision, what they take, and for each its network,
    if it has one.
    """

    group: str
    ids: list[uuid.UUID]
    holdings: Holdings
    tries: list[int]
    networks: dict[uuid.UUID, Network]
    round_robin_cursor: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a pass: placements first, then which sessions are preempted for which."""

    plan: Plan | None
    settings: Settings
    snapshot: Snapshot
    running: Running | None
    decisions: Decisions

    @property
    def preempts(self) -> bool:
        """Returns True when sessions are to be preempted."""
        return bool(self.decisions.preemptions)


def holdings_of(snapshot: Snapshot, decisions: Decisions, sessions: Integers, width: int) -> Holdings:
    """Returns what sessions in rows of the queue take, in terms of the cache."""
    every = snapshot.queue.offsets
    sizes = every[sessions + 1] - every[sessions]
    offsets = np.zeros(len(sessions) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    kernels = np.repeat(every[sessions] - offsets[:-1], sizes) + np.arange(offsets[-1])
    requests = np.zeros((len(kernels), width), np.int64)
    requests[:, snapshot.columns] = snapshot.queue.requests[kernels]
    return Holdings(
        agents=snapshot.agent_rows[decisions.kernel_agents[kernels]],
        requests=requests,
        accounts=snapshot.accounts[sessions],
        offsets=offsets,
    )


def is_small(settings: Settings, snapshot: Snapshot, running: Running | None) -> bool:
    """Returns whether a pass takes a few milliseconds at most, less than a thread is worth for a single session.

    A larger pass computes for up to a second, and so may one that evaluates running sessions; an external strategy may
    take its time. The loop must continue meanwhile.
    """
    if running is not None:
        return False
    strange = settings.custom_session is not None or settings.custom_agent is not None
    return not strange and len(snapshot.queue.requests) <= _SMALL_KERNELS and len(snapshot.agent_rows) <= _SMALL_AGENTS


def kind(network: Network | None) -> str:
    """Returns what sessions say of their network."""
    if network is None:
        return ""
    return "VXLAN" if network.vni else "BRIDGE"


async def preempt(  # noqa: PLR0917  # all that a pass knows
    database: Database, term: int, settings: Settings, snapshot: Snapshot, running: Running, decisions: Decisions
) -> Affected:
    """Ends or requeues the victims of a pass, and nominates their agents for the winners.
    Winners that no longer wait are left out.
    """
    winners = {snapshot.ids[each.winner]: each for each in decisions.preemptions}
    victims = {winner: [uuid.UUID(running.ids[victim]) for victim in each.victims] for winner, each in winners.items()}
    async with database.transaction() as tx:
        await leadership.check(tx, term)
        work = await load_for_update(tx, {*winners, *(victim for each in victims.values() for victim in each)})
        nominations = []
        for winner, preemption in winners.items():
            if winner not in work.machines or work.machines[winner].session.state is not SessionState.PENDING:
                continue
            priority = work.records[winner].priority
            grace = 0.0
            for victim in victims[winner]:
                machine = work.machines.get(victim)
                if machine is None or machine.session.state not in _PLACED:
                    # It has ended by itself.
                    continue
                record = work.records[victim]
                if not record.known_spec.preemptible or record.priority >= priority:
                    continue
                machine.preempt(str(winner), requeue=settings.preemption == REQUEUE)
                grace = max(grace, record.known_spec.grace_seconds)
            agents = [snapshot.agents.ids[row] for row in preemption.agents.tolist()]
            nominations.append(Nomination(winner, agents, grace + settings.preemption_hold_seconds))
        await placements.nominate(tx, nominations)
        await save(tx, work)
        return await attempts.find_affected_agents(tx, [victim for each in victims.values() for victim in each])
