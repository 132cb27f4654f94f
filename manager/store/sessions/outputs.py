"""Output of ended kernels: what is still to be fetched from agents, and what is kept."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Collection
from dataclasses import dataclass, field

from sqlalchemy import text
from sqlmodel.ext.asyncio.session import AsyncSession

from retinue.manager.store.postgres.recordset import fetched
from retinue.manager.store.sessions.output_streams import StreamRuns


@dataclass(frozen=True, slots=True)
class PendingOutput:
    """An ended attempt whose output, of `log_size` bytes, is still on its agent."""

    kernel_id: uuid.UUID
    epoch: int
    session_id: uuid.UUID
    log_size: int
    agent_id: str
    address: str


@dataclass(frozen=True, slots=True)
class OutputSource:
    """The location of an attempt's output: on its agent or not; `live` when it or a later attempt may print more,
    `newest` the last epoch.
    """

    newest: int
    epoch: int
    agent_id: str
    address: str
    on_agent: bool
    live: bool


async def read_pending(tx: AsyncSession, limit: int, busy: Collection[str]) -> list[PendingOutput]:
    """Returns outputs that are still on their agents, those of all agents in turns, less `busy` ones."""
    rows = await tx.execute(
        text("""
            SELECT a.kernel_id, a.epoch, a.session_id, a.log_size, a.agent_id, g.address FROM attempt a JOIN agent g ON g.id = a.agent_id
            WHERE a.log_pending AND g.state <> 'LOST' AND a.agent_id <> ALL(CAST(:busy AS text[]))
            -- An agent that does not answer holds up no other.
            ORDER BY row_number() OVER (PARTITION BY a.agent_id ORDER BY a.end_time), a.end_time LIMIT :limit
        """),
        {"limit": limit, "busy": list(busy)},
    )
    return [PendingOutput(**row) for row in fetched(rows)]


# Attempts of a kernel whose output is kept: the newest that printed anything.
KEPT_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class KeptOutput:
    """The kept tail of an attempt's output, and when the attempt ended."""

    start_offset: int = 0
    data: bytes = b""
    streams: StreamRuns = field(default_factory=StreamRuns)
    end_time: dt.datetime | None = None


async def keep(tx: AsyncSession, kernel_id: uuid.UUID, epoch: int, output: KeptOutput) -> None:
    """Keeps the tail of an ended attempt's output; its agent may forget it from then on. No data keeps nothing."""
    if output.data:
        await tx.execute(
            text("""
                INSERT INTO kernel_log (kernel_id, epoch, start_offset, data, streams)
                VALUES (:kernel, :epoch, :offset, :data, :streams)
                ON CONFLICT (kernel_id, epoch)
                DO UPDATE SET start_offset = excluded.start_offset, data = excluded.data, streams = excluded.streams
            """),
            {
                "kernel": kernel_id,
                "epoch": epoch,
                "offset": output.start_offset,
                "data": output.data,
                "streams": output.streams.encode(),
            },
        )
        await tx.execute(
            text("""
                DELETE FROM kernel_log WHERE kernel_id = :kernel AND epoch <=
                    (SELECT epoch FROM kernel_log WHERE kernel_id = :kernel ORDER BY epoch DESC OFFSET :kept LIMIT 1)
            """),
            {"kernel": kernel_id, "kept": KEPT_ATTEMPTS},
        )
    await tx.execute(
        text("UPDATE attempt SET log_pending = FALSE WHERE kernel_id = :kernel AND epoch = :epoch"),
        {"kernel": kernel_id, "epoch": epoch},
    )


async def read_kept(tx: AsyncSession, kernel_id: uuid.UUID, epoch: int) -> KeptOutput:
    """Returns the kept output of an attempt."""
    row = (
        await tx.execute(
            text("""
                SELECT l.start_offset, l.data, l.streams, a.end_time FROM kernel_log l
                LEFT JOIN attempt a ON a.kernel_id = l.kernel_id AND a.epoch = l.epoch WHERE l.kernel_id = :kernel AND l.epoch = :epoch
            """),
            {"kernel": kernel_id, "epoch": epoch},
        )
    ).one_or_none()
    return KeptOutput() if row is None else KeptOutput(row[0], bytes(row[1]), StreamRuns.decode(bytes(row[2])), row[3])


async def read_source(tx: AsyncSession, kernel_id: uuid.UUID, epoch: int = 0) -> OutputSource | None:
    """Returns where the output of a kernel's attempt is, by default of its newest;
    None when there is no such kernel, or attempt.
    """
    rows = await tx.execute(
        text("""
            SELECT k.epoch AS newest, coalesce(a.epoch, k.epoch) AS epoch, coalesce(a.agent_id, '') AS agent_id, coalesce(g.address, '') AS address,
                a.kernel_id IS NOT NULL AND (a.end_time IS NULL OR a.log_pending) AS on_agent,
                k.state NOT IN ('TERMINATED', 'CANCELLED') AS live
            FROM kernel k LEFT JOIN attempt a ON a.kernel_id = k.id AND a.epoch = CASE WHEN :epoch = 0 THEN k.epoch ELSE :epoch END
            LEFT JOIN agent g ON g.id = a.agent_id
            WHERE k.id = :kernel AND (:epoch = 0 OR a.epoch IS NOT NULL)
        """),
        {"kernel": kernel_id, "epoch": epoch},
    )
    found = fetched(rows)
    return OutputSource(**found[0]) if found else None
