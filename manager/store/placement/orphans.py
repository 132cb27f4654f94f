"""Attempts that agents run and that have no row here: those that were placed after the
backup which the database was restored from.
"""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from sqlalchemy import Integer, Text, Uuid, and_, delete, exists, func, literal, not_, select, true, tuple_, update
from sqlalchemy.dialects.postgresql import insert

from retinue.manager.store.postgres.constructs import lists, table_of, word, words
from retinue.manager.store.postgres.recordset import fetched
from retinue.manager.store.tables import Agent, Attempt, Cluster, Orphan, Session

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlmodel.ext.asyncio.session import AsyncSession

# Kernel and epoch.
AttemptKey = tuple[uuid.UUID, int]


@dataclass(frozen=True, slots=True)
class ReportedOrphan:
    """An attempt that an agent runs, as it says."""

    kernel_id: uuid.UUID
    epoch: int
    session_id: uuid.UUID | None
    state: str


_agent, _attempt, _cluster = table_of(Agent), table_of(Attempt), table_of(Cluster)
_orphan, _session = table_of(Orphan), table_of(Session)
_keys = lists("keys", kernel=Uuid(), number=Integer())
_IS_ASKED = tuple_(_orphan.c.kernel_id, _orphan.c.epoch).in_(select(_keys.c.kernel, _keys.c.number))


def _parameters(keys: Collection[AttemptKey]) -> dict[str, object]:
    return {"kernel": [kernel for kernel, _ in keys], "number": [epoch for _, epoch in keys]}


async def read_known(tx: AsyncSession, keys: Collection[AttemptKey]) -> dict[AttemptKey, tuple[str, bool]]:
    """Those of the attempts that have a row: the agent that they belong to, and whether they have ended."""
    query = select(
        _attempt.c.kernel_id, _attempt.c.epoch, _attempt.c.agent_id, _attempt.c.end_time.is_not(None)
    ).join_from(_attempt, _keys, and_(_attempt.c.kernel_id == _keys.c.kernel, _attempt.c.epoch == _keys.c.number))
    rows = await tx.execute(query, _parameters(keys))
    return {(kernel, epoch): (agent, ended) for kernel, epoch, agent, ended in rows}


async def replace(tx: AsyncSession, agent_id: str, orphans: Sequence[ReportedOrphan]) -> set[AttemptKey]:
    """Records all that an agent runs unknown to this database; what was recorded before and is not among it is gone.
    The agent has now said what it runs in this incarnation. Returns those that it is to end.
    """
    given = _parameters([(item.kernel_id, item.epoch) for item in orphans])
    gone = delete(_orphan).where(_orphan.c.agent_id == agent_id, not_(_IS_ASKED))
    await tx.execute(gone, given)
    if orphans:
        rows = lists("reported", kernel=Uuid(), number=Integer(), session=Uuid(), seen=Text())
        made = insert(_orphan).from_select(
            ["agent_id", "kernel_id", "epoch", "session_id", "state"],
            select(literal(agent_id, Text()), *rows.c),
            include_defaults=False,
        )
        put = made.on_conflict_do_update(
            index_elements=["agent_id", "kernel_id", "epoch"], set_={"state": made.excluded.state}
        )
        sessions, states = [item.session_id for item in orphans], [item.state for item in orphans]
        await tx.execute(put, {**given, "session": sessions, "seen": states})
    incarnation = select(_cluster.c.incarnation).scalar_subquery()
    await tx.execute(update(_agent).where(_agent.c.id == agent_id).values(incarnation=incarnation))
    ending = await tx.execute(
        select(_orphan.c.kernel_id, _orphan.c.epoch).where(_orphan.c.agent_id == agent_id, _orphan.c.end_requested)
    )
    return {(kernel, epoch) for kernel, epoch in ending}


async def forget(tx: AsyncSession, agent_id: str, keys: Collection[AttemptKey]) -> None:
    """These have ended."""
    gone = delete(_orphan).where(_orphan.c.agent_id == agent_id, _IS_ASKED)
    await tx.execute(gone, _parameters(keys))


async def count(tx: AsyncSession, agent_id: str) -> int:
    """Returns how many orphans an agent runs."""
    query = select(func.count()).select_from(_orphan).where(_orphan.c.agent_id == agent_id)
    return int((await tx.execute(query)).scalar_one())


async def request_end(tx: AsyncSession, agent_id: str, keys: Collection[AttemptKey] | None = None) -> list[AttemptKey]:
    """Has the agent end these, or all. Returns those that are there."""
    requested = update(_orphan).where(_orphan.c.agent_id == agent_id)
    if keys is not None:
        requested = requested.where(_IS_ASKED)
    returned = requested.values(end_requested=True).returning(_orphan.c.kernel_id, _orphan.c.epoch)
    rows = await tx.execute(returned, {} if keys is None else _parameters(keys))
    return [(kernel, epoch) for kernel, epoch in rows]


async def are_there_any(tx: AsyncSession) -> bool:
    """Returns whether there are orphans of any agent."""
    return bool((await tx.execute(select(exists().select_from(_orphan)))).scalar_one())


async def request_ends_of_ended_sessions(tx: AsyncSession) -> None:
    """Has agents end what belongs to sessions that are known here, and have ended."""
    of_ended = update(_orphan).where(
        ~_orphan.c.end_requested,
        _session.c.id == _orphan.c.session_id,
        _session.c.state.in_(words("TERMINATED", "CANCELLED")),
    )
    await tx.execute(of_ended.values(end_requested=True))


async def read_ending(tx: AsyncSession, agent_id: str | None = None) -> list[tuple[str, uuid.UUID, int]]:
    """Returns the orphans to be ended, of one agent or of all: agent, kernel and epoch."""
    query = select(_orphan.c.agent_id, _orphan.c.kernel_id, _orphan.c.epoch).where(_orphan.c.end_requested)
    rows = await tx.execute(query if agent_id is None else query.where(_orphan.c.agent_id == agent_id))
    return [(agent, kernel, epoch) for agent, kernel, epoch in rows]


async def read_unreported(tx: AsyncSession) -> list[str]:
    """Agents that have not said yet what they run in this incarnation, and are not known to be gone."""
    query = (
        select(_agent.c.id)
        .join_from(_agent, _cluster, true())
        .where(
            _cluster.c.restore_time.is_not(None),
            not_(_agent.c.revoked),
            _agent.c.address != word(""),
            _agent.c.incarnation.is_distinct_from(_cluster.c.incarnation),
        )
    )
    rows = await tx.execute(query.order_by(_agent.c.id))
    return list(rows.scalars())


@dataclass(frozen=True, slots=True)
class OrphanRecord:
    """An orphan with `state` as its agent reports it, and name and owner of its session,
    None when no such session is known.
    """

    agent_id: str
    kernel_id: uuid.UUID
    epoch: int
    session_id: uuid.UUID | None
    state: str
    end_requested: bool
    create_time: dt.datetime
    session_name: str | None
    owner: str | None


async def list_page(
    tx: AsyncSession, agent_id: str, after: tuple[str, uuid.UUID, int] | None, limit: int
) -> list[OrphanRecord]:
    """Returns orphans, of one agent unless `agent_id` is empty, by agent, kernel and epoch."""
    own = [_orphan.c[field.name] for field in fields(OrphanRecord) if field.name in _orphan.c]
    key = (_orphan.c.agent_id, _orphan.c.kernel_id, _orphan.c.epoch)
    query = select(*own, _session.c.name.label("session_name"), _session.c.owner).outerjoin_from(
        _orphan, _session, _session.c.id == _orphan.c.session_id
    )
    if agent_id:
        query = query.where(_orphan.c.agent_id == agent_id)
    if after is not None:
        last = (literal(value, item.type) for value, item in zip(after, key, strict=True))
        query = query.where(tuple_(*key) > tuple_(*last))
    rows = await tx.execute(query.order_by(*key).limit(limit))
    return [OrphanRecord(**row) for row in fetched(rows)]
