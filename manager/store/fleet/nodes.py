"""Stores what the leader learns of agents over their streams, and reads their addresses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import text
from sqlmodel.ext.asyncio.session import AsyncSession

from retinue.manager.domain.scheduling.records import AgentState, LossHold, MassLossRule
from retinue.manager.domain.session.attempts import RuntimeStatus
from retinue.manager.store.postgres.recordset import recordset
from retinue.rpc.core.reasons import AgentConditionReason, AgentConditionType

_HOLDS = (LossHold.NONE, LossHold.HELD, LossHold.CONFIRMED)


class NodeRefusedError(Exception):
    """The peer that answered is not the agent that is enrolled: its reports are ignored."""


@dataclass(frozen=True, slots=True)
class AgentTarget:
    """An agent to keep a link to, unless it has not said where it listens or was `revoked`,
    and the state that was recorded last.
    """

    address: str
    state: AgentState
    underlay_address: str = ""
    revoked: bool = False
    group: str = ""
    drained: bool = False
    # Seconds since it was heard, in whatever term; None when it never was.
    silence: float | None = None
    hold: LossHold = LossHold.NONE
    # When losses of its group are held; None: never.
    mass_loss: MassLossRule | None = None

    @property
    def dialled(self) -> bool:
        """Returns whether the agent is to have a link."""
        return bool(self.address) and not self.revoked


async def read_targets(tx: AsyncSession) -> dict[str, AgentTarget]:
    """Returns the agents to keep a link to, and those whose silence counts until they are lost, by their ids."""
    rows = await tx.execute(
        text("""
            SELECT a.id, a.address, a.state, a.underlay_address, a.revoked, a.resource_group, a.drained,
                extract(epoch FROM now() - a.heartbeat_time)::float8 AS silence,
                CASE WHEN a.found_conditions @> CAST(:confirmed AS jsonb) THEN 2
                    WHEN a.found_conditions @> CAST(:held AS jsonb) THEN 1 ELSE 0 END AS hold,
                g.mass_loss_percent, g.mass_loss_agents, g.mass_loss_window_seconds
            FROM agent a JOIN resource_group g ON g.name = a.resource_group
            WHERE a.state <> 'LOST' OR (a.address <> '' AND NOT a.revoked) ORDER BY a.id
        """),
        {
            "held": json.dumps([{"type": AgentConditionType.LOSS_HELD}]),
            "confirmed": json.dumps([{"type": AgentConditionType.LOSS_HELD, "reason": AgentConditionReason.CONFIRMED}]),
        },
    )
    return {
        row.id: AgentTarget(
            row.address,
            AgentState.of(row.state),
            row.underlay_address,
            row.revoked,
            row.resource_group,
            row.drained,
            row.silence,
            _HOLDS[row.hold],
            MassLossRule(row.mass_loss_percent, row.mass_loss_agents, row.mass_loss_window_seconds),
        )
        for row in rows
    }


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
    runtimes: Sequence[RuntimeStatus],
    underlay_address: str,
    underlay_mtu: int,
    reachable_networks: Sequence[str] = (),
    proves_paths: bool = False,
) -> str | None:
    """Stores what an agent reports of itself; it is alive from now on.
    Returns its group when what counts in it has changed.

    Raises NodeRefusedError for an agent that was revoked, and for another instance than the one that is enrolled.
    """
    rows = await tx.execute(
        text("""
            WITH before AS (SELECT id, capacity, state FROM agent WHERE id = :id FOR UPDATE)
            UPDATE agent SET state = 'ALIVE', instance = :instance, boot_id = :boot_id, software_version = :version,
                architecture = :architecture, capacity = CAST(:capacity AS jsonb), backends = CAST(:backends AS jsonb),
                runtimes = CAST(:runtimes AS jsonb),
                past_slots = (SELECT coalesce(jsonb_agg(DISTINCT name), '[]')
                    FROM jsonb_array_elements_text(agent.past_slots || CAST(:slots AS jsonb)) AS name),
                past_backends = (SELECT coalesce(jsonb_agg(DISTINCT name), '[]')
                    FROM jsonb_array_elements_text(agent.past_backends || CAST(:backends AS jsonb)) AS name),
                underlay_address = :underlay_address, underlay_mtu = :underlay_mtu,
                reachable_networks = CAST(:reachable_networks AS jsonb),
                proves_paths = :proves_paths, heartbeat_time = now()
            FROM before WHERE agent.id = before.id AND NOT agent.revoked AND agent.instance IN ('', :instance)
            RETURNING agent.resource_group, before.capacity <> agent.capacity OR before.state NOT IN ('ALIVE', 'SUSPECT') AS counts
        """),
        {
            "id": agent_id,
            "instance": instance,
            "boot_id": boot_id,
            "version": version,
            "architecture": architecture,
            "capacity": json.dumps(dict(capacity)),
            "slots": json.dumps(list(capacity)),
            "backends": json.dumps(list(backends)),
            "runtimes": recordset(runtimes),
            "underlay_address": underlay_address,
            "underlay_mtu": underlay_mtu,
            "reachable_networks": json.dumps(list(reachable_networks)),
            "proves_paths": proves_paths,
        },
    )
    row = rows.one_or_none()
    if row is None:
        raise NodeRefusedError(f"agent {agent_id} was revoked, or what answers for it is a copy of it")
    return str(row[0]) if row[1] else None


async def record_state(tx: AsyncSession, agent_id: str, state: AgentState, silence: float | None) -> str | None:
    """An agent is ALIVE, SUSPECT or LOST from now on, and was heard `silence` seconds ago if that is known.

    Returns its group when that changes what counts in it.
    """
    rows = await tx.execute(
        text("""
            WITH before AS (SELECT id, state FROM agent WHERE id = :id FOR UPDATE)
            UPDATE agent SET state = CAST(:state AS text),
                heartbeat_time = coalesce(now() - make_interval(secs => CAST(:silence AS float8)), heartbeat_time)
            FROM before WHERE agent.id = before.id
            RETURNING agent.resource_group, (before.state IN ('ALIVE', 'SUSPECT')) <> (agent.state IN ('ALIVE', 'SUSPECT')) AS counts
        """),
        {"id": agent_id, "state": state, "silence": silence},
    )
    row = rows.one_or_none()
    return str(row[0]) if row is not None and row[1] else None


async def record_heard(tx: AsyncSession, silences: Mapping[str, float]) -> None:
    """Keeps when agents were heard: so many seconds ago."""
    await tx.execute(
        text("""
            UPDATE agent SET heartbeat_time = now() - make_interval(secs => r.silence)
            FROM unnest(CAST(:ids AS text[]), CAST(:silences AS float8[])) AS r(id, silence) WHERE agent.id = r.id
        """),
        {"ids": list(silences), "silences": list(silences.values())},
    )
