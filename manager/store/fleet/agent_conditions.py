"""Conditions of agents: what they report themselves, and what managers have found."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Literal

import orjson
from sqlalchemy import text
from sqlmodel.ext.asyncio.session import AsyncSession

from retinue.manager.domain.session.attempts import AgentCondition
from retinue.manager.store.fleet.agents import decode_conditions
from retinue.manager.store.postgres.documents import Unreadable


async def may_block(tx: AsyncSession, agent_id: str, kind: str) -> bool:
    """Returns whether at least half of the agents of an agent's group that are alive remain without such a condition
    that blocks placements, once the agent has it.
    """
    rows = await tx.execute(
        text("""
            SELECT 2 * (1 + count(*) FILTER (WHERE other.id <> agent.id AND other.found_conditions @> CAST(:blocking AS jsonb))) <= count(*)
            FROM agent JOIN agent other USING (resource_group)
            WHERE agent.id = :id AND other.state = 'ALIVE' AND NOT other.revoked GROUP BY agent.id
        """),
        {"id": agent_id, "blocking": orjson.dumps([{"type": kind, "blocks": True}]).decode()},
    )
    return bool(rows.scalar_one_or_none())


async def with_condition(tx: AsyncSession, kind: str) -> Sequence[str]:
    """Returns the agents with a condition of this type that managers have found."""
    rows = await tx.execute(
        text("SELECT id FROM agent WHERE found_conditions @> CAST(:kind AS jsonb)"),
        {"kind": orjson.dumps([{"type": kind}]).decode()},
    )
    return list(rows.scalars())


async def change(
    tx: AsyncSession,
    agent_id: str,
    which: Literal["reported", "found"],
    changed: Callable[[Sequence[AgentCondition], dt.datetime], Sequence[AgentCondition]],
) -> bool:
    """Replaces the conditions of an agent by what `changed` makes of them and the time; returns whether they differ."""
    column = f"{which}_conditions"
    rows = await tx.execute(
        text(f"SELECT {column}, now() FROM agent WHERE id = :id FOR NO KEY UPDATE"),  # noqa: S608  # one of two words
        {"id": agent_id},
    )
    row = rows.one_or_none()
    if row is None:
        return False
    # Others are replaced, and keep no report of the agent from being committed.
    readable = [known for known in decode_conditions(row[0]) if not isinstance(known, Unreadable)]
    conditions = [
        {**asdict(condition), "since": condition.since.isoformat()} for condition in changed(readable, row[1])
    ]
    if conditions == row[0]:
        return False
    await tx.execute(
        text(f"UPDATE agent SET {column} = CAST(:conditions AS jsonb) WHERE id = :id"),  # noqa: S608  # as above
        {"id": agent_id, "conditions": orjson.dumps(conditions).decode()},
    )
    return True
