"""What the leader learns of agents over their streams, and where it finds them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from sqlalchemy import text
from sqlmodel.ext.asyncio.session import AsyncSession

from manager.store.recordset import Row, fetched


async def read_targets(tx: AsyncSession) -> list[Row]:
    """Agents to keep a link to: id, address, state and underlay address."""
    rows = await tx.execute(
        text("SELECT id, address, state, underlay_address FROM agent WHERE address <> '' AND NOT revoked ORDER BY id")
    )
    return fetched(rows)


async def record_facts(
    tx: AsyncSession,
    agent_id: str,
    *,
    instance: str,
    boot_id: str,
    version: str,
    architecture: str,
    capacity: Mapping[str, int],
    backends: Sequence[str],
    underlay_address: str,
    underlay_mtu: int,
) -> str | None:
    """What an agent says of itself; it is alive from now on. Returns its group when what counts in it has changed."""
    rows = await tx.execute(
        text("""
            WITH before AS (SELECT id, capacity, state FROM agent WHERE id = :id FOR UPDATE)
            UPDATE agent SET state = 'ALIVE', instance = :instance, boot_id = :boot_id, software_version = :version,
                architecture = :architecture, capacity = CAST(:capacity AS jsonb), backends = CAST(:backends AS jsonb),
                underlay_address = :underlay_address, underlay_mtu = :underlay_mtu, heartbeat_time = now()
            FROM before WHERE agent.id = before.id
            RETURNING agent.resource_group, before.capacity <> agent.capacity OR before.state NOT IN ('ALIVE', 'SUSPECT') AS counts
        """),
        {
            "id": agent_id,
            "instance": instance,
            "boot_id": boot_id,
            "version": version,
            "architecture": architecture,
            "capacity": json.dumps(dict(capacity)),
            "backends": json.dumps(list(backends)),
            "underlay_address": underlay_address,
            "underlay_mtu": underlay_mtu,
        },
    )
    row = rows.one_or_none()
    return str(row[0]) if row is not None and row[1] else None


async def record_state(tx: AsyncSession, agent_id: str, state: str) -> str | None:
    """An agent is ALIVE, SUSPECT or LOST from now on. Returns its group when that changes what counts in it."""
    rows = await tx.execute(
        text("""
            WITH before AS (SELECT id, state FROM agent WHERE id = :id FOR UPDATE)
            UPDATE agent SET state = CAST(:state AS text), heartbeat_time =
                CASE WHEN CAST(:state AS text) = 'ALIVE' THEN now() ELSE heartbeat_time END
            FROM before WHERE agent.id = before.id
            RETURNING agent.resource_group, (before.state IN ('ALIVE', 'SUSPECT')) <> (agent.state IN ('ALIVE', 'SUSPECT')) AS counts
        """),
        {"id": agent_id, "state": state},
    )
    row = rows.one_or_none()
    return str(row[0]) if row is not None and row[1] else None


async def touch(tx: AsyncSession, agent_ids: Sequence[str]) -> None:
    """These agents were heard of in the last minute."""
    await tx.execute(text("UPDATE agent SET heartbeat_time = now() WHERE id = ANY(:ids)"), {"ids": list(agent_ids)})
