"""Tickets by which browsers log in to the console, good once. Secrets are kept as hashes."""

from __future__ import annotations

import datetime as dt
import uuid

from sqlalchemy import text
from sqlmodel.ext.asyncio.session import AsyncSession


async def create(tx: AsyncSession, secret_hash: bytes, token_id: uuid.UUID, seconds: int) -> dt.datetime:
    """Keeps a ticket that is worth as much as a token, for so many seconds; returns when it ends."""
    made = await tx.execute(
        text("""
            INSERT INTO console_ticket (hash, token_id, expire_time)
            VALUES (:hash, :token_id, now() + make_interval(secs => :seconds)) RETURNING expire_time
        """),
        {"hash": secret_hash, "token_id": token_id, "seconds": seconds},
    )
    found: dt.datetime = made.scalar_one()
    return found


async def use(tx: AsyncSession, secret_hash: bytes) -> uuid.UUID | None:
    """Uses a ticket up; returns the token that it was made with, None when the ticket is not good."""
    used = await tx.execute(
        text("DELETE FROM console_ticket WHERE hash = :hash AND expire_time > now() RETURNING token_id"),
        {"hash": secret_hash},
    )
    found: uuid.UUID | None = used.scalar_one_or_none()
    return found


async def forget(tx: AsyncSession) -> None:
    """Removes what is good for nothing any more."""
    await tx.execute(text("DELETE FROM console_ticket WHERE expire_time < now()"))
