"""Quotas, and what counts against them: summed from live claims and counted from sessions each time, never kept."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from sqlalchemy import BigInteger, ColumnElement, Executable, cast
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import col, delete, func, or_, select, tuple_

from retinue.manager.store.postgres.constructs import one_of, word
from retinue.manager.store.postgres.recordset import record_of
from retinue.manager.store.tables import Claim, Kernel, Quota, Session

if TYPE_CHECKING:
    from sqlalchemy.orm import Mapped
    from sqlmodel.ext.asyncio.session import AsyncSession

USER, PROJECT, RESOURCE_GROUP = "USER", "PROJECT", "RESOURCE_GROUP"
# Where no quota says how many a user may have.
DEFAULT_SYSTEM_SESSIONS = 2
# Kind and name.
Subject = tuple[str, str]

# Where a session and a claim say whom they count against: a claim's project is that of its session.
_OF_SESSION: dict[str, Mapped[str]] = {
    USER: col(Session.owner),
    PROJECT: col(Session.project),
    RESOURCE_GROUP: col(Session.resource_group),
}
_OF_CLAIM = {**_OF_SESSION, USER: col(Claim.owner), RESOURCE_GROUP: col(Claim.resource_group)}
_WAITS = col(Session.state) == word("PENDING")
_IS_PLACED = col(Session.state).not_in([word(state) for state in ("TERMINATED", "CANCELLED", "PENDING")])
_COUNTS = col(Session.type) != word("SYSTEM")


def _numbers(of: Mapped[str], condition: ColumnElement[bool]) -> Executable:
    return select(of, func.count()).where(condition, _COUNTS, of == one_of("names")).group_by(of)


def _held(of: Mapped[str]) -> Executable:
    return (
        select(of, col(Claim.slot), cast(func.sum(Claim.amount), BigInteger))
        .join(Kernel, col(Kernel.id) == col(Claim.kernel_id))
        .join(Session, col(Session.id) == col(Kernel.session_id))
        .where(col(Claim.release_time).is_(None), _COUNTS, of == one_of("names"))
        .group_by(of, col(Claim.slot))
    )


_PENDING = {kind: _numbers(of, _WAITS) for kind, of in _OF_SESSION.items()}
_PLACED = {kind: _numbers(of, _IS_PLACED) for kind, of in _OF_SESSION.items()}
_HELD = {kind: _held(of) for kind, of in _OF_CLAIM.items()}


@dataclass(slots=True)
class Use:
    """The use that counts against a quota: amounts by slot, sessions that are placed and not terminated,
    and sessions that wait.

    System sessions do not count: they have a number of their own, so that who is at a limit still gets at results.
    """

    slots: dict[str, int] = field(default_factory=dict)
    sessions: int = 0
    pending_sessions: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a quota; what is not given is not limited."""

    slots: Mapping[str, int] = field(default_factory=dict)
    max_sessions: int | None = None
    max_pending_sessions: int | None = None
    max_system_sessions: int | None = None
    highest_priority: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRecord(Limits):
    """The limits of one subject; `version` counts changes, and 0 is not stored."""

    kind: str
    name: str
    version: int


async def get(tx: AsyncSession, kind: str, name: str, *, lock: bool = False) -> QuotaRecord | None:
    """Returns a quota; with `lock`, held until the commit."""
    found = await tx.get(Quota, (kind, name), with_for_update=lock or None, populate_existing=True)
    return None if found is None else record_of(QuotaRecord, found)


async def put(tx: AsyncSession, kind: str, name: str, limits: Limits) -> QuotaRecord:
    """Sets all limits of a quota."""
    values = asdict(limits)
    made = insert(Quota).values(kind=kind, name=name, version=1, **values)
    await tx.exec(
        made.on_conflict_do_update(index_elements=["kind", "name"], set_={**values, "version": Quota.version + 1})
    )
    return record_of(QuotaRecord, await tx.get_one(Quota, (kind, name), populate_existing=True))


async def remove(tx: AsyncSession, kind: str, name: str) -> None:
    """Removes a quota, if it is there."""
    await tx.exec(delete(Quota).where(col(Quota.kind) == kind, col(Quota.name) == name))


async def list_page(
    tx: AsyncSession, *, kind: str, name: str, visible: tuple[str, Collection[str]] | None, after: Subject, limit: int
) -> list[QuotaRecord]:
    """Quotas by kind and name, of one kind and one name where those are not empty; `visible` keeps those of a user, of
    the projects named with it, and of groups.
    """
    query = select(Quota).where(tuple_(col(Quota.kind), col(Quota.name)) > after)
    if kind:
        query = query.where(Quota.kind == kind)
    if name:
        query = query.where(Quota.name == name)
    if visible is not None:
        user, projects = visible
        query = query.where(
            or_(
                col(Quota.kind) == RESOURCE_GROUP,
                tuple_(col(Quota.kind), col(Quota.name)).in_([(USER, user), *((PROJECT, each) for each in projects)]),
            )
        )
    found = await tx.exec(query.order_by(col(Quota.kind), col(Quota.name)).limit(limit))
    return [record_of(QuotaRecord, quota) for quota in found]


async def read(tx: AsyncSession, subjects: Collection[Subject]) -> list[QuotaRecord]:
    """Returns the quotas of subjects, by kind and name."""
    query = select(Quota).where(tuple_(col(Quota.kind), col(Quota.name)).in_(list(subjects)))
    found = await tx.exec(query.order_by(col(Quota.kind), col(Quota.name)))
    return [record_of(QuotaRecord, quota) for quota in found]


async def lock(tx: AsyncSession, subjects: Collection[Subject]) -> list[QuotaRecord]:
    """Reads as `read` and locks until the commit, in one order for all: every other caller that locks them waits."""
    query = select(Quota).where(tuple_(col(Quota.kind), col(Quota.name)).in_(list(subjects)))
    query = query.order_by(col(Quota.kind), col(Quota.name)).with_for_update()
    found = await tx.exec(query.execution_options(populate_existing=True))
    return [record_of(QuotaRecord, quota) for quota in found]


async def max_system_sessions(tx: AsyncSession, user: str) -> int:
    """Returns how many system sessions a user may have."""
    found = (
        await tx.exec(select(Quota.max_system_sessions).where(Quota.kind == USER, Quota.name == user))
    ).one_or_none()
    return DEFAULT_SYSTEM_SESSIONS if found is None else found


async def count_pending(tx: AsyncSession, subjects: Collection[Subject]) -> dict[Subject, int]:
    """Returns how many sessions of each subject wait, but for system sessions."""
    counts = dict.fromkeys(subjects, 0)
    for kind, names in _by_kind(subjects).items():
        rows = await tx.execute(_PENDING[kind], {"names": names})
        counts.update({(kind, name): number for name, number in rows})
    return counts


async def read_use(tx: AsyncSession, subjects: Collection[Subject]) -> dict[Subject, Use]:
    """Returns what placed sessions of each subject hold, and how many there are; `pending_sessions` stays 0."""
    use = {subject: Use() for subject in subjects}
    for kind, names in _by_kind(subjects).items():
        for name, slot, amount in await tx.execute(_HELD[kind], {"names": names}):
            use[kind, name].slots[slot] = amount
        for name, number in await tx.execute(_PLACED[kind], {"names": names}):
            use[kind, name].sessions = number
    return use


def _by_kind(subjects: Collection[Subject]) -> dict[str, list[str]]:
    kinds: dict[str, list[str]] = {}
    for kind, name in sorted(subjects):
        kinds.setdefault(kind, []).append(name)
    return kinds
