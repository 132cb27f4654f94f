"""Conditions of agents: what they report themselves, and what managers have found."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Literal

from sqlalchemy import and_, func, select, update

from retinue.manager.store.fleet.agents import decode_conditions
from retinue.manager.store.postgres.constructs import table_of
from retinue.manager.store.postgres.documents import Unreadable
from retinue.manager.store.tables import Agent

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Sequence

    from sqlmodel.ext.asyncio.session import AsyncSession

    from retinue.manager.domain.session.attempts import AgentCondition

_agent = table_of(Agent)


async def may_block(tx: AsyncSession, agent_id: str, kind: str) -> bool:
    """Returns whether at least half of the agents of an agent's group that are alive remain without such a condition
    that blocks placements, once the agent has it.
    """
    other = _agent.alias("other")
    blocked = and_(other.c.id != _agent.c.id, other.c.found_conditions.contains([{"type": kind, "blocks": True}]))
    query = (
        select(2 * (1 + func.count().filter(blocked)) <= func.count())
        .join_from(_agent, other, other.c.resource_group == _agent.c.resource_group)
        .where(_agent.c.id == agent_id, other.c.state == "ALIVE", ~other.c.revoked)
        .group_by(_agent.c.id)
    )
    return bool((await tx.execute(query)).scalar_one_or_none())


async def with_condition(tx: AsyncSession, kind: str) -> Sequence[str]:
    """Returns the agents with a condition of this type that managers have found."""
    query = select(_agent.c.id).where(_agent.c.found_conditions.contains([{"type": kind}]))
    return list((await tx.execute(query)).scalars())


async def change(
    tx: AsyncSession,
    agent_id: str,
    which: Literal["reported", "found"],
    changed: Callable[[Sequence[AgentCondition], dt.datetime], Sequence[AgentCondition]],
) -> bool:
    """Replaces the conditions of an agent by what `changed` makes of them and the time; returns whether they differ."""
    column = _agent.c[f"{which}_conditions"]
    query = select(column, func.now()).where(_agent.c.id == agent_id).with_for_update(key_share=True)
    row = (await tx.execute(query)).one_or_none()
    if row is None:
        return False
    # Others are replaced, and keep no report of the agent from being committed.
    readable = [known for known in decode_conditions(row[0]) if not isinstance(known, Unreadable)]
    conditions = [
        {**asdict(condition), "since": condition.since.isoformat()} for condition in changed(readable, row[1])
    ]
    if conditions == row[0]:
        return False
    await tx.execute(update(_agent).where(_agent.c.id == agent_id).values({column: conditions}))
    return True
