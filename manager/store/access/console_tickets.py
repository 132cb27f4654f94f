"""Tickets by which browsers log in to the console, good once. Secrets are kept as hashes."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from sqlalchemy import delete, func, insert

from retinue.manager.store.postgres.constructs import table_of
from retinue.manager.store.tables import ConsoleTicket

if TYPE_CHECKING:
    import uuid

    from sqlmodel.ext.asyncio.session import AsyncSession

_ticket = table_of(ConsoleTicket)


async def create(tx: AsyncSession, secret_hash: bytes, token_id: uuid.UUID, seconds: int) -> dt.datetime:
    """Keeps a ticket that is worth as much as a token, for so many seconds; returns when it ends."""
    lasting = func.now() + dt.timedelta(seconds=seconds)
    made = insert(_ticket).values(hash=secret_hash, token_id=token_id, expire_time=lasting)
    found: dt.datetime = (await tx.execute(made.returning(_ticket.c.expire_time))).scalar_one()
    return found


async def use(tx: AsyncSession, secret_hash: bytes) -> uuid.UUID | None:
    """Uses a ticket up; returns the token that it was made with, None when the ticket is not good."""
    used = delete(_ticket).where(_ticket.c.hash == secret_hash, _ticket.c.expire_time > func.now())
    found: uuid.UUID | None = (await tx.execute(used.returning(_ticket.c.token_id))).scalar_one_or_none()
    return found


async def forget(tx: AsyncSession) -> None:
    """Removes what is good for nothing any more."""
    await tx.execute(delete(_ticket).where(_ticket.c.expire_time < func.now()))
