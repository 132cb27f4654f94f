"""Access to ports over HTTP: tickets that are good once, and the cookies that browsers got for them.
Secrets are kept as hashes.
"""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import delete, func, insert, or_, select, text

from retinue.manager.domain.session.states import SessionState
from retinue.manager.store.placement.attempts import KernelLocationRecord, kernel_location
from retinue.manager.store.postgres.constructs import table_of, words
from retinue.manager.store.postgres.recordset import fetched
from retinue.manager.store.sessions.session_records import STATES
from retinue.manager.store.tables import PortAccess, PortTicket, Session

if TYPE_CHECKING:
    from collections.abc import Collection

    from sqlmodel.ext.asyncio.session import AsyncSession

_access, _session, _ticket = table_of(PortAccess), table_of(Session), table_of(PortTicket)


@dataclass(frozen=True, slots=True)
class RedeemedGrant:
    """The grant of a ticket: whose it was, the token that it was got with, and the path to begin at."""

    user: str
    token_id: uuid.UUID
    path: str


@dataclass(frozen=True, slots=True)
class PortAccessRecord:
    """A browser's right to a port of a session: where its main kernel is,
    and the kernel's address in the session's network.

    `host` is the one that the program sees, empty for the browser's;
    `session_state` is None when only another version of the manager knows it.
    """

    hash: bytes
    session_id: uuid.UUID
    port: int
    user: str
    session_state: SessionState | None
    location: KernelLocationRecord
    kernel_address: str
    host: str


async def create_ticket(
    tx: AsyncSession,
    secret_hash: bytes,
    *,
    session_id: uuid.UUID,
    port: int,
    user: str,
    token_id: uuid.UUID,
    path: str,
    seconds: int,
) -> dt.datetime:
    """Keeps a ticket for a user's port of a session, good for so many seconds; returns when it ends."""
    made = insert(_ticket).values(
        hash=secret_hash,
        session_id=session_id,
        port=port,
        user_name=user,
        token_id=token_id,
        path=path,
        expire_time=func.now() + dt.timedelta(seconds=seconds),
    )
    found: dt.datetime = (await tx.execute(made.returning(_ticket.c.expire_time))).scalar_one()
    return found


async def exchange(
    tx: AsyncSession, ticket_hash: bytes, access_hash: bytes, *, session_id: uuid.UUID, port: int, seconds: int
) -> RedeemedGrant | None:
    """Uses a ticket up for access of so many seconds; None, and nothing has changed,
    when it is not good for this port.
    """
    used = delete(_ticket).where(
        _ticket.c.hash == ticket_hash,
        _ticket.c.session_id == session_id,
        _ticket.c.port == port,
        _ticket.c.expire_time > func.now(),
    )
    row = (await tx.execute(used.returning(_ticket.c.user_name, _ticket.c.token_id, _ticket.c.path))).one_or_none()
    if row is None:
        return None
    await create_access(
        tx,
        access_hash,
        session_id=session_id,
        port=port,
        user=row.user_name,
        token_id=row.token_id,
        seconds=seconds,
    )
    return RedeemedGrant(row.user_name, row.token_id, row.path)


async def exists(tx: AsyncSession, secret_hash: bytes) -> bool:
    """Returns whether access was given by a secret, valid or not."""
    found = await tx.execute(select(_access.c.port).where(_access.c.hash == secret_hash))
    return found.one_or_none() is not None


async def create_access(
    tx: AsyncSession,
    access_hash: bytes,
    *,
    session_id: uuid.UUID,
    port: int,
    user: str,
    token_id: uuid.UUID,
    seconds: int,
) -> dt.datetime:
    """Keeps access without a ticket, good for so many seconds; returns when it ends."""
    made = insert(_access).values(
        hash=access_hash,
        session_id=session_id,
        port=port,
        user_name=user,
        token_id=token_id,
        expire_time=func.now() + dt.timedelta(seconds=seconds),
    )
    found: dt.datetime = (await tx.execute(made.returning(_access.c.expire_time))).scalar_one()
    return found


async def remove(tx: AsyncSession, access_hash: bytes) -> None:
    """Removes access, if it is there."""
    await tx.execute(delete(_access).where(_access.c.hash == access_hash))


async def read(tx: AsyncSession, hashes: Collection[bytes]) -> list[PortAccessRecord]:
    """Returns access that is valid now: it has not expired, nor has the token that it was got with, and the session
    still is its user's, or the user an administrator.
    """
    rows = await tx.execute(
        text("""
            SELECT p.hash, p.session_id, p.port, p.user_name, s.state AS session_state,
                k.state, k.exit_code, s.reason, k.id AS kernel_id, a.epoch, a.agent_id, g.address AS agent_address,
                k.address AS kernel_address,
                jsonb_path_query_first(
                    s.spec, '$.service_ports[*] ? (@.ports[*] == $port).host', jsonb_build_object('port', p.port)
                ) #>> '{}' AS host
            FROM port_access p
            JOIN token t ON t.id = p.token_id AND t.revoke_time IS NULL AND (t.expire_time IS NULL OR t.expire_time > now())
            JOIN user_account u ON u.name = p.user_name
            JOIN session s ON s.id = p.session_id AND (s.owner = u.name OR u.role = 'ADMIN')
            JOIN kernel k ON k.id = s.id
            LEFT JOIN attempt a ON a.kernel_id = k.id AND a.epoch = k.epoch LEFT JOIN agent g ON g.id = a.agent_id
            WHERE p.hash = ANY(:hashes) AND p.expire_time > now()
        """),
        {"hashes": list(hashes)},
    )
    return [
        PortAccessRecord(
            hash=bytes(row["hash"]),
            session_id=row["session_id"],
            port=row["port"],
            user=row["user_name"],
            session_state=STATES.get(row["session_state"]),
            location=kernel_location(row),
            kernel_address=row["kernel_address"],
            host=row["host"] or "",
        )
        for row in fetched(rows)
    ]


async def forget(tx: AsyncSession) -> None:
    """Removes what is good for nothing any more."""
    await tx.execute(delete(_ticket).where(_ticket.c.expire_time < func.now()))
    over = select(_session.c.id).where(
        _session.c.id == _access.c.session_id, _session.c.state.in_(words("TERMINATED", "CANCELLED"))
    )
    await tx.execute(delete(_access).where(or_(_access.c.expire_time < func.now(), over.exists())))
