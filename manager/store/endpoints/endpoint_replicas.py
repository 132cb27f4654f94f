"""Inserts, reads and moves the replicas of endpoints, each with what its session is now."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import text
from sqlmodel.ext.asyncio.session import AsyncSession

from retinue.manager.domain.endpoints.states import ReplicaState
from retinue.manager.domain.session.probes import PublishedStatus
from retinue.manager.domain.session.states import SessionState
from retinue.manager.store.postgres.database import Statement
from retinue.manager.store.postgres.recordset import Row, fetched, recordset
from retinue.manager.store.sessions.session_records import STATES


@dataclass(frozen=True, slots=True)
class ReplicaRecord:
    """A replica with what its session is now. `images` are what images were found to be: digest and id by reference.

    `session_state` is None for a state that only another version knows.
    `agent_state` and `agent_drained` are those of main1's agent, and `agent_held` whether its loss is held.
    """

    session_id: uuid.UUID
    endpoint_id: uuid.UUID
    revision: int
    serial: int
    state: ReplicaState
    since_time: dt.datetime
    drain_time: dt.datetime | None
    was_ready: bool
    message: str
    health: str
    health_message: str
    address: str
    port: int
    session_name: str
    session_state: SessionState | None
    session_reason: str
    session_message: str
    start_time: dt.datetime | None
    epoch: int
    agent_id: str
    agent_state: str
    agent_drained: bool
    agent_held: bool
    image: str
    image_digest: str
    image_id: str


@dataclass(frozen=True, slots=True)
class ReplicaMove:
    """A replica that moves to a state."""

    session_id: uuid.UUID
    state: ReplicaState
    message: str
    drain_seconds: float | None = None


async def read(
    tx: AsyncSession, endpoint_ids: Collection[uuid.UUID], *, gone: int = 0
) -> dict[uuid.UUID, list[ReplicaRecord]]:
    """Returns the replicas of endpoints in the order in which they were made,
    and the newest `gone` of those that failed before they were ready.
    """
    rows = await tx.execute(
        text("""
            SELECT r.session_id, r.endpoint_id, r.revision, r.serial, r.state, r.since_time, r.drain_time, r.was_ready, r.message, r.health,
                r.health_message, r.address, r.port, s.name AS session_name, s.state AS session_state, s.reason AS session_reason,
                s.message AS session_message, s.start_time, k.epoch, coalesce(k.agent_id, '') AS agent_id, coalesce(a.state, '') AS agent_state,
                coalesce(a.drained, FALSE) AS agent_drained,
                coalesce(a.found_conditions @> '[{"type": "LOSS_HELD"}]', FALSE) AS agent_held,
                k.image, k.image_digest, k.image_id
            FROM endpoint_replica r JOIN session s ON s.id = r.session_id JOIN kernel k ON k.id = r.session_id
            LEFT JOIN agent a ON a.id = k.agent_id
            WHERE r.endpoint_id = ANY(:ids) AND (r.state <> 'GONE' OR r.session_id IN (
                SELECT f.session_id FROM endpoint_replica f
                WHERE f.endpoint_id = r.endpoint_id AND f.state = 'GONE' AND NOT f.was_ready ORDER BY f.serial DESC LIMIT :gone))
            ORDER BY r.serial
        """),
        {"ids": list(endpoint_ids), "gone": gone},
    )
    replicas: dict[uuid.UUID, list[ReplicaRecord]] = {}
    for row in fetched(rows):
        replicas.setdefault(row["endpoint_id"], []).append(_replica(row))
    return replicas


def _replica(row: Row) -> ReplicaRecord:
    # One in no known state is ended and replaced.
    states = {state.value: state for state in ReplicaState}
    state = states.get(row["state"], ReplicaState.STOPPING)
    return ReplicaRecord(**{**row, "state": state, "session_state": STATES.get(row["session_state"])})


async def insert(tx: AsyncSession, endpoint_id: uuid.UUID, revision: int, session_ids: Sequence[uuid.UUID]) -> None:
    """Makes sessions replicas of a revision."""
    await tx.execute(
        text("""
            INSERT INTO endpoint_replica (session_id, endpoint_id, revision, state, was_ready, message, health, health_message, address, port)
            SELECT session_id, :endpoint, :revision, 'STARTING', FALSE, '', '', '', '', 0
            FROM unnest(CAST(:ids AS uuid[])) WITH ORDINALITY AS made(session_id, position) ORDER BY position
        """),
        {"endpoint": endpoint_id, "revision": revision, "ids": list(session_ids)},
    )


def recording_published(statuses: Mapping[uuid.UUID, PublishedStatus]) -> Statement:
    """Records what agents report of the published ports of replicas, by session;
    a health that is not known leaves that which was.
    """
    rows = [
        {"id": key, "health": item.health, "message": item.message, "address": item.address, "port": item.port}
        for key, item in statuses.items()
    ]
    return Statement(
        """
            UPDATE endpoint_replica p SET address = r.address, port = r.port, health = coalesce(r.health, p.health),
                health_message = CASE WHEN r.health IS NULL THEN p.health_message ELSE r.message END
            FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(id uuid, health text, message text, address text, port int)
            WHERE p.session_id = r.id
        """,
        {"rows": recordset(rows)},
    )


async def pin_images(tx: AsyncSession, session_ids: Sequence[uuid.UUID], found: Mapping[str, Sequence[str]]) -> None:
    """Gives the kernels of sessions the images that the references of their requests were found to be."""
    await tx.execute(
        text("""
            UPDATE kernel k SET image_digest = f.digest, image_id = f.id
            FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS f(reference text, digest text, id text)
            WHERE k.session_id = ANY(:ids) AND k.image = f.reference
        """),
        {
            "ids": list(session_ids),
            "rows": recordset(
                [{"reference": reference, "digest": image[0], "id": image[1]} for reference, image in found.items()]
            ),
        },
    )


async def move(tx: AsyncSession, moves: Iterable[ReplicaMove]) -> None:
    """Moves replicas; each that is READY has been ready. The time of a drain stays when a replica stops,
    and goes when it is called back.
    """
    await tx.execute(
        text("""
            UPDATE endpoint_replica p SET state = r.state, message = r.message, since_time = now(),
                was_ready = p.was_ready OR r.state = 'READY',
                drain_time = CASE WHEN r.drain_seconds IS NOT NULL THEN now() + make_interval(secs => r.drain_seconds)
                    WHEN r.state IN ('STOPPING', 'GONE') THEN p.drain_time END
            FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(session_id uuid, state text, message text, drain_seconds float8)
            WHERE p.session_id = r.session_id
        """),
        {"rows": recordset(moves)},
    )


async def read_last_output(tx: AsyncSession, session_id: uuid.UUID, limit: int) -> bytes:
    """Returns the end of the kept output of a session's main kernel."""
    found = await tx.execute(
        text("""
            SELECT substring(data FROM greatest(1, length(data) - :limit + 1)) FROM kernel_log WHERE kernel_id = :id
            ORDER BY epoch DESC LIMIT 1
        """),
        {"id": session_id, "limit": limit},
    )
    return bytes(found.scalar_one_or_none() or b"")
