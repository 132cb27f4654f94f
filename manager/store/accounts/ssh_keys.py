"""Public keys of users for system sessions, and the sessions that they open."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import col, delete, func, select

from retinue.manager.store.postgres.constructs import locking, table_of, words
from retinue.manager.store.postgres.recordset import record_of
from retinue.manager.store.tables import Attempt, Session, SshKey

if TYPE_CHECKING:
    import uuid

    from sqlmodel.ext.asyncio.session import AsyncSession


@dataclass(frozen=True, slots=True)
class SshKeyRecord:
    """A public key of a user."""

    fingerprint: str
    user_name: str
    public_key: str
    description: str
    create_time: dt.datetime


async def add(tx: AsyncSession, user: str, fingerprint: str, public_key: str, description: str) -> SshKeyRecord | None:
    """Returns a new key of a user who exists; None when it is registered already, by any user."""
    values = {"fingerprint": fingerprint, "user_name": user, "public_key": public_key, "description": description}
    made = await tx.exec(insert(SshKey).values(**values).on_conflict_do_nothing().returning(col(SshKey.fingerprint)))
    return await get(tx, fingerprint) if made.first() is not None else None


async def get(tx: AsyncSession, fingerprint: str, *, lock: bool = False) -> SshKeyRecord | None:
    """Returns a key; with `lock`, held until the commit."""
    found = await tx.get(SshKey, fingerprint, with_for_update=lock or None)
    return None if found is None else record_of(SshKeyRecord, found)


async def count(tx: AsyncSession, user: str) -> int:
    """Returns how many keys a user has."""
    return (await tx.exec(select(func.count()).select_from(SshKey).where(col(SshKey.user_name) == user))).one()


async def list_page(tx: AsyncSession, user: str, *, after: str, limit: int) -> list[SshKeyRecord]:
    """Returns keys of a user by fingerprint, from the one behind `after` on."""
    query = select(SshKey).where(col(SshKey.user_name) == user, col(SshKey.fingerprint) > after)
    found = await tx.exec(query.order_by(col(SshKey.fingerprint)).limit(limit))
    return [record_of(SshKeyRecord, key) for key in found]


async def remove(tx: AsyncSession, fingerprint: str) -> None:
    """Removes a key, if it is there."""
    await tx.exec(delete(SshKey).where(col(SshKey.fingerprint) == fingerprint))


_session, _attempt = table_of(Session), table_of(Attempt)
_SYSTEM = sqlalchemy.select(_session.c.id).where(
    _session.c.type == "SYSTEM", _session.c.state.not_in(words("TERMINATED", "CANCELLED"))
)


async def opened_sessions(tx: AsyncSession, user: str) -> list[uuid.UUID]:
    """Returns the system sessions that the keys of a user open: those that have not ended."""
    return list((await tx.execute(_SYSTEM.where(_session.c.owner == user))).scalars())


async def system_sessions_on(tx: AsyncSession, agent_id: str) -> list[uuid.UUID]:
    """Returns the system sessions that have a live kernel on an agent."""
    on_agent = _SYSTEM.join(_attempt, _attempt.c.session_id == _session.c.id).where(
        _attempt.c.agent_id == agent_id, _attempt.c.end_time.is_(None)
    )
    return list((await tx.execute(on_agent.distinct())).scalars())


async def lock_system_sessions(tx: AsyncSession, user: str) -> int:
    """Returns how many system sessions of a user have not ended; who counts them too waits until the commit."""
    await tx.execute(locking(f"system sessions {user}"))
    return len(await opened_sessions(tx, user))
