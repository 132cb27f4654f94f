"""Agents as administrators and nodes deal with them: join tokens, enrolment, announcements, drains, listing."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter
from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Text,
    Update,
    and_,
    bindparam,
    case,
    cast,
    column,
    func,
    literal,
    literal_column,
    not_,
    or_,
    true,
    update,
)
from sqlalchemy import select as _select
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlmodel import col, select

from retinue.manager.domain.errors import AgentIdInUse, AgentRevoked, JoinTokenInvalid
from retinue.manager.domain.scheduling.records import AgentState
from retinue.manager.domain.session.attempts import AgentCondition, RuntimeStatus
from retinue.manager.identity.recovery import Registration
from retinue.manager.store.placement import shares
from retinue.manager.store.postgres.constructs import EMPTY_LIST, EMPTY_OBJECT, one_of, seconds, table_of, value_of
from retinue.manager.store.postgres.database import Query
from retinue.manager.store.postgres.documents import Decoder, Unreadable
from retinue.manager.store.tables import Agent, Attempt, Claim, JoinToken, LeadershipLease
from retinue.rpc.core.reasons import AgentConditionType

if TYPE_CHECKING:
    from sqlalchemy.sql.dml import ReturningUpdate
    from sqlmodel.ext.asyncio.session import AsyncSession

RUNTIME = Decoder("the status of a runtime", TypeAdapter(RuntimeStatus).validate_python)
_CONDITION = Decoder("a condition of an agent", TypeAdapter(AgentCondition).validate_python)
_agent, _attempt, _claim, _join_token = table_of(Agent), table_of(Attempt), table_of(Claim), table_of(JoinToken)
# What a filter may compare.
_FILTER_COLUMNS: Mapping[str, ColumnElement[str]] = {
    "id": _agent.c.id,
    "resource_group": _agent.c.resource_group,
    "state": _agent.c.state,
    "drained": cast(_agent.c.drained, Text),
    "architecture": _agent.c.architecture,
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


# An agent that is alive is so as long as there is a leader that hears it: its heartbeats are written nowhere.
_LEADER_TIME = _select(table_of(LeadershipLease).c.renew_time).scalar_subquery()


async def get(tx: AsyncSession, agent_id: str, *, lock: bool = False) -> AgentRecord | None:
    """An agent that is not revoked; with `lock`, held until the commit."""
    query = select(Agent, _LEADER_TIME).where(col(Agent.id) == agent_id, ~col(Agent.revoked))
    query = query.execution_options(populate_existing=True)
    found = (await tx.exec(query.with_for_update() if lock else query)).one_or_none()
    return None if found is None else _record(*found)


async def list_page(
    tx: AsyncSession, *, terms: Sequence[tuple[str, str, str]], after: str, limit: int
) -> list[AgentRecord]:
    """Agents in the order of their ids. `terms` are (field of FILTER_FIELDS, `=` or `!=`, value)."""
    query = select(Agent, _LEADER_TIME).where(col(Agent.id) > after, ~col(Agent.revoked))
    for field, operator, value in terms:
        column = _FILTER_COLUMNS[field]
        query = query.where({"=": column == value, "!=": column != value}[operator])
    found = await tx.exec(query.order_by(col(Agent.id)).limit(limit))
    return [_record(agent, leader_time) for agent, leader_time in found]


def decode_conditions(stored: object) -> tuple[AgentCondition | Unreadable, ...]:
    """Returns conditions of an agent, in their order. Never raises."""
    return tuple(map(_CONDITION.decode, stored if isinstance(stored, list) else [stored]))


def _record(agent: Agent, leader_time: dt.datetime) -> AgentRecord:
    heard = agent.heartbeat_time
    if heard is not None and agent.state == AgentState.ALIVE:
        heard = max(heard, leader_time)
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
        heartbeat_time=heard,
    )


def _listed(of: ColumnElement[Any]) -> ColumnElement[Any]:
    return case((func.jsonb_typeof(of) == "array", of), else_=EMPTY_LIST)


async def slot_names(tx: AsyncSession) -> set[str]:
    """Returns the names of slots that any agent has ever had. Takes longer than `unknown_slots_query`."""
    # Another version may have stored something else.
    capacity = case((func.jsonb_typeof(_agent.c.capacity) == "object", _agent.c.capacity), else_=EMPTY_OBJECT)
    now = _select(func.jsonb_object_keys(capacity))
    past = _select(func.jsonb_array_elements_text(_listed(_agent.c.past_slots)))
    rows = await tx.execute(now.union(past))
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


# As parts of the text: what is grouped by is the same expression as what is selected.
_STATUS = ("'name'", "'message'", "'available'")


async def runtime_troubles(tx: AsyncSession, group: str, runtimes: Sequence[str], limit: int) -> list[str]:
    """Returns what agents of a group say of those of the runtimes that they do not have, the most frequent first."""
    listed = func.jsonb_array_elements(_listed(_agent.c.runtimes))
    each = listed.table_valued(column("status", JSONB())).render_derived(name="each")
    name, message, available = (value_of(each.c.status, literal_column(key)) for key in _STATUS)
    query = (
        _select(message.label("message"))
        .join_from(_agent, each, true())
        .where(
            _agent.c.resource_group == group,
            not_(_agent.c.revoked),
            name == one_of("names"),
            message != "",
            available == "false",
        )
        .group_by(message)
        .order_by(func.count().desc(), message)
        .limit(limit)
    )
    rows = await tx.execute(query, {"names": list(runtimes)})
    return list(rows.scalars())


async def groups_with(tx: AsyncSession, runtimes: Sequence[str], limit: int) -> list[str]:
    """Returns the first groups, by name, with an agent that has one of the runtimes now."""
    has_any = func.jsonb_exists_any(_agent.c.backends, bindparam("runtimes", list(runtimes), ARRAY(Text)))
    groups = _select(_agent.c.resource_group).where(~_agent.c.revoked, has_any).distinct()
    return list((await tx.execute(groups.order_by(_agent.c.resource_group).limit(limit))).scalars())


async def read_loads(tx: AsyncSession, agent_ids: Collection[str]) -> dict[str, Load]:
    """Returns what is held of each agent now."""
    held: dict[str, dict[str, int]] = {agent_id: {} for agent_id in agent_ids}
    by = (_claim.c.agent_id, _claim.c.slot)
    sums = _select(*by, cast(func.sum(_claim.c.amount), BigInteger)).where(_claim.c.release_time.is_(None))
    for agent_id, slot, amount in await tx.execute(sums.where(_claim.c.agent_id.in_(agent_ids)).group_by(*by)):
        held[agent_id][slot] = amount
    live = _select(_attempt.c.agent_id, func.count()).where(_attempt.c.end_time.is_(None))
    of_agents = live.where(_attempt.c.agent_id.in_(agent_ids)).group_by(_attempt.c.agent_id)
    kernels = {agent_id: number for agent_id, number in await tx.execute(of_agents)}  # noqa: C416  # rows are no pairs to the type checker
    return {agent_id: Load(slots, kernels.get(agent_id, 0)) for agent_id, slots in held.items()}


async def set_drained(tx: AsyncSession, agent_id: str, *, drained: bool, deadline: dt.timedelta | None = None) -> None:
    """Takes an agent out of scheduling or puts it back; its version changes when it does, and with its deadline.

    What still runs there after `deadline` is evicted; None is never.
    """
    setting = _changing(
        agent_id,
        drained=drained,
        drain_deadline_time=None if deadline is None else func.now() + deadline,
        version=_agent.c.version + 1,
    )
    if deadline is None:
        setting = setting.where(or_(_agent.c.drained != drained, _agent.c.drain_deadline_time.is_not(None)))
    await tx.execute(setting)


def _changing(agent_id: str, **values: object) -> Update:
    return update(_agent).where(_agent.c.id == agent_id).values(**values)


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
    made = insert(_join_token).values(
        hash=secret_hash,
        kind=kind,
        resource_group=group,
        agent_id=agent_id,
        uses_left=uses,
        expire_time=func.now() + ttl,
    )
    expire_time: dt.datetime = (await tx.execute(made.returning(_join_token.c.expire_time))).scalar_one()
    return expire_time


async def is_join_token(tx: AsyncSession, secret_hash: bytes) -> bool:
    """Returns whether a join token is good now."""
    query = select(JoinToken.hash).where(col(JoinToken.hash) == secret_hash, col(JoinToken.uses_left) > 0)
    return (await tx.exec(query.where(col(JoinToken.expire_time) > func.now()))).one_or_none() is not None


async def enrol(tx: AsyncSession, secret_hash: bytes, agent_id: str) -> int:
    """Uses a join token up by one and records the agent in the token's group; returns the generation of this enrolment.

    Raises JoinTokenInvalid and AgentIdInUse; then nothing may be committed. A token that names the agent also lets a
    node back in under its old id, when it is lost, never opened a stream, or was revoked and has nothing left that it
    could run: what it ran when it was revoked is given up first, as another node may be what comes in under the id. One
    that was not revoked stays drained if it was. Certificates of former generations are worth nothing from then on.
    """
    token = (await tx.execute(using_join_token(secret_hash, "AGENT", agent_id))).one_or_none()
    if token is None:
        raise JoinTokenInvalid
    made = insert(Agent).values(
        id=agent_id, resource_group=token.resource_group, generation=cast(seconds(func.now()), BigInteger)
    )
    runs = _select(_attempt.c.kernel_id).where(_attempt.c.agent_id == _agent.c.id, _attempt.c.end_time.is_(None))
    returned = made.on_conflict_do_update(
        index_elements=["id"],
        set_={
            "generation": func.greatest(_agent.c.generation + 1, made.excluded.generation),
            "resource_group": made.excluded.resource_group,
            "state": "JOINING",
            "drained": and_(_agent.c.drained, ~_agent.c.revoked),
            "drain_deadline_time": case((~_agent.c.revoked, _agent.c.drain_deadline_time)),
            "revoked": False,
            "address": "",
            "instance": "",
            "version": _agent.c.version + 1,
            "announce_time": None,
        },
        where=and_(
            literal(token.agent_id is not None),
            or_(_agent.c.state.in_(["JOINING", "LOST"]), and_(_agent.c.revoked, ~runs.exists())),
        ),
    ).returning(_agent.c.generation)
    generation: int | None = (await tx.execute(returned)).scalar_one_or_none()
    if generation is None:
        raise AgentIdInUse(
            f"an agent {agent_id} is enrolled, or was revoked and what it ran is not given up yet: try again in a minute"
            if token.agent_id is not None
            else f"an agent {agent_id} is enrolled"
        )
    return generation


def using_join_token(secret_hash: bytes, kind: str, node_id: str) -> ReturningUpdate[*tuple[Any, ...]]:
    """Uses a join token of a kind up by one, if it is good for a node; returns its group and the node that it names."""
    return (
        update(_join_token)
        .where(
            _join_token.c.hash == secret_hash,
            _join_token.c.kind == kind,
            _join_token.c.uses_left > 0,
            _join_token.c.expire_time > func.now(),
            or_(_join_token.c.agent_id.is_(None), _join_token.c.agent_id == node_id),
        )
        .values(uses_left=_join_token.c.uses_left - 1)
        .returning(_join_token.c.resource_group, _join_token.c.agent_id)
    )


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
    await tx.execute(_changing(agent_id, certificate=certificate, former_certificate=shown))
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
        _changing(
            agent_id,
            address=address,
            instance=instance,
            software_version=version,
            announce_time=func.now(),
            former_certificate=case((_agent.c.certificate == certificate, ""), else_=_agent.c.former_certificate),
        )
    )
    return changed


async def revoke(tx: AsyncSession, agent_id: str) -> bool:
    """Makes an agent's certificate worthless and takes it out of scheduling; returns whether there was one."""
    revoking = _changing(agent_id, revoked=True, version=_agent.c.version + 1).where(~_agent.c.revoked)
    group = (await tx.execute(revoking.returning(_agent.c.resource_group))).scalar_one_or_none()
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
    held = _agent.c.found_conditions.contains([{"type": AgentConditionType.LOSS_HELD}])
    query = _select(_agent.c.id).where(_agent.c.resource_group == group, ~_agent.c.revoked, held)
    return list((await tx.execute(query.order_by(_agent.c.id))).scalars())


async def groups_of(tx: AsyncSession, agent_ids: Collection[str]) -> dict[str, str]:
    """The resource groups of those of the agents that exist and are not revoked."""
    query = select(Agent.id, Agent.resource_group).where(col(Agent.id).in_(agent_ids), ~col(Agent.revoked))
    return {agent_id: group for agent_id, group in await tx.exec(query)}  # noqa: C416  # rows are no pairs to the type checker
