"""The bounds of states: sessions that wait too long for a place, gangs that do not start in time, sessions whose time limit is over, and
work on agents that are lost.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection

from manager.lifecycle.desires import Concerned
from manager.lifecycle.working_set import put_back, take_out
from manager.store import attempts, bounds, leadership
from manager.store.database import Database


async def enforce(database: Database, term: int, committed: Callable[[Concerned], None]) -> None:
    """Moves every session that has waited or run too long; repeated every second by the leader."""
    async with database.transaction() as tx:
        overdue = await bounds.read_waited_too_long(tx)
        late = await bounds.read_late_starts(tx)
        stranded = await bounds.read_stranded(tx)
        expired = await bounds.read_expired(tx)
        lost_agents = await bounds.read_lost_agents_with_leftovers(tx)
    if overdue or late or stranded or expired:
        await _move(database, term, committed, overdue=overdue, late=late, stranded=stranded, expired=expired)
    for agent_id in lost_agents:
        async with database.transaction() as tx:
            await leadership.check(tx, term)
            await bounds.give_up_output(tx, agent_id)
            await attempts.let_go_of_networks(tx, agent_id)
        committed({agent_id: None})


async def _move(
    database: Database,
    term: int,
    committed: Callable[[Concerned], None],
    *,
    overdue: Collection[uuid.UUID],
    late: Collection[uuid.UUID],
    stranded: Collection[bounds.Stranded],
    expired: Collection[uuid.UUID],
) -> None:
    async with database.transaction() as tx:
        await leadership.check(tx, term)
        taken = await take_out(tx, {*overdue, *late, *expired, *(attempt.session_id for attempt in stranded)})
        for session_id in overdue:
            if (machine := taken.machines.get(session_id)) is not None:
                machine.give_up_waiting()
        for session_id in late:
            if (machine := taken.machines.get(session_id)) is not None:
                machine.roll_back("START_TIMEOUT", "not every kernel was ready in time")
        for session_id in expired:
            # Locked now: it may have ended, or begun anew, since it was read.
            if (machine := taken.machines.get(session_id)) is not None and taken.rows[session_id]["expire_time"]:
                machine.exceed_time_limit()
        for attempt in stranded:
            machine = taken.machines.get(attempt.session_id)
            if machine is None:
                continue
            machine.roll_back("AGENT_LOST", f"agent {attempt.agent_id} was lost", failed_agent=attempt.agent_id)
            machine.lose_running(attempt.kernel_id, attempt.epoch)
            kernel = next((kernel for kernel in machine.session.kernels if kernel.id == attempt.kernel_id), None)
            if kernel is not None and kernel.epoch == attempt.epoch and kernel.goal == "STOPPED":
                machine.lose(attempt.kernel_id, attempt.epoch)
        await put_back(tx, taken)
        concerned = await attempts.agents_concerned(tx, list(taken.machines))
    committed(concerned)
