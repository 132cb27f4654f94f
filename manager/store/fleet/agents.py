"""Agents as administrators and nodes deal with them: join tokens, enrolment, announcements, drains, listing."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter
from sqlalchemy import text
from sqlmodel import col, select
from sqlmodel.ext.asyncio.session import AsyncSession

from retinue.manager.domain.errors import AgentIdInUse, AgentRevoked, JoinTokenInvalid
from retinue.manager.domain.session.attempts import AgentCondition, RuntimeStatus
from retinue.manager.identity.recovery import Registration
from retinue.manager.store.placement import shares
from retinue.manager.store.postgres.database import Query
from retinue.manager.store.postgres.documents import Decoder, Unreadable
from retinue.manager.store.tables import Agent, JoinToken

RUNTIME = Decoder("the status of a runtime", TypeAdapter(RuntimeStatus).validate_python)
_CONDITION = Decoder("a condition of an agent", TypeAdapter(AgentCondition).validate_python)
# What a filter may compare, as SQL.
_FILTER_COLUMNS: Mapping[str, str] = {
    "id": "id",
    "resource_group": "resource_group",
    "state": "state",
    "drained": "drained::text",
    "architecture": "architecture",
}
FILTER_FIELDS = frozenset(_FILTER_COLUMNS)


@dataclass(frozen=True, slots=True)
class Load:
    """The amounts that live claims hold of an agent, by slot in smallest units, and how many kernels are live there."""

    occupied: Mapping[str, int]
    kernels: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRecord:
    """A node that is not revoked; its conditions are what managers have found, then what it reports.
    `version` counts changes of its settings.
    """

    id: str
    resource_group: str
    state: str
    drained: bool
    drain_deadline_time: dt.datetime | None
    address: str
    instance: str
    architecture: str
    capacity: Mapping[str, int]
    backends: Sequence[str]
    runtimes: tuple[RuntimeStatus, ...]
    software_version: str
    underlay_address: str
    generation: int
    certificate: str
    former_certificate: str
    conditions: tuple[AgentCondition | Unreadable, ...]
    version: int
    create_time: dt.datetime
    heartbeat_time: dt.datetime | None


async def get(tx: AsyncSession, agent_id: str, *, lock: bool = False) -> AgentRecord | None:
    """An agent that is not revoked; with `lock`, held until the commit."""
    query = select(Agent).where(col(Agent.id) == agent_id, ~col(Agent.revoked))
    query = query.execution_options(populate_existing=True)
    found = (await tx.exec(query.with_for_update() if lock else query)).one_or_none()
    return None if found is None else _record(found)


async def list_page(
    tx: AsyncSession, *, terms: Sequence[tuple[str, str, str]], after: str, limit: int
) -> list[AgentRecord]:
    """Agents in the order of their ids. `terms` are (field of FILTER_FIELDS, `=` or `!=`, value)."""
    query = select(Agent).where(col(Agent.id) > after, ~col(Agent.revoked))
    for number, (field, operator, value) in enumerate(terms):
        comparison = {"=": "=", "!=": "<>"}[operator]
        query = query.where(
            text(f"agent.{_FILTER_COLUMNS[field]} {comparison} :value{number}").bindparams(**{f"value{number}": value})
        )
    found = await tx.exec(query.order_by(col(Agent.id)).limit(limit))
    return [_record(agent) for agent in found]


def decode_conditions(stored: object) -> tuple[AgentCondition | Unreadable, ...]:
    """Returns conditions of an agent, in their order. Never raises."""
    return tuple(map(_CONDITION.decode, stored if isinstance(stored, list) else [stored]))


def _record(agent: Agent) -> AgentRecord:
    return AgentRecord(
        id=agent.id,
        resource_group=agent.resource_group,
        state=agent.state,
        drained=agent.drained,
        drain_deadline_time=agent.drain_deadline_time,
        address=agent.address,
        instance=agent.instance,
        architecture=agent.architecture,
        capacity=agent.capacity,
        backends=agent.backends,
        runtimes=RUNTIME.decode_each(agent.runtimes),
        software_version=agent.software_version,
        underlay_address=agent.underlay_address,
        generation=agent.generation,
        certificate=agent.certificate,
        former_certificate=agent.former_certificate,
        conditions=(*decode_conditions(agent.found_conditions), *decode_conditions(agent.reported_conditions)),
        version=agent.version,
        create_time=agent.create_time,
        heartbeat_time=agent.heartbeat_time,
    )


async def slot_names(tx: AsyncSession) -> set[str]:
    """Returns the names of slots that any agent has ever had. Takes longer than `unknown_slots_query`."""
    rows = await tx.execute(
        text("""
            SELECT jsonb_object_keys(CASE jsonb_typeof(capacity) WHEN 'object' THEN capacity ELSE '{}' END) FROM agent
            UNION SELECT jsonb_array_elements_text(CASE jsonb_typeof(past_slots) WHEN 'array' THEN past_slots ELSE '[]' END) FROM agent
        """)
    )
    return set(rows.scalars())


def unknown_slots_query(asked: Collection[tuple[str, str]]) -> Query[list[int]]:
    """Reads the positions of those of `asked`, groups and slots, where no agent of any group has ever had the slot and
    no quota limits it: none of groups without agents, nor of those with an agent that has not said yet what it has.
    """
    return Query(
        """
            SELECT position FROM unnest(CAST(:groups AS text[]), CAST(:slots AS text[]))
                WITH ORDINALITY AS asked(name, slot, position)
            WHERE NOT EXISTS (
                SELECT FROM agent WHERE jsonb_exists(capacity, asked.slot) OR jsonb_exists(past_slots, asked.slot))
            AND NOT EXISTS (SELECT FROM quota WHERE jsonb_exists(quota.slots, asked.slot))
            AND (SELECT bool_and(capacity <> '{}') FROM agent WHERE resource_group = asked.name AND NOT revoked)
        """,
        {"groups": [group for group, _ in asked], "slots": [slot for _, slot in asked]},
        read=lambda rows: [int(row["position"]) - 1 for row in rows],
    )


def missing_runtimes_query(asked: Collection[tuple[str, Sequence[str]]]) -> Query[list[int]]:
    """Reads the positions of those of `asked` for which no agent of the group has ever had one of the runtimes: none
    of groups without agents, nor of those with an agent that has not said yet what it has.
    """
    return Query(
        """
            SELECT position FROM unnest(CAST(:groups AS text[]), CAST(:names AS text[]))
                WITH ORDINALITY AS asked(name, runtimes, position)
            WHERE NOT EXISTS (
                SELECT FROM agent WHERE resource_group = asked.name AND NOT revoked AND (backends = '[]'
                    OR jsonb_exists_any(backends || past_backends, string_to_array(asked.runtimes, ','))))
            AND EXISTS (SELECT FROM agent WHERE resource_group = asked.name AND NOT revoked)
        """,
        {"groups": [group for group, _ in asked], "names": [",".join(runtimes) for _, runtimes in asked]},
        read=lambda rows: [int(row["position"]) - 1 for row in rows],
    )


async def runtime_troubles(tx: AsyncSession, group: str, runtimes: Sequence[str], limit: int) -> list[str]:
    """Returns what agents of a group say of those of the runtimes that they do not have, the most frequent first."""
    rows = await tx.execute(
        text("""
            SELECT status->>'message' AS message
            FROM agent, jsonb_array_elements(CASE jsonb_typeof(runtimes) WHEN 'array' THEN runtimes ELSE '[]' END) AS status
            WHERE resource_group = :group AND NOT revoked AND status->>'name' = ANY(:names)
                AND status->>'message' <> '' AND status->>'available' = 'false'
            GROUP BY message ORDER BY count(*) DESC, message LIMIT :limit
        """),
        {"group": group, "names": list(runtimes), "limit": limit},
    )
    return list(rows.scalars())


async def groups_with(tx: AsyncSession, runtimes: Sequence[str], limit: int) -> list[str]:
    """Returns the first groups, by name, with an agent that has one of the runtimes now."""
    rows = await tx.execute(
        text("""
            SELECT DISTINCT resource_group FROM agent WHERE NOT revoked AND jsonb_exists_any(backends, :runtimes)
            ORDER BY resource_group LIMIT :limit
        """),
        {"runtimes": list(runtimes), "limit": limit},
    )
    return list(rows.scalars())


async def read_loads(tx: AsyncSession, agent_ids: Collection[str]) -> dict[str, Load]:
    """Returns what is held of each agent now."""
    rows = await tx.execute(
        text("""
            SELECT wanted.id, held.occupied, live.kernels FROM unnest(CAST(:ids AS text[])) AS wanted(id)
            CROSS JOIN LATERAL (
                SELECT coalesce(jsonb_object_agg(slot, amount), '{}') AS occupied FROM (
                    SELECT slot, sum(amount)::bigint AS amount FROM claim
                    WHERE agent_id = wanted.id AND release_time IS NULL GROUP BY slot
                ) sums
            ) held
            CROSS JOIN LATERAL (
                SELECT count(*) AS kernels FROM attempt WHERE agent_id = wanted.id AND end_time IS NULL
            ) live
        """),
        {"ids": list(agent_ids)},
    )
    return {row.id: Load(row.occupied, row.kernels) for row in rows}


async def set_drained(tx: AsyncSession, agent_id: str, *, drained: bool, deadline: dt.timedelta | None = None) -> None:
    """Takes an agent out of scheduling or puts it back; its version changes when it does, and with its deadline.

    What still runs there after `deadline` is evicted; None is never.
    """
    await tx.execute(
        text("""
            UPDATE agent SET drained = :drained, drain_deadline_time = now() + CAST(:deadline AS interval), version = version + 1
            WHERE id = :id AND (drained <> :drained OR drain_deadline_time IS NOT NULL OR CAST(:deadline AS interval) IS NOT NULL)
        """),
        {"id": agent_id, "drained": drained, "deadline": deadline},
    )


async def create_join_token(
    tx: AsyncSession,
    secret_hash: bytes,
    *,
    group: str,
    agent_id: str | None,
    uses: int,
    ttl: dt.timedelta,
    kind: str = "AGENT",
) -> dt.datetime:
    """A join token of a kind for a group that exists; returns when it ends."""
    row = await tx.execute(
        text("""
            INSERT INTO join_token (hash, kind, resource_group, agent_id, uses_left, expire_time)
            VALUES (:hash, :kind, :group, :agent, :uses, now() + :ttl) RETURNING expire_time
        """),
        {"hash": secret_hash, "kind": kind, "group": group, "agent": agent_id, "uses": uses, "ttl": ttl},
    )
    expire_time: dt.datetime = row.scalar_one()
    return expire_time


async def is_join_token(tx: AsyncSession, secret_hash: bytes) -> bool:
    """Returns whether a join token is good now."""
    query = select(JoinToken.hash).where(col(JoinToken.hash) == secret_hash, col(JoinToken.uses_left) > 0)
    return (await tx.exec(query.where(text("expire_time > now()")))).one_or_none() is not None


async def enrol(tx: AsyncSession, secret_hash: bytes, agent_id: str) -> int:
    """Uses a join token up by one and records the agent in the token's group; returns the generation of this enrolment.

    Raises JoinTokenInvalid and AgentIdInUse; then nothing may be committed. A token that names the agent also lets a
    node back in under its old id, when it is lost, never opened a stream, or was revoked and has nothing left that it
    could run: what it ran when it was revoked is given up first, as another node may be what comes in under the id. One
    that was not revoked stays drained if it was. Certificates of former generations are worth nothing from then on.
    """
    used = await tx.execute(
        text("""
            UPDATE join_token SET uses_left = uses_left - 1
            WHERE hash = :hash AND kind = 'AGENT' AND uses_left > 0 AND expire_time > now() AND (agent_id IS NULL OR agent_id = :agent)
            RETURNING resource_group, agent_id
        """),
        {"hash": secret_hash, "agent": agent_id},
    )
    token = used.one_or_none()
    if token is None:
        raise JoinTokenInvalid
    made = await tx.execute(
        text("""
            INSERT INTO agent (id, resource_group, state, drained, revoked, address, instance, architecture,
                software_version, underlay_address, underlay_mtu, boot_id, version, generation)
            VALUES (:agent, :group, 'JOINING', FALSE, FALSE, '', '', '', '', '', 0, '', 1, extract(epoch FROM now())::bigint)
            ON CONFLICT (id) DO UPDATE SET generation = greatest(agent.generation + 1, excluded.generation),
                resource_group = excluded.resource_group, state = 'JOINING', drained = agent.drained AND NOT agent.revoked,
                drain_deadline_time = CASE WHEN NOT agent.revoked THEN agent.drain_deadline_time END,
                revoked = FALSE, address = '', instance = '', version = agent.version + 1, announce_time = NULL
            WHERE :named AND (agent.state IN ('JOINING', 'LOST') OR (agent.revoked AND NOT EXISTS (
                SELECT FROM attempt WHERE attempt.agent_id = agent.id AND attempt.end_time IS NULL))) RETURNING generation
        """),
        {"agent": agent_id, "group": token.resource_group, "named": token.agent_id is not None},
    )
    generation: int | None = made.scalar_one_or_none()
    if generation is None:
        raise AgentIdInUse(
            f"an agent {agent_id} is enrolled, or was revoked and what it ran is not given up yet: try again in a minute"
            if token.agent_id is not None
            else f"an agent {agent_id} is enrolled"
        )
    return generation


async def read_registration(tx: AsyncSession, agent_id: str, *, lock: bool = False) -> Registration | None:
    """Returns what is known of an agent's certificates; None without an agent, or of one that was revoked."""
    agent = await get(tx, agent_id, lock=lock)
    if agent is None:
        return None
    return Registration(agent.generation, agent.certificate, agent.former_certificate)


async def renew(tx: AsyncSession, agent_id: str, generation: int, certificate: str, *, shown: str = "") -> str:
    """Records the fingerprints of an agent's newest certificate and of the one that was `shown` for it; returns that of
    the newest before. Raises AgentRevoked.
    """
    agent = await get(tx, agent_id, lock=True)
    if agent is None or generation < agent.generation:
        raise AgentRevoked
    before = agent.certificate
    await tx.execute(
        text("UPDATE agent SET certificate = :certificate, former_certificate = :shown WHERE id = :id"),
        {"id": agent_id, "certificate": certificate, "shown": shown},
    )
    return before


async def announce(
    tx: AsyncSession, agent_id: str, *, address: str, instance: str, version: str, certificate: str
) -> bool:
    """Records where an agent listens, and that it has its newest certificate if it shows that; returns whether the
    address changed.

    Raises AgentRevoked, and AgentIdInUse for another instance than the one that came first after the agent enrolled,
    whatever became of that: a copy of an agent has none of its kernels, and would have them taken for ended.
    """
    agent = await get(tx, agent_id, lock=True)
    if agent is None:
        raise AgentRevoked
    changed = agent.address != address
    if agent.instance not in ("", instance):
        raise AgentIdInUse(
            f"agent {agent_id} is enrolled with another state directory: a copy is refused; use that one, or enrol again with a"
            " join token for this agent"
        )
    await tx.execute(
        text("""
            UPDATE agent SET address = :address, instance = :instance, software_version = :version, announce_time = now(),
                former_certificate = CASE WHEN certificate = :certificate THEN '' ELSE former_certificate END
            WHERE id = :id
        """),
        {"id": agent_id, "address": address, "instance": instance, "version": version, "certificate": certificate},
    )
    return changed


async def revoke(tx: AsyncSession, agent_id: str) -> bool:
    """Makes an agent's certificate worthless and takes it out of scheduling; returns whether there was one."""
    gone = await tx.execute(
        text("""
            UPDATE agent SET revoked = TRUE, version = version + 1 WHERE id = :id AND NOT revoked RETURNING resource_group
        """),
        {"id": agent_id},
    )
    group = gone.scalar_one_or_none()
    if group is not None:
        await shares.refresh_group(tx, group)
    return group is not None


async def is_enrolled(tx: AsyncSession, agent_id: str, generation: int) -> bool:
    """Returns whether an agent's certificate of that generation is valid.

    A higher one than is stored was issued too, by a manager of which the database was restored to an earlier state.
    """
    agent = await get(tx, agent_id)
    return agent is not None and generation >= agent.generation


async def held_in(tx: AsyncSession, group: str) -> list[str]:
    """Returns the agents of a group whose loss is held, by id."""
    rows = await tx.execute(
        text("""
            SELECT id FROM agent WHERE resource_group = :group AND NOT revoked
                AND found_conditions @> '[{"type": "LOSS_HELD"}]' ORDER BY id
        """),
        {"group": group},
    )
    return list(rows.scalars())


async def groups_of(tx: AsyncSession, agent_ids: Collection[str]) -> dict[str, str]:
    """The resource groups of those of the agents that exist and are not revoked."""
    query = select(Agent.id, Agent.resource_group).where(col(Agent.id).in_(agent_ids), ~col(Agent.revoked))
    return {agent_id: group for agent_id, group in await tx.exec(query)}  # noqa: C416  # rows are no pairs to the type checker
