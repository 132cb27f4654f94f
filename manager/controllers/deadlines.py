"""The bounds of states: sessions that wait too long for a place, gangs that do not start in time, sessions whose time
limit has passed, and work on agents that are lost, or drained with a deadline.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from retinue.manager.controllers.core.clock_steps import ClockLook, ClockStep, find_step
from retinue.manager.domain.session.attempts import AttemptStatus
from retinue.manager.domain.session.state_machine import SessionMachine
from retinue.manager.session.transaction import WorkingSet, load_for_update, save
from retinue.manager.store.leadership import leadership
from retinue.manager.store.leadership.lease import boot_time
from retinue.manager.store.placement import attempts, deadlines
from retinue.manager.store.postgres.writes import QUIET_SECONDS
from retinue.manager.store.sessions.session_records import SessionRecord
from retinue.manager.supervision import all_or_each

if TYPE_CHECKING:
    from sqlmodel.ext.asyncio.session import AsyncSession

    from retinue.manager.dispatch.desired_state import Affected
    from retinue.manager.store.postgres.database import Database

_log = logging.getLogger(__name__)

# How long an agent may fail at one step for a session that is starting, before that is taken back: it may start on
# another agent, which a longer wait would only delay. Within that, an engine or a network comes back from a restart.
RETRY_BOUND = 120.0

# A session that did not start in time, with the agents that fail at a step for it; None: whatever keeps it.
_Late: TypeAlias = tuple[uuid.UUID, frozenset[str] | None]
# A session, and what is to be done with it once it is locked.
Due: TypeAlias = tuple[uuid.UUID, Callable[[SessionMachine, SessionRecord], None]]


@dataclass(frozen=True, slots=True)
class LateStart:
    """An attempt that was not ready in time, as a failure; `owner` is that of its session."""

    agent_id: str
    session_id: uuid.UUID
    owner: str
    status: AttemptStatus


class DatabaseClock:
    """The last reading of the database's clock, beside that of a clock that is never set."""

    def __init__(self, boot_time: Callable[[], float] = boot_time) -> None:
        """`boot_time` is in seconds from any moment on."""
        self._boot_time = boot_time
        self._last: ClockLook | None = None

    async def look(self, tx: AsyncSession) -> tuple[ClockLook, ClockStep | None]:
        """Returns what the clock says at the start of a transaction, of which this has to be the first statement,
        and the step before.
        """
        before = self._boot_time()
        wall = await deadlines.read_clock(tx)
        look = ClockLook(before, self._boot_time(), wall)
        return look, None if self._last is None else find_step(self._last, look)

    def keep(self, look: ClockLook) -> None:
        """Times in the database go by this."""
        self._last = look


async def enforce(
    database: Database,
    term: int,
    committed: Callable[[Affected], None],
    database_clock: DatabaseClock | None = None,
    *,
    late: Callable[[Sequence[LateStart]], None] = lambda _starts: None,
) -> bool:
    """Moves every session that has waited or run too long; repeated by the leader, with one and the same clock, each
    second while anyone writes, or if it returned that time alone may bring the next one about. `late` is called with
    starts that were not ready in time, once they are rolled back.
    """
    database_clock = database_clock or DatabaseClock()
    async with database.transaction() as tx:
        look, step = await database_clock.look(tx)
        if step is None:
            # By the same clock, as it says the same throughout a transaction.
            too_long = await deadlines.read_waited_too_long(tx)
            late_starts = await deadlines.read_late_starts(tx)
            failing = await deadlines.read_failing_starts(tx, RETRY_BOUND)
            overdue = await deadlines.read_overdue(tx)
            unanswered = await deadlines.read_unanswered(tx)
            expired = await deadlines.read_expired(tx)
            evicted = await deadlines.read_evicted(tx)
            leftovers = await deadlines.read_agents_with_leftovers(tx)
            soon = await deadlines.comes_soon(tx, QUIET_SECONDS)
        else:
            await leadership.check(tx, term)
            moved = await deadlines.shift_times(tx, seconds=step.seconds, window=step.window, former=step.former)
    database_clock.keep(look)
    if step is not None:
        _log.warning("the database's clock was set by %.1f s: so were the times of %d sessions", step.seconds, moved)
        return True
    due: list[Due] = [
        *((session_id, _give_up_waiting) for session_id in too_long),
        *((session_id, _expire) for session_id in expired),
        *((session_id, partial(_evict, agent_id)) for session_id, agent_id in evicted),
        *((attempt.session_id, partial(_strand, attempt)) for attempt in overdue),
        *((attempt.session_id, partial(_withdraw, attempt)) for attempt in unanswered),
    ]
    if due:
        await all_or_each("a bound of a session", due, partial(_move, database, term, committed))
    starting: list[_Late] = [(session_id, None) for session_id in late_starts]
    starting += [item for item in failing if item[0] not in set(late_starts)]
    if starting:
        await all_or_each("a late start", starting, partial(_roll_back, database, term, committed, late))
    for agent_id, lost in leftovers:
        try:
            async with database.transaction() as tx:
                await leadership.check(tx, term)
                if lost:
                    await deadlines.give_up_output(tx, agent_id)
                await attempts.release_networks(tx, agent_id)
        finally:
            # A commit that broke may have taken effect, and the journal has nothing of it.
            committed({agent_id: None})
    return soon or bool(due or starting or leftovers)


async def _move(database: Database, term: int, committed: Callable[[Affected], None], due: Sequence[Due]) -> None:
    async with _moving(database, term, committed, {session_id for session_id, _ in due}) as taken:
        for session_id, move in due:
            if (machine := taken.machines.get(session_id)) is not None:
                move(machine, taken.records[session_id])


@contextlib.asynccontextmanager
async def _moving(
    database: Database, term: int, committed: Callable[[Affected], None], session_ids: set[uuid.UUID]
) -> AsyncIterator[WorkingSet]:
    """Locks sessions for the block, which moves them."""
    async with database.transaction() as tx:
        await leadership.check(tx, term)
        taken = await load_for_update(tx, session_ids)
        yield taken
        await save(tx, taken)
        affected = await attempts.find_affected_agents(tx, list(taken.machines))
    committed(affected)


def _give_up_waiting(machine: SessionMachine, _record: SessionRecord) -> None:
    machine.give_up_waiting()


async def _roll_back(
    database: Database,
    term: int,
    committed: Callable[[Affected], None],
    late: Callable[[Sequence[LateStart]], None],
    sessions: Sequence[_Late],
) -> None:
    failing = dict(sessions)
    async with _moving(database, term, committed, set(failing)) as taken:
        starts = [
            LateStart(agent_id, session_id, record.owner, status)
            for session_id, machine in taken.machines.items()
            if (record := taken.records[session_id]) is not None
            for agent_id, status in machine.time_out_start(record.conditions, failing=failing[session_id])
        ]
    late(starts)


def _expire(machine: SessionMachine, record: SessionRecord) -> None:
    # Locked now: it may have ended, or begun again, since it was read.
    if record.expire_time:
        machine.exceed_time_limit()


def _evict(agent_id: str, machine: SessionMachine, _record: SessionRecord) -> None:
    machine.evict(agent_id)


def _strand(attempt: deadlines.Overdue, machine: SessionMachine, _record: SessionRecord) -> None:
    machine.strand(attempt.kernel_id, attempt.epoch, attempt.agent_id, revoked=attempt.revoked)


def _withdraw(attempt: deadlines.Unanswered, machine: SessionMachine, _record: SessionRecord) -> None:
    machine.withdraw(attempt.kernel_id, attempt.epoch, attempt.agent_id)
