"""Attempts that agents run and that have no row here: those that were placed after the
backup which the database was restored from.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import text
from sqlmodel.ext.asyncio.session import AsyncSession

from retinue.manager.store.postgres.recordset import fetched

# Kernel and epoch.
AttemptKey = tuple[uuid.UUID, int]


@dataclass(frozen=True, slots=True)
class Found:
    """An attempt that an agent runs, as it says."""

    kernel_id: uuid.UUID
    epoch: int
    session_id: uuid.UUID | None
    state: str


async def read_known(tx: AsyncSession, keys: Collection[AttemptKey]) -> dict[AttemptKey, tuple[str, bool]]:
    """Those of the attempts that have a row: the agent that they belong to, and whether they have ended."""
    rows = await tx.execute(
        text("""
            SELECT a.kernel_id, a.epoch, a.agent_id, a.end_time IS NOT NULL
            FROM attempt a JOIN unnest(CAST(:kernels AS uuid[]), CAST(:epochs AS int[])) AS r(kernel_id, epoch) USING (kernel_id, epoch)
        """),
        {"kernels": [kernel for kernel, _ in keys], "epochs": [epoch for _, epoch in keys]},
    )
    return {(kernel, epoch): (agent, ended) for kernel, epoch, agent, ended in rows}


async def replace(tx: AsyncSession, agent_id: str, found: Sequence[Found]) -> set[AttemptKey]:
    """Records all that an agent runs unknown to this database; what was recorded before and is not among it is gone.
    The agent has now said what it runs in this incarnation. Returns those that it is to end.
    """
    params = {
        "agent": agent_id,
        "kernels": [item.kernel_id for item in found],
        "epochs": [item.epoch for item in found],
        "sessions": [item.session_id for item in found],
        "states": [item.state for item in found],
    }
    await tx.execute(
        text("""
            DELETE FROM orphan WHERE agent_id = :agent AND (kernel_id, epoch) NOT IN (
                SELECT * FROM unnest(CAST(:kernels AS uuid[]), CAST(:epochs AS int[]))
            )
        """),
        params,
    )
    if found:
        await tx.execute(
            text("""
                INSERT INTO orphan (agent_id, kernel_id, epoch, session_id, state)
                SELECT :agent, * FROM unnest(CAST(:kernels AS uuid[]), CAST(:epochs AS int[]), CAST(:sessions AS uuid[]), CAST(:states AS text[]))
                ON CONFLICT (agent_id, kernel_id, epoch) DO UPDATE SET state = excluded.state
            """),
            params,
        )
    await tx.execute(
        text("UPDATE agent SET incarnation = cluster.incarnation FROM cluster WHERE agent.id = :agent"),
        {"agent": agent_id},
    )
    rows = await tx.execute(
        text("SELECT kernel_id, epoch FROM orphan WHERE agent_id = :agent AND end_requested"), {"agent": agent_id}
    )
    return {(kernel, epoch) for kernel, epoch in rows}


async def forget(tx: AsyncSession, agent_id: str, keys: Collection[AttemptKey]) -> None:
    """These have ended."""
    await tx.execute(
        text("""
            DELETE FROM orphan USING unnest(CAST(:kernels AS uuid[]), CAST(:epochs AS int[])) AS r(kernel_id, epoch)
            WHERE agent_id = :agent AND orphan.kernel_id = r.kernel_id AND orphan.epoch = r.epoch
        """),
        {"agent": agent_id, "kernels": [kernel for kernel, _ in keys], "epochs": [epoch for _, epoch in keys]},
    )


async def count(tx: AsyncSession, agent_id: str) -> int:
    """Returns how many orphans an agent runs."""
    number: int = (
        await tx.execute(text("SELECT count(*) FROM orphan WHERE agent_id = :agent"), {"agent": agent_id})
    ).scalar_one()
    return number


async def request_end(tx: AsyncSession, agent_id: str, keys: Collection[AttemptKey] | None = None) -> list[AttemptKey]:
    """Has the agent end these, or all. Returns those that are there."""
    rows = await tx.execute(
        text("""
            UPDATE orphan SET end_requested = TRUE WHERE agent_id = :agent AND (:all OR (kernel_id, epoch) IN (
                SELECT * FROM unnest(CAST(:kernels AS uuid[]), CAST(:epochs AS int[]))
            )) RETURNING kernel_id, epoch
        """),
        {
            "agent": agent_id,
            "all": keys is None,
            "kernels": [kernel for kernel, _ in keys or ()],
            "epochs": [epoch for _, epoch in keys or ()],
        },
    )
    return [(kernel, epoch) for kernel, epoch in rows]


async def request_ends_of_ended_sessions(tx: AsyncSession) -> None:
    """Has agents end what belongs to sessions that are known here, and have ended."""
    await tx.execute(
        text("""
            UPDATE orphan SET end_requested = TRUE FROM session
            WHERE NOT end_requested AND session.id = orphan.session_id AND session.state IN ('TERMINATED', 'CANCELLED')
        """)
    )


async def read_ending(tx: AsyncSession, agent_id: str | None = None) -> list[tuple[str, uuid.UUID, int]]:
    """Returns the orphans to be ended, of one agent or of all: agent, kernel and epoch."""
    rows = await tx.execute(
        text("""
            SELECT agent_id, kernel_id, epoch FROM orphan
            WHERE end_requested AND (CAST(:agent AS text) IS NULL OR agent_id = :agent)
        """),
        {"agent": agent_id},
    )
    return [(agent, kernel, epoch) for agent, kernel, epoch in rows]


async def read_unreported(tx: AsyncSession) -> list[str]:
    """Agents that have not said yet what they run in this incarnation, and are not known to be gone."""
    rows = await tx.execute(
        text("""
            SELECT agent.id FROM agent CROSS JOIN cluster
            WHERE cluster.restore_time IS NOT NULL AND NOT agent.revoked AND agent.address <> ''
              AND agent.incarnation IS DISTINCT FROM cluster.incarnation ORDER BY agent.id
        """)
    )
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
    rows = await tx.execute(
        text("""
            SELECT o.agent_id, o.kernel_id, o.epoch, o.session_id, o.state, o.end_requested, o.create_time, s.name AS session_name,
                s.owner
            FROM orphan o LEFT JOIN session s ON s.id = o.session_id
            WHERE (:agent = '' OR o.agent_id = :agent)
              AND (:first OR (o.agent_id, o.kernel_id, o.epoch) > (:after_agent, CAST(:after_kernel AS uuid), CAST(:after_epoch AS int)))
            ORDER BY o.agent_id, o.kernel_id, o.epoch LIMIT :limit
        """),
        {
            "agent": agent_id,
            "first": after is None,
            "after_agent": after[0] if after else "",
            "after_kernel": after[1] if after else None,
            "after_epoch": after[2] if after else 0,
            "limit": limit,
        },
    )
    return [OrphanRecord(**row) for row in fetched(rows)]
