"""Routers: enrolment, announcements, and where the leader dials them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import text
from sqlmodel.ext.asyncio.session import AsyncSession

from retinue.manager.domain.errors import AgentIdInUse, AgentRevoked, JoinTokenInvalid
from retinue.manager.identity.recovery import Registration

LIVE_SECONDS = 15
"""A router that was not heard for longer is lost."""


class RouterState(StrEnum):
    """State of a router."""

    JOINING = "JOINING"
    ALIVE = "ALIVE"
    LOST = "LOST"
    REVOKED = "REVOKED"


@dataclass(frozen=True, slots=True)
class RouterRecord:
    """A router as administrators see it; `heartbeat_time` is None before it was heard."""

    id: str
    state: RouterState
    address: str
    url: str
    software_version: str
    create_time: dt.datetime
    heartbeat_time: dt.datetime | None


@dataclass(frozen=True, slots=True)
class RouterTarget:
    """A router, and where it is dialled."""

    id: str
    address: str


async def enrol(tx: AsyncSession, secret_hash: bytes, router_id: str) -> int:
    """Uses a join token up by one and records the router; returns the generation of this enrolment.

    Raises JoinTokenInvalid and AgentIdInUse; then nothing may be committed. A token that names the router lets it back
    in under its old id: certificates of former generations are worth nothing from then on.
    """
    used = await tx.execute(
        text("""
            UPDATE join_token SET uses_left = uses_left - 1
            WHERE hash = :hash AND kind = 'ROUTER' AND uses_left > 0 AND expire_time > now()
                AND (agent_id IS NULL OR agent_id = :id)
            RETURNING agent_id
        """),
        {"hash": secret_hash, "id": router_id},
    )
    token = used.one_or_none()
    if token is None:
        raise JoinTokenInvalid
    made = await tx.execute(
        text("""
            INSERT INTO router (id, generation) VALUES (:id, extract(epoch FROM now())::bigint)
            ON CONFLICT (id) DO UPDATE SET generation = greatest(router.generation + 1, excluded.generation),
                revoked = FALSE, address = '', instance = '', announce_time = NULL
            WHERE :named OR router.revoked RETURNING generation
        """),
        {"id": router_id, "named": token.agent_id is not None},
    )
    generation: int | None = made.scalar_one_or_none()
    if generation is None:
        raise AgentIdInUse(f"a router {router_id} is enrolled")
    return generation


async def read_registration(tx: AsyncSession, router_id: str, *, lock: bool = False) -> Registration | None:
    """Returns what is known of a router's certificates; None without a router, or of one that was revoked."""
    locking = "FOR UPDATE" if lock else ""
    columns = "generation, certificate, former_certificate"
    rows = await tx.execute(
        text(f"SELECT {columns} FROM router WHERE id = :id AND NOT revoked {locking}"),  # noqa: S608
        {"id": router_id},
    )
    row = rows.one_or_none()
    return None if row is None else Registration(*row)


async def renew(tx: AsyncSession, router_id: str, generation: int, certificate: str, *, shown: str = "") -> str:
    """Records the fingerprints of a router's newest certificate and of the one that was `shown` for it; returns that of
    the newest before. Raises AgentRevoked.
    """
    rows = await tx.execute(
        text("SELECT certificate FROM router WHERE id = :id AND NOT revoked AND generation <= :generation FOR UPDATE"),
        {"id": router_id, "generation": generation},
    )
    before: str | None = rows.scalar_one_or_none()
    if before is None:
        raise AgentRevoked
    await tx.execute(
        text("UPDATE router SET certificate = :certificate, former_certificate = :shown WHERE id = :id"),
        {"id": router_id, "certificate": certificate, "shown": shown},
    )
    return before


async def announce(
    tx: AsyncSession, router_id: str, *, address: str, instance: str, version: str, certificate: str
) -> bool:
    """Records where a router listens, and that it has its newest certificate if it shows that; returns whether the
    address changed.

    Raises AgentRevoked, and AgentIdInUse for another instance than the one that came first after it enrolled.
    """
    rows = await tx.execute(
        text("SELECT address, instance FROM router WHERE id = :id AND NOT revoked FOR UPDATE"), {"id": router_id}
    )
    found = rows.one_or_none()
    if found is None:
        raise AgentRevoked
    if found.instance not in {"", instance}:
        raise AgentIdInUse(f"router {router_id} is enrolled with another data directory: a copy is refused")
    await tx.execute(
        text("""
            UPDATE router SET address = :address, instance = :instance, software_version = :version, announce_time = now(),
                former_certificate = CASE WHEN certificate = :certificate THEN '' ELSE former_certificate END
            WHERE id = :id
        """),
        {"id": router_id, "address": address, "instance": instance, "version": version, "certificate": certificate},
    )
    return bool(found.address != address)


async def is_enrolled(tx: AsyncSession, router_id: str, generation: int) -> bool:
    """Returns whether a router's certificate of that generation is valid; a higher one is of a state that was lost."""
    rows = await tx.execute(
        text("SELECT 1 FROM router WHERE id = :id AND NOT revoked AND generation <= :generation"),
        {"id": router_id, "generation": generation},
    )
    return rows.scalar_one_or_none() is not None


async def read_targets(tx: AsyncSession) -> list[RouterTarget]:
    """Returns the routers to keep a link to."""
    rows = await tx.execute(text("SELECT id, address FROM router WHERE address <> '' AND NOT revoked ORDER BY id"))
    return [RouterTarget(*row) for row in rows]


async def record_url(tx: AsyncSession, router_id: str, url: str) -> None:
    """Records where clients reach a router, and that it was heard now."""
    await tx.execute(
        text("UPDATE router SET url = :url, heartbeat_time = now() WHERE id = :id"), {"id": router_id, "url": url}
    )


async def read_url(tx: AsyncSession) -> str:
    """Returns the base address for clients of the router that was heard last; empty without any."""
    rows = await tx.execute(
        text("SELECT url FROM router WHERE url <> '' AND NOT revoked ORDER BY heartbeat_time DESC NULLS LAST LIMIT 1")
    )
    return str(rows.scalar_one_or_none() or "")


async def read_urls(tx: AsyncSession) -> list[str]:
    """Returns the base addresses for clients of all routers, as they say."""
    rows = await tx.execute(text("SELECT url FROM router WHERE url <> '' AND NOT revoked"))
    return list(rows.scalars())


_RECORD = """
    SELECT id, CASE WHEN revoked THEN 'REVOKED' WHEN heartbeat_time IS NULL THEN 'JOINING'
        WHEN heartbeat_time > now() - make_interval(secs => :live) THEN 'ALIVE' ELSE 'LOST' END AS state,
        address, url, software_version, create_time, heartbeat_time
    FROM router
"""


async def list_page(tx: AsyncSession, after: str, limit: int) -> list[RouterRecord]:
    """Returns routers with an id after this one, by id."""
    rows = await tx.execute(
        text(f"{_RECORD} WHERE id > :after ORDER BY id LIMIT :limit"),
        {"after": after, "limit": limit, "live": LIVE_SECONDS},
    )
    return [_record(*row) for row in rows]


async def revoke(tx: AsyncSession, router_id: str) -> RouterRecord | None:
    """Makes a router's certificate worthless; returns it, None when there is none. Idempotent."""
    await tx.execute(text("UPDATE router SET revoked = TRUE WHERE id = :id"), {"id": router_id})
    rows = await tx.execute(text(f"{_RECORD} WHERE id = :id"), {"id": router_id, "live": LIVE_SECONDS})
    row = rows.one_or_none()
    return None if row is None else _record(*row)


async def record_heard(tx: AsyncSession, router_ids: Collection[str]) -> None:
    """Records that these routers were heard now."""
    await tx.execute(text("UPDATE router SET heartbeat_time = now() WHERE id = ANY(:ids)"), {"ids": list(router_ids)})


def _record(  # noqa: PLR0917  # one per column
    router_id: str,
    state: str,
    address: str,
    url: str,
    software_version: str,
    create_time: dt.datetime,
    heartbeat_time: dt.datetime | None,
) -> RouterRecord:
    return RouterRecord(router_id, RouterState(state), address, url, software_version, create_time, heartbeat_time)
