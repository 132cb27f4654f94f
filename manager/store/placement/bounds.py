"""Queries for what has waited too long, or waits for an agent that is lost, and for the database's clock,
which bounds it.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from dataclasses import dataclass

from sqlalchemy import text
from sqlmodel.ext.asyncio.session import AsyncSession

from retinue.manager.domain.reasons import ConditionType
from retinue.manager.domain.session.events import RETRIED, parse_conditions
from retinue.manager.store.placement.attempts import unresponsive
from retinue.rpc.core.reasons import AgentConditionType

# Of the former clock: see `ClockStep`.
_IS_FORMER = "({0} <= to_timestamp(:former) AND NOT {0} BETWEEN now() - make_interval(secs => :window) AND now())"
_STEP = "make_interval(secs => :seconds)"
# Sessions that waited too long are cancelled a second so many at a time: one commit does not hold up others.
MAX_AT_ONCE = 500
_NOT_FOLLOWING = json.dumps([{"type": AgentConditionType.NOT_FOLLOWING}])


@dataclass(frozen=True, slots=True)
class Stranded:
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


async def read_late_starts(tx: AsyncSession) -> list[uuid.UUID]:
    """Placed sessions whose group's start timeout has passed since they were placed,
    or the fetching of an image for them got on. Those on agents whose loss is held are left alone.
    """
    rows = await tx.execute(
        text("""
            SELECT s.id FROM session s JOIN resource_group g ON g.name = s.resource_group
            WHERE s.state IN ('SCHEDULED', 'PREPARING')
                AND now() > greatest(s.schedule_time, s.pull_time) + make_interval(secs => g.start_timeout_seconds)
                AND NOT EXISTS (
                    SELECT FROM attempt a JOIN agent n ON n.id = a.agent_id
                    WHERE a.session_id = s.id AND a.end_time IS NULL AND n.state = 'SUSPECT'
                      AND n.found_conditions @> '[{"type": "LOSS_HELD"}]')
        """)
    )
    return list(rows.scalars())


# A start that has one of these for too long has failed.
_BOUNDED = RETRIED | {ConditionType.PATH_BROKEN}


async def read_failing_starts(tx: AsyncSession, seconds: float) -> list[tuple[uuid.UUID, frozenset[str]]]:
    """Placed sessions that do not run yet, with the agents that have failed at a step for them for so many seconds."""
    rows = await tx.execute(
        text("""
            SELECT s.id, s.conditions, now() AS now FROM session s
            WHERE s.state IN ('SCHEDULED', 'PREPARING') AND s.conditions <> '[]'
        """)
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


async def read_unanswered(tx: AsyncSession) -> list[Unanswered]:
    """Live attempts of which agents that do not follow have never said anything, some at once."""
    rows = await tx.execute(
        text("""
            SELECT a.session_id, a.kernel_id, a.epoch, a.agent_id FROM agent g JOIN attempt a ON a.agent_id = g.id
            WHERE g.found_conditions @> CAST(:condition AS jsonb) AND a.end_time IS NULL AND a.observed = ''
            LIMIT :most
        """),
        {"condition": _NOT_FOLLOWING, "most": MAX_AT_ONCE},
    )
    return [Unanswered(*row) for row in rows]


async def read_waited_too_long(tx: AsyncSession) -> list[uuid.UUID]:
    """Some of the sessions whose group's option `pending-timeout-seconds` (0: no bound) has passed since they began to
    wait for a place: not before their start time, nor before what they depend on succeeded,
    nor before they were released from a hold.
    """
    rows = await tx.execute(
        text("""
            SELECT s.id
            FROM (SELECT name, CASE WHEN options->>'pending-timeout-seconds' ~ '^[0-9]{1,9}$'
                THEN (options->>'pending-timeout-seconds')::int END AS seconds FROM resource_group) g
            JOIN session s ON s.resource_group = g.name AND s.state = 'PENDING'
            WHERE g.seconds > 0 AND NOT s.hold AND s.state_time <= now() - make_interval(secs => g.seconds)
                AND coalesce(s.earliest_start_time, 0) <= extract(epoch FROM now()) - g.seconds
                AND NOT EXISTS (
                    SELECT FROM session_dependency d LEFT JOIN session p ON p.id = d.parent_id
                    WHERE d.child_id = s.id AND (NOT d.settled OR p.end_time > now() - make_interval(secs => g.seconds))
                )
            LIMIT :most
        """),  # our own words
        {"most": MAX_AT_ONCE},
    )
    return list(rows.scalars())


async def read_expired(tx: AsyncSession) -> list[uuid.UUID]:
    """Returns running sessions whose time limit has passed."""
    rows = await tx.execute(text("SELECT id FROM session WHERE expire_time <= now() AND state = 'RUNNING'"))
    return list(rows.scalars())


async def read_evicted(tx: AsyncSession) -> list[tuple[uuid.UUID, str]]:
    """Returns some of the placed sessions, and the agent, that run on a drained agent whose deadline has passed."""
    rows = await tx.execute(
        text("""
            SELECT DISTINCT ON (s.id) s.id, g.id FROM agent g JOIN attempt a ON a.agent_id = g.id AND a.end_time IS NULL
            JOIN session s ON s.id = a.session_id
            WHERE g.drained AND NOT g.revoked AND g.drain_deadline_time <= now() AND a.goal <> 'STOPPED'
                AND s.state IN ('SCHEDULED', 'PREPARING', 'RUNNING')
            LIMIT :most
        """),
        {"most": MAX_AT_ONCE},
    )
    return [(session_id, agent_id) for session_id, agent_id in rows]


async def read_stranded(tx: AsyncSession) -> list[Stranded]:
    """Live attempts on lost agents that nothing is gained by waiting for.

    All but those of running sessions that cannot be run again, on agents that may return: these are kept for that.
    """
    rows = await tx.execute(
        text("""
            SELECT a.session_id, a.kernel_id, a.epoch, a.agent_id, g.revoked
            FROM agent g JOIN attempt a ON a.agent_id = g.id AND a.end_time IS NULL JOIN session s ON s.id = a.session_id
            WHERE g.state = 'LOST' AND (g.revoked OR a.goal = 'STOPPED' OR s.state <> 'RUNNING'
                OR s.max_attempts > s.retries + 1)
        """)  # our own words
    )
    return [Stranded(*row) for row in rows]


async def read_agents_with_leftovers(tx: AsyncSession) -> list[tuple[str, bool]]:
    """Returns lost agents that output is awaited of, and agents that are lost or follow nothing and whose networks keep
    a session from being placed again; and whether each is lost.
    """
    rows = await tx.execute(
        text(f"""
            SELECT g.id, g.state = 'LOST' FROM agent g WHERE {unresponsive("g")} AND (
                (g.state = 'LOST' AND EXISTS (SELECT FROM attempt a WHERE a.agent_id = g.id AND a.log_pending))
                OR EXISTS (
                    SELECT FROM network_site site JOIN network n ON n.id = site.network_id
                    WHERE site.agent_id = g.id AND n.session_id IS NOT NULL
                      AND NOT EXISTS (SELECT FROM attempt a WHERE a.session_id = n.session_id AND a.end_time IS NULL)
                      AND NOT EXISTS (SELECT FROM network_site other JOIN agent o ON o.id = other.agent_id
                                      WHERE other.network_id = n.id AND NOT {unresponsive("o")})
                )
            )
        """)  # noqa: S608  # our own words
    )
    return [(agent_id, lost) for agent_id, lost in rows]


async def give_up_output(tx: AsyncSession, agent_id: str) -> None:
    """Output of ended attempts on a lost agent is waited for no longer."""
    await tx.execute(
        text("UPDATE attempt SET log_pending = FALSE WHERE agent_id = :agent AND log_pending"), {"agent": agent_id}
    )


async def read_clock(tx: AsyncSession) -> float:
    """Returns when the transaction began, in seconds since 1970; bounds that are read in it count from that."""
    return float((await tx.execute(text("SELECT extract(epoch FROM now())::float8"))).scalar_one())


async def shift_times(tx: AsyncSession, *, seconds: float, window: float, former: float) -> int:
    """Moves the times of the former clock, by which live sessions are bounded, to the present one;
    returns how many sessions have moved.

    A session that began to run by the former clock ends by the present one.
    """
    params = {"seconds": seconds, "window": window, "former": former}
    moved = ", ".join(
        f"{column} = CASE WHEN {_IS_FORMER.format(column)} THEN {column} + {_STEP} ELSE {column} END"
        for column in ("schedule_time", "pull_time", "start_time", "state_time")
    )
    # These are ahead: they are as old as the state that they were set with.
    ahead = ", ".join(
        f"{column} = CASE WHEN {_IS_FORMER.format('state_time')} THEN {column} + {_STEP} ELSE {column} END"
        for column in ("expire_time", "next_try_time")
    )
    found = await tx.execute(
        text(f"UPDATE session SET {moved}, {ahead} WHERE state NOT IN ('TERMINATED', 'CANCELLED') RETURNING 1"),  # noqa: S608  # our own words
        params,
    )
    # What waits for another session waits from its end on.
    await tx.execute(
        text(f"""
            UPDATE session SET end_time = end_time + {_STEP}
            WHERE {_IS_FORMER.format("end_time")} AND id IN (
                SELECT d.parent_id FROM session_dependency d JOIN session c ON c.id = d.child_id AND c.state = 'PENDING'
            )
        """),  # noqa: S608  # our own words
        params,
    )
    # A deadline is as far ahead of the present clock as it was of the former one.
    await tx.execute(
        text("UPDATE agent SET drain_deadline_time = drain_deadline_time + make_interval(secs => :seconds)"),
        {"seconds": seconds},
    )
    return len(found.all())
