"""Queries for what has waited too long, or waits for an agent that is lost, and for the database's clock,
which bounds it.
"""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    ColumnElement,
    Float,
    Integer,
    Select,
    and_,
    bindparam,
    case,
    cast,
    exists,
    func,
    literal,
    not_,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import distinct_on

from retinue.manager.domain.reasons import ConditionType
from retinue.manager.domain.session.events import RETRIED, parse_conditions
from retinue.manager.store.placement.attempts import is_unresponsive
from retinue.manager.store.postgres.constructs import EMPTY_LIST, seconds, span, table_of, value_of, word, words
from retinue.manager.store.tables import (
    Agent,
    Attempt,
    Network,
    NetworkSite,
    ResourceGroup,
    Session,
    SessionDependency,
)
from retinue.rpc.core.reasons import AgentConditionType

if TYPE_CHECKING:
    from sqlmodel.ext.asyncio.session import AsyncSession

# Sessions that waited too long are cancelled a second so many at a time: one commit does not hold up others.
MAX_AT_ONCE = 500

_agent, _attempt, _group = table_of(Agent), table_of(Attempt), table_of(ResourceGroup)
_network, _session, _site = table_of(Network), table_of(Session), table_of(NetworkSite)
_dependency = table_of(SessionDependency)
_IS_LIVE = _attempt.c.end_time.is_(None)
_IS_STARTING = _session.c.state.in_(words("SCHEDULED", "PREPARING"))


@dataclass(frozen=True, slots=True)
class Overdue:
    """A live attempt on a lost agent that need not be waited for; `revoked` says whether
    the agent is never waited for.
    """

    session_id: uuid.UUID
    kernel_id: uuid.UUID
    epoch: int
    agent_id: str
    revoked: bool


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A live attempt of which its agent, which does not follow, has said nothing."""

    session_id: uuid.UUID
    kernel_id: uuid.UUID
    epoch: int
    agent_id: str


_ON_HELD_AGENT = (
    select(_attempt.c.kernel_id)
    .join_from(_attempt, _agent, _agent.c.id == _attempt.c.agent_id)
    .where(
        _attempt.c.session_id == _session.c.id,
        _IS_LIVE,
        _agent.c.state == word("SUSPECT"),
        _agent.c.found_conditions.contains([{"type": AgentConditionType.LOSS_HELD}]),
    )
)
_LATE_STARTS = (
    select(_session.c.id)
    .join_from(_session, _group, _group.c.name == _session.c.resource_group)
    .where(
        _IS_STARTING,
        func.now()
        > func.greatest(_session.c.schedule_time, _session.c.pull_time) + span(_group.c.start_timeout_seconds),
        ~_ON_HELD_AGENT.exists(),
    )
)


async def read_late_starts(tx: AsyncSession) -> list[uuid.UUID]:
    """Placed sessions whose group's start timeout has passed since they were placed,
    or the fetching of an image for them got on. Those on agents whose loss is held are left alone.
    """
    rows = await tx.execute(_LATE_STARTS)
    return list(rows.scalars())


# A start that has one of these for too long has failed.
_BOUNDED = RETRIED | {ConditionType.PATH_BROKEN}


async def read_failing_starts(tx: AsyncSession, seconds: float) -> list[tuple[uuid.UUID, frozenset[str]]]:
    """Placed sessions that do not run yet, with the agents that have failed at a step for them for so many seconds."""
    rows = await tx.execute(
        select(_session.c.id, _session.c.conditions, func.now()).where(
            _IS_STARTING, _session.c.conditions != EMPTY_LIST
        )
    )
    found = []
    for session_id, stored, now in rows:
        agents = frozenset(
            item.agent
            for item in parse_conditions(stored)
            if item.type in _BOUNDED and item.since is not None and now - item.since >= dt.timedelta(seconds=seconds)
        )
        if agents:
            found.append((session_id, agents))
    return found


_UNANSWERED = (
    select(_attempt.c.session_id, _attempt.c.kernel_id, _attempt.c.epoch, _attempt.c.agent_id)
    .join_from(_agent, _attempt, _attempt.c.agent_id == _agent.c.id)
    .where(
        _agent.c.found_conditions.contains([{"type": AgentConditionType.NOT_FOLLOWING}]),
        _IS_LIVE,
        _attempt.c.observed == word(""),
    )
    .limit(MAX_AT_ONCE)
)


async def read_unanswered(tx: AsyncSession) -> list[Unanswered]:
    """Live attempts of which agents that do not follow have never said anything, some at once."""
    rows = await tx.execute(_UNANSWERED)
    return [Unanswered(*row) for row in rows]


def _making_waited_too_long() -> Select[tuple[uuid.UUID]]:
    timeout = value_of(_group.c.options, literal("pending-timeout-seconds"))
    # An option is any text.
    is_number = timeout.regexp_match("^[0-9]{1,9}$")
    bounded = select(_group.c.name, case((is_number, cast(timeout, Integer))).label("seconds")).subquery("bounded")
    begin = func.now() - span(bounded.c.seconds)
    parent = _session.alias("parent")
    depends = (
        select(_dependency.c.child_id)
        .outerjoin_from(_dependency, parent, parent.c.id == _dependency.c.parent_id)
        .where(_dependency.c.child_id == _session.c.id, or_(not_(_dependency.c.settled), parent.c.end_time > begin))
    )
    return (
        select(_session.c.id)
        .join_from(
            bounded,
            _session,
            and_(_session.c.resource_group == bounded.c.name, _session.c.state == word("PENDING")),
        )
        .where(
            bounded.c.seconds > 0,
            not_(_session.c.hold),
            _session.c.state_time <= begin,
            func.coalesce(_session.c.earliest_start_time, 0) <= seconds(func.now()) - bounded.c.seconds,
            ~depends.exists(),
        )
        .limit(MAX_AT_ONCE)
    )


_WAITED_TOO_LONG = _making_waited_too_long()


async def read_waited_too_long(tx: AsyncSession) -> list[uuid.UUID]:
    """Some of the sessions whose group's option `pending-timeout-seconds` (0: no bound) has passed since they began to
    wait for a place: not before their start time, nor before what they depend on succeeded,
    nor before they were released from a hold.
    """
    rows = await tx.execute(_WAITED_TOO_LONG)
    return list(rows.scalars())


async def read_expired(tx: AsyncSession) -> list[uuid.UUID]:
    """Returns running sessions whose time limit has passed."""
    rows = await tx.execute(
        select(_session.c.id).where(_session.c.expire_time <= func.now(), _session.c.state == word("RUNNING"))
    )
    return list(rows.scalars())


_EVICTED = (
    select(_session.c.id, _agent.c.id)
    .ext(distinct_on(_session.c.id))
    .join_from(_agent, _attempt, and_(_attempt.c.agent_id == _agent.c.id, _IS_LIVE))
    .join(_session, _session.c.id == _attempt.c.session_id)
    .where(
        _agent.c.drained,
        not_(_agent.c.revoked),
        _agent.c.drain_deadline_time <= func.now(),
        _attempt.c.goal != word("STOPPED"),
        _session.c.state.in_(words("SCHEDULED", "PREPARING", "RUNNING")),
    )
    .limit(MAX_AT_ONCE)
)


async def read_evicted(tx: AsyncSession) -> list[tuple[uuid.UUID, str]]:
    """Returns some of the placed sessions, and the agent, that run on a drained agent whose deadline has passed."""
    rows = await tx.execute(_EVICTED)
    return [(session_id, agent_id) for session_id, agent_id in rows]


_OVERDUE = (
    select(_attempt.c.session_id, _attempt.c.kernel_id, _attempt.c.epoch, _attempt.c.agent_id, _agent.c.revoked)
    .join_from(_agent, _attempt, and_(_attempt.c.agent_id == _agent.c.id, _IS_LIVE))
    .join(_session, _session.c.id == _attempt.c.session_id)
    .where(
        _agent.c.state == word("LOST"),
        or_(
            _agent.c.revoked,
            _attempt.c.goal == word("STOPPED"),
            _session.c.state != word("RUNNING"),
            _session.c.max_attempts > _session.c.retries + 1,
        ),
    )
)


async def read_overdue(tx: AsyncSession) -> list[Overdue]:
    """Live attempts on lost agents that nothing is gained by waiting for.

    All but those of running sessions that cannot be run again, on agents that may return: these are kept for that.
    """
    rows = await tx.execute(_OVERDUE)
    return [Overdue(*row) for row in rows]


def _making_leftovers() -> Select[tuple[str, bool]]:
    awaited = select(_attempt.c.kernel_id).where(_attempt.c.agent_id == _agent.c.id, _attempt.c.log_pending)
    running = select(_attempt.c.kernel_id).where(_attempt.c.session_id == _network.c.session_id, _IS_LIVE)
    other, its_agent = _site.alias("other"), _agent.alias("its_agent")
    responsive = (
        select(other.c.agent_id)
        .join_from(other, its_agent, its_agent.c.id == other.c.agent_id)
        .where(other.c.network_id == _network.c.id, not_(is_unresponsive(its_agent)))
    )
    network = (
        select(_site.c.agent_id)
        .join_from(_site, _network, _network.c.id == _site.c.network_id)
        .where(
            _site.c.agent_id == _agent.c.id,
            _network.c.session_id.is_not(None),
            ~running.exists(),
            ~responsive.exists(),
        )
    )
    lost = _agent.c.state == word("LOST")
    return select(_agent.c.id, lost).where(
        is_unresponsive(_agent), or_(and_(lost, awaited.exists()), network.correlate(_agent).exists())
    )


_LEFTOVERS = _making_leftovers()


async def read_agents_with_leftovers(tx: AsyncSession) -> list[tuple[str, bool]]:
    """Returns lost agents that output is awaited of, and agents that are lost or follow nothing and whose networks keep
    a session from being placed again; and whether each is lost.
    """
    rows = await tx.execute(_LEFTOVERS)
    return [(agent_id, lost) for agent_id, lost in rows]


async def give_up_output(tx: AsyncSession, agent_id: str) -> None:
    """Output of ended attempts on a lost agent is waited for no longer."""
    pending = update(_attempt).where(_attempt.c.agent_id == agent_id, _attempt.c.log_pending)
    await tx.execute(pending.values(log_pending=False))


def _making_comes_soon() -> Select[tuple[bool]]:
    soon = func.now() + func.make_interval(0, 0, 0, 0, 0, 0, bindparam("within", type_=Float()))
    bounded = or_(
        _session.c.state.in_(words("PENDING", "SCHEDULED", "PREPARING")),
        and_(_session.c.state == word("RUNNING"), _session.c.expire_time <= soon),
    )
    evicting = and_(_agent.c.drained, _agent.c.drain_deadline_time > func.now(), _agent.c.drain_deadline_time <= soon)
    return select(or_(exists().select_from(_session).where(bounded), exists().select_from(_agent).where(evicting)))


_COMES_SOON = _making_comes_soon()


async def comes_soon(tx: AsyncSession, within: float) -> bool:
    """Returns whether any bound may be met within so many seconds by the passing of time alone."""
    return bool((await tx.execute(_COMES_SOON, {"within": within})).scalar_one())


async def read_clock(tx: AsyncSession) -> float:
    """Returns when the transaction began, in seconds since 1970; bounds that are read in it count from that."""
    return float((await tx.execute(select(seconds(func.now())))).scalar_one())


async def shift_times(tx: AsyncSession, *, seconds: float, window: float, former: float) -> int:
    """Moves the times of the former clock, by which live sessions are bounded, to the present one;
    returns how many sessions have moved.

    A session that began to run by the former clock ends by the present one.
    """
    step = dt.timedelta(seconds=seconds)
    begin, before = func.now() - dt.timedelta(seconds=window), func.to_timestamp(former)

    def is_former(time: ColumnElement[Any]) -> ColumnElement[bool]:
        # See `ClockStep`.
        return and_(time <= before, not_(time.between(begin, func.now())))

    def moved(time: ColumnElement[Any], by: ColumnElement[Any]) -> ColumnElement[Any]:
        return case((is_former(by), time + step), else_=time)

    columns = _session.c
    of_state = (columns.schedule_time, columns.pull_time, columns.start_time, columns.state_time)
    # These are ahead: they are as old as the state that they were set with.
    ahead = (columns.expire_time, columns.next_try_time)
    found = await tx.execute(
        update(_session)
        .where(columns.state.not_in(words("TERMINATED", "CANCELLED")))
        .values(
            {
                **{time: moved(time, time) for time in of_state},
                **{time: moved(time, columns.state_time) for time in ahead},
            }
        )
        .returning(literal(1))
    )
    # What waits for another session waits from its end on.
    child = _session.alias("child")
    awaited = select(_dependency.c.parent_id).join_from(
        _dependency, child, and_(child.c.id == _dependency.c.child_id, child.c.state == word("PENDING"))
    )
    await tx.execute(
        update(_session)
        .where(is_former(columns.end_time), columns.id.in_(awaited))
        .values(end_time=columns.end_time + step)
    )
    # A deadline is as far ahead of the present clock as it was of the former one.
    await tx.execute(update(_agent).values(drain_deadline_time=_agent.c.drain_deadline_time + step))
    return len(found.all())
