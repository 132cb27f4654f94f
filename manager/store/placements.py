"""What a scheduling pass reads, and its one commit: attempts, claims, networks and states of the sessions it placed."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from sqlalchemy import text
from sqlmodel.ext.asyncio.session import AsyncSession

from manager.store.recordset import Row, fetched, recordset


async def read_groups(tx: AsyncSession) -> list[Row]:
    """Groups that have something waiting, with their policies."""
    rows = await tx.execute(
        text("""
            SELECT g.name, g.session_strategy, g.agent_strategy, g.options, g.owner_weights, g.rotation FROM resource_group g
            WHERE EXISTS (SELECT FROM session s WHERE s.state = 'PENDING' AND s.resource_group = g.name) ORDER BY g.name
        """)
    )
    return fetched(rows)


async def read_agents(tx: AsyncSession, group: str) -> list[Row]:
    """Agents of a group that count: heard of and not lost, with what live claims hold of each."""
    rows = await tx.execute(
        text("""
            SELECT a.id, a.state, a.drained, a.architecture, a.backends, a.capacity,
                coalesce(c.used, '{}'::jsonb) AS used, coalesce(n.kernels, 0) AS kernels
            FROM agent a
            LEFT JOIN (
                SELECT agent_id, jsonb_object_agg(slot, amount) AS used FROM (
                    SELECT agent_id, slot, sum(amount) AS amount FROM claim WHERE release_time IS NULL GROUP BY agent_id, slot
                ) sums GROUP BY agent_id
            ) c ON c.agent_id = a.id
            LEFT JOIN (SELECT agent_id, count(*) AS kernels FROM attempt WHERE end_time IS NULL GROUP BY agent_id) n ON n.agent_id = a.id
            WHERE a.resource_group = :group AND a.state IN ('ALIVE', 'SUSPECT') AND NOT a.revoked ORDER BY a.id
        """),
        {"group": group},
    )
    return fetched(rows)


async def read_held(tx: AsyncSession, group: str) -> dict[str, dict[str, int]]:
    """What live claims hold of a group, by owner and slot."""
    rows = await tx.execute(
        text("""
            SELECT owner, slot, sum(amount)::bigint AS amount FROM claim
            WHERE release_time IS NULL AND resource_group = :group GROUP BY owner, slot
        """),
        {"group": group},
    )
    held: dict[str, dict[str, int]] = {}
    for owner, slot, amount in rows:
        held.setdefault(owner, {})[slot] = amount
    return held


async def read_queue(tx: AsyncSession, group: str) -> list[Row]:
    """Sessions that wait in a group, in order of arrival: with their kernels' amounts by rank, the seconds until the next try
    and until they may start at all, what they depend on that has not succeeded, and
    whether attempts or networks of an earlier placement are still being cleared away.
    """
    rows = await tx.execute(
        text("""
            SELECT s.id, s.owner, s.project, s.priority, s.sequence, s.cluster_mode, s.tries, s.retries, s.failed_starts,
                s.failed_agents, s.last_failure, s.reason, s.message,
                s.spec->'agents' AS agents, s.spec->'agents_strict' AS agents_strict, s.spec->>'architecture' AS architecture, s.endpoint,
                s.spec->>'replica_placement' AS replica_placement,
                (s.spec->>'time_limit_seconds')::float8 AS time_limit, extract(epoch FROM now() - s.create_time)::bigint AS waited,
                CASE WHEN (s.promise->>'until')::float8 > extract(epoch FROM now()) THEN s.promise->'agents' END AS promise,
                greatest(0, extract(epoch FROM s.next_try_time - now()))::float8 AS delay,
                (SELECT jsonb_agg(jsonb_build_object('id', k.id, 'hostname', k.hostname, 'slots', k.slots, 'image',
                        coalesce(nullif(s.spec->'roles'->k.role->>'image', ''), s.spec->'kernel'->>'image', '') <> '') ORDER BY k.local_rank)
                 FROM kernel k WHERE k.session_id = s.id) AS kernels,
                greatest(0, (s.spec->>'starts_at')::float8 - extract(epoch FROM now()))::float8 AS until_start,
                (SELECT count(*) FROM session_dependency d WHERE d.child_id = s.id AND NOT d.settled) AS open_dependencies,
                ARRAY(SELECT coalesce(p.name, d.parent_id::text) FROM session_dependency d LEFT JOIN session p ON p.id = d.parent_id
                      WHERE d.child_id = s.id AND NOT d.settled ORDER BY d.position LIMIT 3) AS waits_for,
                EXISTS (SELECT FROM attempt a WHERE a.session_id = s.id AND (a.end_time IS NULL OR a.log_pending))
                    OR EXISTS (SELECT FROM network n WHERE n.session_id = s.id) AS clearing
            FROM session s WHERE s.state = 'PENDING' AND s.resource_group = :group ORDER BY s.sequence
        """),
        {"group": group},
    )
    return fetched(rows)


async def read_replicas(
    tx: AsyncSession, endpoints: Collection[tuple[str, str]]
) -> dict[tuple[str, str], dict[str, int]]:
    """For endpoints (project, name): how many live kernels of theirs are on each agent."""
    rows = await tx.execute(
        text("""
            SELECT s.project, s.endpoint, a.agent_id, count(*)
            FROM unnest(CAST(:projects AS text[]), CAST(:endpoints AS text[])) AS wanted(project, endpoint)
            JOIN session s ON s.project = wanted.project AND s.endpoint = wanted.endpoint AND s.endpoint <> ''
                AND s.state NOT IN ('TERMINATED', 'CANCELLED')
            JOIN attempt a ON a.session_id = s.id AND a.end_time IS NULL
            GROUP BY s.project, s.endpoint, a.agent_id
        """),
        {"projects": [project for project, _ in endpoints], "endpoints": [name for _, name in endpoints]},
    )
    replicas: dict[tuple[str, str], dict[str, int]] = {}
    for project, endpoint, agent, kernels in rows:
        replicas.setdefault((project, endpoint), {})[agent] = kernels
    return replicas


async def read_running(tx: AsyncSession, group: str, *, min_runtime: int) -> list[Row]:
    """Placed sessions of a group that end by a time limit or may be preempted: seconds until the limit (counted from now for those that are
    starting; None without one), when they were placed, and what each live attempt holds. Those placed for less than `min_runtime` seconds
    may not be preempted yet.
    """
    rows = await tx.execute(
        text("""
            SELECT s.id, s.priority, extract(epoch FROM s.schedule_time)::float8 AS placed,
                coalesce((s.spec->>'preemptible')::boolean, FALSE) AND s.schedule_time <= now() - make_interval(secs => :min_runtime)
                    AS preemptible,
                greatest(0, coalesce(extract(epoch FROM s.expire_time - now()), (s.spec->>'time_limit_seconds')::float8))::float8 AS ends,
                jsonb_agg(jsonb_build_object('agent', h.agent_id, 'slots', h.slots)) AS holdings
            FROM session s JOIN LATERAL (
                SELECT a.agent_id, (SELECT jsonb_object_agg(c.slot, c.amount) FROM claim c
                    WHERE c.kernel_id = a.kernel_id AND c.epoch = a.epoch AND c.release_time IS NULL) AS slots
                FROM attempt a WHERE a.session_id = s.id AND a.end_time IS NULL
            ) h ON h.slots IS NOT NULL
            WHERE s.resource_group = :group AND s.state IN ('SCHEDULED', 'PREPARING', 'RUNNING')
              AND (s.spec->>'time_limit_seconds' IS NOT NULL OR (s.spec->>'preemptible')::boolean)
            GROUP BY s.id ORDER BY s.id
        """),
        {"group": group, "min_runtime": min_runtime},
    )
    return fetched(rows)


async def promise(tx: AsyncSession, rows: Iterable[Mapping[str, Any]]) -> None:
    """Keeps room for waiting sessions: rows of id, agents (of the kernels, by rank) and seconds."""
    await tx.execute(
        text("""
            UPDATE session SET promise = jsonb_build_object('agents', r.agents, 'until', extract(epoch FROM now()) + r.seconds)
            FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(id uuid, agents jsonb, seconds float8)
            WHERE session.id = r.id AND session.state = 'PENDING'
        """),
        {"rows": recordset(rows)},
    )


async def lock_waiting(tx: AsyncSession, session_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, Row]:
    """Those of the sessions that still wait, locked."""
    rows = await tx.execute(
        text(
            "SELECT id, owner, project, resource_group, version FROM session WHERE id = ANY(:ids) AND state = 'PENDING' ORDER BY id FOR UPDATE"
        ),
        {"ids": list(session_ids)},
    )
    return {row["id"]: row for row in fetched(rows)}


async def lock_free(tx: AsyncSession, agent_ids: Collection[str]) -> dict[str, dict[str, int]]:
    """What is free on agents that may take new kernels, by agent and slot; the agents are locked, so it stays true until the commit."""
    agents = await tx.execute(
        text("""
            SELECT id, capacity FROM agent WHERE id = ANY(:ids) AND state = 'ALIVE' AND NOT drained AND NOT revoked ORDER BY id FOR UPDATE
        """),
        {"ids": list(agent_ids)},
    )
    free = {row["id"]: dict(row["capacity"]) for row in fetched(agents)}
    used = await tx.execute(
        text("""
            SELECT agent_id, slot, sum(amount)::bigint AS amount FROM claim
            WHERE release_time IS NULL AND agent_id = ANY(:ids) GROUP BY agent_id, slot
        """),
        {"ids": list(agent_ids)},
    )
    for agent_id, slot, amount in used:
        if agent_id in free:
            free[agent_id][slot] = free[agent_id].get(slot, 0) - amount
    return free


async def keep_rotation(tx: AsyncSession, group: str, rotation: str) -> None:
    """Remembers the agent that a rotation chose last."""
    await tx.execute(
        text("UPDATE resource_group SET rotation = :rotation WHERE name = :group AND rotation <> :rotation"),
        {"group": group, "rotation": rotation},
    )


async def read_underlays(tx: AsyncSession, agent_ids: Collection[str]) -> dict[str, tuple[str, int]]:
    """Address and MTU of each agent's underlay link."""
    rows = await tx.execute(
        text("SELECT id, underlay_address, underlay_mtu FROM agent WHERE id = ANY(:ids)"), {"ids": list(agent_ids)}
    )
    return {row["id"]: (row["underlay_address"], row["underlay_mtu"]) for row in fetched(rows)}


async def read_taken_addresses(tx: AsyncSession) -> tuple[list[str], set[int]]:
    """Subnets and VNIs that networks have."""
    rows = (await tx.execute(text("SELECT subnet::text, vni FROM network"))).all()
    return [subnet for subnet, _ in rows], {vni for _, vni in rows if vni}


async def place(
    tx: AsyncSession,
    *,
    term: int,
    kernels: Iterable[Mapping[str, Any]],
    networks: Iterable[Mapping[str, Any]],
    sessions: Iterable[Mapping[str, Any]],
) -> dict[uuid.UUID, int]:
    """Writes placements: `kernels` are rows of id, session_id, agent_id, address, slots, owner and resource_group; `networks` of session_id,
    vni, subnet, mtu and agents; `sessions` of id and network. Returns the epoch of each kernel's new attempt.
    """
    placed = await tx.execute(
        text("""
            WITH placed AS (
                UPDATE kernel SET state = 'SCHEDULED', agent_id = r.agent_id, epoch = kernel.epoch + 1, address = r.address, exit_code = NULL,
                    reason = ''
                FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(id uuid, session_id uuid, agent_id text, address text, slots jsonb, owner text,
                    resource_group text)
                WHERE kernel.id = r.id
                RETURNING kernel.id, kernel.epoch, kernel.session_id, kernel.agent_id, r.slots, r.owner, r.resource_group
            ), tried AS (
                INSERT INTO attempt (kernel_id, epoch, session_id, agent_id, goal, observed, term, log_pending)
                SELECT id, epoch, session_id, agent_id, 'HELD', '', :term, FALSE FROM placed
            ), claimed AS (
                INSERT INTO claim (kernel_id, epoch, slot, agent_id, resource_group, owner, amount)
                SELECT placed.id, placed.epoch, slot.key, placed.agent_id, placed.resource_group, placed.owner, slot.value::bigint
                FROM placed CROSS JOIN LATERAL jsonb_each_text(placed.slots) AS slot
            )
            SELECT id, epoch FROM placed
        """),
        {"rows": recordset(kernels), "term": term},
    )
    epochs: dict[uuid.UUID, int] = {kernel_id: epoch for kernel_id, epoch in placed}  # noqa: C416  # rows are no pairs to the type checker
    await tx.execute(
        text("""
            WITH wanted AS (
                SELECT * FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(session_id uuid, vni int, subnet cidr, mtu int, agents jsonb)
            ), made AS (
                INSERT INTO network (session_id, vni, subnet, mtu) SELECT session_id, vni, subnet, mtu FROM wanted RETURNING id, session_id
            )
            INSERT INTO network_site (network_id, agent_id, session_id)
            SELECT made.id, agent.value, made.session_id
            FROM made JOIN wanted USING (session_id) CROSS JOIN LATERAL jsonb_array_elements_text(wanted.agents) AS agent
        """),
        {"rows": recordset(networks)},
    )
    await tx.execute(
        text("""
            UPDATE session SET state = 'SCHEDULED', state_time = now(), schedule_time = now(), evaluate_time = now(), reason = '', message = '',
                explanation = '{}', network = r.network, promise = '{}', tries = tries + 1, version = version + 1
            FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(id uuid, network text) WHERE session.id = r.id
        """),
        {"rows": recordset(sessions)},
    )
    return epochs
