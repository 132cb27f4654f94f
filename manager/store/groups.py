"""Resource groups: their policies, and the shares of owners in them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import text
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import col, delete, select, update
from sqlmodel.ext.asyncio.session import AsyncSession

from retinue.manager.store import quotas, shares, usage
from retinue.manager.store.tables import Agent, DrfShare, ResourceGroup


async def get(tx: AsyncSession, name: str, *, lock: bool = False) -> ResourceGroup | None:
    """Returns a group by name; with `lock`, held until the commit."""
    return await tx.get(ResourceGroup, name, with_for_update=lock or None)


async def list_page(tx: AsyncSession, *, after: str, limit: int) -> Sequence[ResourceGroup]:
    """Returns groups in the order of their names."""
    query = select(ResourceGroup).where(col(ResourceGroup.name) > after).order_by(col(ResourceGroup.name)).limit(limit)
    return (await tx.exec(query)).all()


async def create(tx: AsyncSession, name: str, policy: Mapping[str, Any]) -> ResourceGroup | None:
    """Returns a new group; None when the name is taken.

    `policy` holds session_strategy, agent_strategy, options, owner_weights, start_timeout_seconds, egress, mount_roots, image_registries
    and idle_policy.
    """
    made = insert(ResourceGroup).values(name=name, version=1, **policy).on_conflict_do_nothing()
    if (await tx.exec(made.returning(col(ResourceGroup.name)))).first() is None:
        return None
    return await tx.get_one(ResourceGroup, name)


async def change(tx: AsyncSession, name: str, policy: Mapping[str, Any]) -> ResourceGroup:
    """Sets parts of the policy of a group that exists; shares follow its weights in the same commit."""
    changed = update(ResourceGroup).where(col(ResourceGroup.name) == name)
    await tx.exec(changed.values(**policy, version=ResourceGroup.version + 1))
    if "owner_weights" in policy:
        await shares.refresh_group(tx, name)
    return await tx.get_one(ResourceGroup, name, populate_existing=True)


async def read_mount_roots(tx: AsyncSession, names: Collection[str]) -> dict[str, list[dict[str, Any]]]:
    """Returns what sessions in these groups may mount, as stored."""
    query = select(ResourceGroup.name, ResourceGroup.mount_roots).where(col(ResourceGroup.name).in_(names))
    return {name: list(roots) for name, roots in (await tx.exec(query)).all()}


async def read_image_registries(tx: AsyncSession, names: Collection[str]) -> dict[str, list[str]]:
    """Patterns of the registries that images may come from in these groups, as stored."""
    query = select(ResourceGroup.name, ResourceGroup.image_registries).where(col(ResourceGroup.name).in_(names))
    return {name: list(patterns) for name, patterns in (await tx.exec(query)).all()}


async def in_use(tx: AsyncSession, name: str) -> bool:
    """Returns whether a group has agents or sessions that have not ended."""
    if (await tx.exec(select(Agent.id).where(Agent.resource_group == name).limit(1))).first() is not None:
        return True
    found = await tx.execute(
        text("""
            SELECT EXISTS (
                SELECT FROM session WHERE resource_group = :name AND state NOT IN ('TERMINATED', 'CANCELLED')
            )
        """),
        {"name": name},
    )
    return bool(found.scalar_one())


async def remove(tx: AsyncSession, name: str) -> None:
    """Removes a group with its join tokens, its quota and what is known of its usage."""
    await usage.forget_group(tx, name)
    await quotas.remove(tx, quotas.RESOURCE_GROUP, name)
    await tx.exec(delete(ResourceGroup).where(col(ResourceGroup.name) == name))


async def read_shares(tx: AsyncSession, name: str) -> Sequence[DrfShare]:
    """Owners with live claims, the largest share over weight first."""
    ratio = "numerator::numeric / greatest(denominator, 1) / weight DESC"
    query = select(DrfShare).where(col(DrfShare.resource_group) == name).order_by(text(ratio), col(DrfShare.owner))
    return (await tx.exec(query)).all()
