"""Resource groups: their policies, and the shares of owners in them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TypedDict

from pydantic import TypeAdapter
from sqlalchemy import text
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import col, delete, select, update
from sqlmodel.ext.asyncio.session import AsyncSession

from retinue.manager.domain.idle.policy import IdlePolicy
from retinue.manager.domain.scheduling.policy import Policy
from retinue.manager.domain.session.isolation_policy import IsolationPolicy
from retinue.manager.domain.session.mounts import MountRoot
from retinue.manager.store.placement import quotas, shares, usage
from retinue.manager.store.postgres.documents import Decoder, Unreadable
from retinue.manager.store.postgres.recordset import record_of
from retinue.manager.store.sessions.idle import decode_policy, encode_policy
from retinue.manager.store.tables import Agent, DrfShare, ResourceGroup

_ANY_ROOT = TypeAdapter(MountRoot)


def _mount_root(stored: object) -> MountRoot:
    root = _ANY_ROOT.validate_python(stored)
    if not (isinstance(stored, Mapping) and stored.keys() >= {"path", "writable", "projects"}):
        # Without `projects` it would be for all of them.
        raise LookupError("a part is missing")
    return root


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
    query = select(ResourceGroup).where(col(ResourceGroup.name) > after).order_by(col(ResourceGroup.name)).limit(limit)
    return [_record(found) for found in await tx.exec(query)]


async def first_names(tx: AsyncSession, limit: int) -> list[str]:
    """Returns the names of the first groups."""
    query = select(ResourceGroup.name).order_by(col(ResourceGroup.name)).limit(limit)
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
    query = select(ResourceGroup.name, ResourceGroup.mount_roots).where(col(ResourceGroup.name).in_(names))
    return {name: list(MOUNT_ROOT.decode_each(roots)) for name, roots in (await tx.exec(query)).all()}


async def read_image_registries(tx: AsyncSession, names: Collection[str]) -> dict[str, list[str]]:
    """Patterns of the registries that images may come from in these groups, as stored."""
    query = select(ResourceGroup.name, ResourceGroup.image_registries).where(col(ResourceGroup.name).in_(names))
    return {name: list(patterns) for name, patterns in (await tx.exec(query)).all()}


async def read_isolation_policies(tx: AsyncSession, names: Collection[str]) -> dict[str, IsolationPolicy]:
    """Returns which isolations kernels in these groups may have."""
    query = select(ResourceGroup.name, ResourceGroup.isolations, ResourceGroup.default_isolation)
    found = await tx.exec(query.where(col(ResourceGroup.name).in_(names)))
    return {name: IsolationPolicy(isolations, default) for name, isolations, default in found.all()}


async def in_use(tx: AsyncSession, name: str) -> bool:
    """Returns whether a group has agents, revoked ones that may still run something included, or sessions that have
    not ended.
    """
    found = await tx.execute(
        text("""
            SELECT EXISTS (
                SELECT FROM agent a WHERE a.resource_group = :name AND (NOT a.revoked OR EXISTS (
                    SELECT FROM attempt WHERE attempt.agent_id = a.id AND attempt.end_time IS NULL))
            ) OR EXISTS (
                SELECT FROM session WHERE resource_group = :name AND state NOT IN ('TERMINATED', 'CANCELLED')
            )
        """),
        {"name": name},
    )
    return bool(found.scalar_one())


async def remove(tx: AsyncSession, name: str) -> None:
    """Removes a group with its join tokens, its quota, its revoked agents, and what is known of its usage."""
    await usage.forget_group(tx, name)
    await quotas.remove(tx, quotas.RESOURCE_GROUP, name)
    # An id that enrols again gets a generation by the clock, so the certificates of before stay worthless.
    await tx.exec(delete(Agent).where(col(Agent.resource_group) == name, col(Agent.revoked)))
    await tx.exec(delete(ResourceGroup).where(col(ResourceGroup.name) == name))


async def read_shares(tx: AsyncSession, name: str) -> list[ShareRecord]:
    """Owners with live claims, the largest share over weight first."""
    ratio = "numerator::numeric / greatest(denominator, 1) / weight DESC"
    query = select(DrfShare).where(col(DrfShare.resource_group) == name).order_by(text(ratio), col(DrfShare.owner))
    return [record_of(ShareRecord, found) for found in await tx.exec(query)]


async def count_live(tx: AsyncSession) -> FleetCounts:
    """Reads the counts; costs as much as there are live sessions, whatever has ended."""
    sessions = await tx.execute(
        text("""
            SELECT resource_group, state, count(*) FROM session
            WHERE state NOT IN ('TERMINATED', 'CANCELLED') GROUP BY resource_group, state
        """)
    )
    oldest = await tx.execute(
        text("""
            SELECT resource_group, extract(epoch FROM now() - min(create_time))::float8 FROM session
            WHERE state = 'PENDING' GROUP BY resource_group
        """)
    )
    agents = await tx.execute(
        text("SELECT resource_group, state, count(*) FROM agent WHERE NOT revoked GROUP BY resource_group, state")
    )
    capacity = await tx.execute(
        text("""
            SELECT name, slot.key, slot.value::bigint
            FROM resource_group CROSS JOIN LATERAL jsonb_each_text(capacity) AS slot
        """)
    )
    claimed = await tx.execute(
        text("""
            SELECT resource_group, slot.key, sum(slot.value::bigint)::bigint
            FROM drf_share CROSS JOIN LATERAL jsonb_each_text(held) AS slot GROUP BY resource_group, slot.key
        """)
    )
    conditions = await tx.execute(
        text("""
            SELECT resource_group, condition->>'type', count(DISTINCT id)
            FROM agent CROSS JOIN LATERAL jsonb_array_elements(reported_conditions || found_conditions) AS condition
            WHERE NOT revoked AND condition->>'type' IS NOT NULL GROUP BY resource_group, condition->>'type'
        """)
    )
    names = await tx.execute(select(ResourceGroup.name))
    sessions_by, agents_by, capacity_by, claimed_by, conditions_by = (
        {(group, key): int(count) for group, key, count in rows}
        for rows in (sessions, agents, capacity, claimed, conditions)
    )
    waiting = {group: max(0.0, seconds) for group, seconds in oldest}
    return FleetCounts(sorted(names.scalars()), waiting, sessions_by, agents_by, capacity_by, claimed_by, conditions_by)
