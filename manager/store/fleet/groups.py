"""Resource groups: their policies, and the shares of owners in them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, TypedDict

import sqlmodel
from pydantic import TypeAdapter
from sqlalchemy import BigInteger, Numeric, Select, cast, column, func, literal_column, or_, select, true
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlmodel import col, delete, update

from retinue.manager.domain.idle.policy import IdlePolicy
from retinue.manager.domain.scheduling.policy import Policy
from retinue.manager.domain.session.isolation_policy import IsolationPolicy
from retinue.manager.domain.session.mounts import MountRoot
from retinue.manager.store.placement import quotas, share_history, shares, usage
from retinue.manager.store.postgres.constructs import entries, seconds, table_of, word, words
from retinue.manager.store.postgres.documents import Decoder, Unreadable
from retinue.manager.store.postgres.recordset import record_of
from retinue.manager.store.sessions.idle import decode_policy, encode_policy
from retinue.manager.store.tables import Agent, Attempt, DrfShare, ResourceGroup, Session

if TYPE_CHECKING:
    from sqlmodel.ext.asyncio.session import AsyncSession

_ANY_ROOT = TypeAdapter(MountRoot)


def _mount_root(stored: object) -> MountRoot:
    root = _ANY_ROOT.validate_python(stored)
    if not (isinstance(stored, Mapping) and stored.keys() >= {"path", "writable", "projects"}):
        # Without `projects` it would be for all of them.
        raise LookupError("a part is missing")
    return root


_agent, _attempt, _group = table_of(Agent), table_of(Attempt), table_of(ResourceGroup)
_session, _share = table_of(Session), table_of(DrfShare)
_LIVE = _session.c.state.not_in(words("TERMINATED", "CANCELLED"))
MOUNT_ROOT = Decoder("a mount root of a resource group", _mount_root)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """A resource group. `version` counts changes, and 0 is not stored."""

    name: str
    session_strategy: str
    agent_strategy: str
    options: Mapping[str, str]
    owner_weights: Mapping[str, int]
    start_timeout_seconds: int
    max_grace_seconds: int
    egress: str
    mount_roots: Sequence[MountRoot]
    image_registries: Sequence[str]
    session_types: Sequence[str]
    isolations: Sequence[str]
    default_isolation: str
    default_pull_policy: str
    mass_loss_percent: int
    mass_loss_agents: int
    mass_loss_window_seconds: int
    idle_policy: IdlePolicy | Unreadable
    version: int = 0
    create_time: dt.datetime | None = None

    @property
    def scheduling(self) -> Policy:
        """Returns its scheduling policy."""
        return Policy(self.session_strategy, self.agent_strategy, self.options)

    @property
    def isolation(self) -> IsolationPolicy:
        """Returns which isolations kernels may have."""
        return IsolationPolicy(self.isolations, self.default_isolation)


@dataclass(frozen=True, slots=True)
class ShareRecord:
    """The share of an owner: a fraction of a slot, to be divided by the weight,
    and the amounts by slot that live claims hold.
    """

    owner: str
    weight: int
    dominant_slot: str
    numerator: int
    denominator: int
    held: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class FleetCounts:
    """Live sessions and agents by (resource group, state), amounts by (resource group, slot) in the slot's smallest
    unit, the seconds for which the oldest pending session of each resource group waits, and agents by (resource group,
    type of a condition that they have).
    """

    groups: Sequence[str]
    waiting: Mapping[str, float]
    sessions: Mapping[tuple[str, str], int]
    agents: Mapping[tuple[str, str], int]
    capacity: Mapping[tuple[str, str], int]
    claimed: Mapping[tuple[str, str], int]
    conditions: Mapping[tuple[str, str], int]


async def get(tx: AsyncSession, name: str, *, lock: bool = False) -> GroupRecord | None:
    """Returns a group by name; with `lock`, held until the commit."""
    found = await tx.get(ResourceGroup, name, with_for_update=lock or None, populate_existing=True)
    return None if found is None else _record(found)


async def list_page(tx: AsyncSession, *, after: str, limit: int) -> list[GroupRecord]:
    """Returns groups in the order of their names."""
    query = (
        sqlmodel.select(ResourceGroup)
        .where(col(ResourceGroup.name) > after)
        .order_by(col(ResourceGroup.name))
        .limit(limit)
    )
    return [_record(found) for found in await tx.exec(query)]


async def first_names(tx: AsyncSession, limit: int) -> list[str]:
    """Returns the names of the first groups."""
    query = sqlmodel.select(ResourceGroup.name).order_by(col(ResourceGroup.name)).limit(limit)
    return list(await tx.exec(query))


class GroupPolicy(TypedDict, total=False):
    """The policy of a group by column, or those parts of it that change."""

    session_strategy: str
    agent_strategy: str
    options: Mapping[str, str]
    owner_weights: Mapping[str, int]
    start_timeout_seconds: int
    max_grace_seconds: int
    egress: str
    mount_roots: Sequence[MountRoot]
    image_registries: Sequence[str]
    session_types: Sequence[str]
    isolations: Sequence[str]
    default_isolation: str
    default_pull_policy: str
    mass_loss_percent: int
    mass_loss_agents: int
    mass_loss_window_seconds: int
    idle_policy: IdlePolicy


def _record(group: ResourceGroup) -> GroupRecord:
    columns = {field.name: getattr(group, field.name) for field in fields(GroupRecord)}
    return GroupRecord(
        **{
            **columns,
            "mount_roots": MOUNT_ROOT.decode_each(group.mount_roots),
            "idle_policy": decode_policy(group.idle_policy),
        }
    )


def _columns(policy: GroupPolicy) -> dict[str, object]:
    """Returns the columns of a group as they are stored."""
    stored: dict[str, object] = dict(policy)
    if "mount_roots" in policy:
        stored["mount_roots"] = [asdict(root) | {"projects": list(root.projects)} for root in policy["mount_roots"]]
    if "idle_policy" in policy:
        stored["idle_policy"] = encode_policy(policy["idle_policy"])
    return stored


async def create(tx: AsyncSession, name: str, policy: GroupPolicy) -> GroupRecord | None:
    """Returns a new group; None when the name is taken. `policy` is whole."""
    made = insert(ResourceGroup).values(name=name, version=1, **_columns(policy)).on_conflict_do_nothing()
    if (await tx.exec(made.returning(col(ResourceGroup.name)))).first() is None:
        return None
    return _record(await tx.get_one(ResourceGroup, name))


async def change(tx: AsyncSession, name: str, policy: GroupPolicy) -> GroupRecord:
    """Sets parts of the policy of a group that exists; shares follow its weights in the same commit."""
    changed = update(ResourceGroup).where(col(ResourceGroup.name) == name)
    await tx.exec(changed.values(**_columns(policy), version=ResourceGroup.version + 1))
    if "owner_weights" in policy:
        await shares.refresh_group(tx, name)
    return _record(await tx.get_one(ResourceGroup, name, populate_existing=True))


async def read_mount_roots(tx: AsyncSession, names: Collection[str]) -> dict[str, list[MountRoot]]:
    """Returns what sessions in these groups may mount."""
    query = sqlmodel.select(ResourceGroup.name, ResourceGroup.mount_roots).where(col(ResourceGroup.name).in_(names))
    return {name: list(MOUNT_ROOT.decode_each(roots)) for name, roots in (await tx.exec(query)).all()}


async def read_image_registries(tx: AsyncSession, names: Collection[str]) -> dict[str, list[str]]:
    """Patterns of the registries that images may come from in these groups, as stored."""
    query = sqlmodel.select(ResourceGroup.name, ResourceGroup.image_registries).where(
        col(ResourceGroup.name).in_(names)
    )
    return {name: list(patterns) for name, patterns in (await tx.exec(query)).all()}


async def read_isolation_policies(tx: AsyncSession, names: Collection[str]) -> dict[str, IsolationPolicy]:
    """Returns which isolations kernels in these groups may have."""
    query = sqlmodel.select(ResourceGroup.name, ResourceGroup.isolations, ResourceGroup.default_isolation)
    found = await tx.exec(query.where(col(ResourceGroup.name).in_(names)))
    return {name: IsolationPolicy(isolations, default) for name, isolations, default in found.all()}


async def in_use(tx: AsyncSession, name: str) -> bool:
    """Returns whether a group has agents, revoked ones that may still run something included, or sessions that have
    not ended.
    """
    runs = select(_attempt.c.kernel_id).where(_attempt.c.agent_id == _agent.c.id, _attempt.c.end_time.is_(None))
    has_agents = select(_agent.c.id).where(_agent.c.resource_group == name, or_(~_agent.c.revoked, runs.exists()))
    has_sessions = select(_session.c.id).where(_session.c.resource_group == name, _LIVE)
    return bool((await tx.execute(select(or_(has_agents.exists(), has_sessions.exists())))).scalar_one())


async def remove(tx: AsyncSession, name: str) -> None:
    """Removes a group with its join tokens, its quota, its revoked agents, and what is known of its usage."""
    await usage.forget_group(tx, name)
    await share_history.forget_group(tx, name)
    await quotas.remove(tx, quotas.RESOURCE_GROUP, name)
    # An id that enrols again gets a generation by the clock, so the certificates of before stay worthless.
    await tx.exec(delete(Agent).where(col(Agent.resource_group) == name, col(Agent.revoked)))
    await tx.exec(delete(ResourceGroup).where(col(ResourceGroup.name) == name))


async def read_shares(tx: AsyncSession, name: str) -> list[ShareRecord]:
    """Owners with live claims, the largest share over weight first."""
    ratio = cast(DrfShare.numerator, Numeric) / func.greatest(DrfShare.denominator, 1) / DrfShare.weight
    query = sqlmodel.select(DrfShare).where(col(DrfShare.resource_group) == name)
    query = query.order_by(ratio.desc(), col(DrfShare.owner))
    return [record_of(ShareRecord, found) for found in await tx.exec(query)]


_BY_STATE = (_session.c.resource_group, _session.c.state)
_AGENTS_BY_STATE = (_agent.c.resource_group, _agent.c.state)
_slot = entries("slot", _group.c.capacity)
_held = entries("held", _share.c.held)
_condition = (
    func.jsonb_array_elements(_agent.c.reported_conditions.concat(_agent.c.found_conditions))
    .table_valued(column("value", JSONB))
    .render_derived(name="condition")
)
_TYPE = _condition.c.value.op("->>")(literal_column("'type'"))
# Rows of (resource group, key, amount), but for the second: (resource group, seconds).
_COUNTS: tuple[Select[*tuple[Any, ...]], ...] = (
    select(*_BY_STATE, func.count()).where(_LIVE).group_by(*_BY_STATE),
    select(_session.c.resource_group, seconds(func.now() - func.min(_session.c.create_time)))
    .where(_session.c.state == word("PENDING"))
    .group_by(_session.c.resource_group),
    select(*_AGENTS_BY_STATE, func.count()).where(~_agent.c.revoked).group_by(*_AGENTS_BY_STATE),
    select(_group.c.name, _slot.c.key, cast(_slot.c.value, BigInteger)).join_from(_group, _slot, true()),
    select(_share.c.resource_group, _held.c.key, cast(func.sum(cast(_held.c.value, BigInteger)), BigInteger))
    .join_from(_share, _held, true())
    .group_by(_share.c.resource_group, _held.c.key),
    select(_agent.c.resource_group, _TYPE, func.count(_agent.c.id.distinct()))
    .join_from(_agent, _condition, true())
    .where(~_agent.c.revoked, _TYPE.is_not(None))
    .group_by(_agent.c.resource_group, _TYPE),
)


async def count_live(tx: AsyncSession) -> FleetCounts:
    """Reads the counts; costs as much as there are live sessions, whatever has ended."""
    sessions, oldest, agents, capacity, claimed, conditions = [await tx.execute(each) for each in _COUNTS]
    names = await tx.execute(select(_group.c.name))
    sessions_by, agents_by, capacity_by, claimed_by, conditions_by = (
        {(group, key): int(count) for group, key, count in rows}
        for rows in (sessions, agents, capacity, claimed, conditions)
    )
    waiting = {group: max(0.0, seconds) for group, seconds in oldest}
    return FleetCounts(sorted(names.scalars()), waiting, sessions_by, agents_by, capacity_by, claimed_by, conditions_by)
