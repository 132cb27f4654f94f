"""Stores what the leader learns of agents over their streams, and reads their addresses."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, DateTime, and_, bindparam, case, distinct, func, not_, or_, select, update

from retinue.manager.domain.scheduling.records import AgentState, LossHold, MassLossRule
from retinue.manager.store.postgres.constructs import EMPTY_LIST, json_of, seconds, table_of
from retinue.manager.store.tables import Agent, ResourceGroup
from retinue.rpc.core.reasons import AgentConditionReason, AgentConditionType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlmodel.ext.asyncio.session import AsyncSession

    from retinue.manager.domain.session.attempts import RuntimeStatus

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


_agent, _group = table_of(Agent), table_of(ResourceGroup)
_HEARD = [AgentState.ALIVE, AgentState.SUSPECT]
_HELD = {"type": AgentConditionType.LOSS_HELD}
_TARGETS = (
    select(
        _agent.c.id,
        _agent.c.address,
        _agent.c.state,
        _agent.c.underlay_address,
        _agent.c.revoked,
        _agent.c.resource_group,
        _agent.c.drained,
        seconds(func.now() - _agent.c.heartbeat_time).label("silence"),
        case(
            (_agent.c.found_conditions.contains([{**_HELD, "reason": AgentConditionReason.CONFIRMED}]), 2),
            (_agent.c.found_conditions.contains([_HELD]), 1),
            else_=0,
        ).label("hold"),
        _group.c.mass_loss_percent,
        _group.c.mass_loss_agents,
        _group.c.mass_loss_window_seconds,
    )
    .join_from(_agent, _group, _group.c.name == _agent.c.resource_group)
    .where(or_(_agent.c.state != "LOST", and_(_agent.c.address != "", ~_agent.c.revoked)))
    .order_by(_agent.c.id)
)
_KEEPING_HEARD = (
    update(_agent)
    .where(_agent.c.state == AgentState.ALIVE)
    .values(heartbeat_time=func.greatest(_agent.c.heartbeat_time, bindparam("until", type_=DateTime(timezone=True))))
)


async def read_targets(tx: AsyncSession) -> dict[str, AgentTarget]:
    """Returns the agents to keep a link to, and those whose silence counts until they are lost, by their ids."""
    rows = await tx.execute(_TARGETS)
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


def _with(names: ColumnElement[Any], more: Sequence[str]) -> ColumnElement[Any]:
    """Names that a column has, and more, each once."""
    every = (
        func.jsonb_array_elements_text(names.op("||")(json_of(more))).table_valued("value").render_derived(name="every")
    )
    return select(func.coalesce(func.jsonb_agg(distinct(every.c.value)), EMPTY_LIST)).scalar_subquery()


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
    before = (
        select(_agent.c.id, _agent.c.capacity, _agent.c.state)
        .where(_agent.c.id == agent_id)
        .with_for_update()
        .cte("before")
    )
    reported = json_of(dict(capacity))
    facts = (
        update(_agent)
        .where(_agent.c.id == before.c.id, not_(_agent.c.revoked), _agent.c.instance.in_(["", instance]))
        .values(
            state=AgentState.ALIVE,
            instance=instance,
            boot_id=boot_id,
            software_version=version,
            architecture=architecture,
            capacity=reported,
            backends=json_of(list(backends)),
            runtimes=json_of(list(runtimes)),
            past_slots=_with(_agent.c.past_slots, list(capacity)),
            past_backends=_with(_agent.c.past_backends, list(backends)),
            underlay_address=underlay_address,
            underlay_mtu=underlay_mtu,
            reachable_networks=json_of(list(reachable_networks)),
            proves_paths=proves_paths,
            heartbeat_time=func.now(),
        )
    )
    counts = or_(before.c.capacity != _agent.c.capacity, before.c.state.not_in(_HEARD))
    rows = await tx.execute(facts.returning(_agent.c.resource_group, counts))
    row = rows.one_or_none()
    if row is None:
        raise NodeRefusedError(f"agent {agent_id} was revoked, or what answers for it is a copy of it")
    return str(row[0]) if row[1] else None


async def record_state(tx: AsyncSession, agent_id: str, state: AgentState, silence: float | None) -> str | None:
    """An agent is ALIVE, SUSPECT or LOST from now on, and was heard `silence` seconds ago if that is known.

    Returns its group when that changes what counts in it.
    """
    before = select(_agent.c.id, _agent.c.state).where(_agent.c.id == agent_id).with_for_update().cte("before")
    heard = _agent.c.heartbeat_time if silence is None else func.now() - dt.timedelta(seconds=silence)
    counts = before.c.state.in_(_HEARD) != _agent.c.state.in_(_HEARD)
    rows = await tx.execute(
        update(_agent)
        .where(_agent.c.id == before.c.id)
        .values(state=state, heartbeat_time=heard)
        .returning(_agent.c.resource_group, counts)
    )
    row = rows.one_or_none()
    return str(row[0]) if row is not None and row[1] else None


async def keep_heard(tx: AsyncSession, until: dt.datetime) -> None:
    """Records when the agents were heard that are alive, as the term before had it at its end.

    A heartbeat writes nothing. An agent that is alive was heard while there was a leader; only what became of it after
    that has a time of its own.
    """
    await tx.execute(_KEEPING_HEARD, {"until": until})
