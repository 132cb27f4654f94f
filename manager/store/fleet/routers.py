"""Routers: enrolment, announcements, and where the leader dials them."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, Column, Select, Update, case, cast, func, select, update
from sqlalchemy.dialects.postgresql import insert

from retinue.manager.domain.errors import AgentIdInUse, AgentRevoked, JoinTokenInvalid
from retinue.manager.identity.recovery import Registration
from retinue.manager.store.fleet.agents import using_join_token
from retinue.manager.store.postgres.constructs import seconds, table_of
from retinue.manager.store.tables import Router

if TYPE_CHECKING:
    from collections.abc import Collection

    from sqlmodel.ext.asyncio.session import AsyncSession

LIVE_SECONDS = 15
"""A router that was not heard for longer is lost."""
_router = table_of(Router)


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
    token = (await tx.execute(using_join_token(secret_hash, "ROUTER", router_id))).one_or_none()
    if token is None:
        raise JoinTokenInvalid
    made = insert(_router).values(id=router_id, generation=cast(seconds(func.now()), BigInteger))
    returned = made.on_conflict_do_update(
        index_elements=["id"],
        set_={
            "generation": func.greatest(_router.c.generation + 1, made.excluded.generation),
            "revoked": False,
            "address": "",
            "instance": "",
            "announce_time": None,
        },
        where=None if token.agent_id is not None else _router.c.revoked,
    ).returning(_router.c.generation)
    generation = (await tx.execute(returned)).scalar_one_or_none()
    if generation is None:
        raise AgentIdInUse(f"a router {router_id} is enrolled")
    return int(generation)


async def read_registration(tx: AsyncSession, router_id: str, *, lock: bool = False) -> Registration | None:
    """Returns what is known of a router's certificates; None without a router, or of one that was revoked."""
    query = _enrolled(router_id, _router.c.generation, _router.c.certificate, _router.c.former_certificate)
    row = (await tx.execute(query.with_for_update() if lock else query)).one_or_none()
    return None if row is None else Registration(*row)


def _enrolled(router_id: str, *columns: Column[Any]) -> Select[*tuple[Any, ...]]:
    """Reads columns of a router, unless it was revoked."""
    return select(*columns).where(_router.c.id == router_id, ~_router.c.revoked)


def _changing(router_id: str, **values: object) -> Update:
    return update(_router).where(_router.c.id == router_id).values(**values)


async def renew(tx: AsyncSession, router_id: str, generation: int, certificate: str, *, shown: str = "") -> str:
    """Records the fingerprints of a router's newest certificate and of the one that was `shown` for it; returns that of
    the newest before. Raises AgentRevoked.
    """
    query = _enrolled(router_id, _router.c.certificate).where(_router.c.generation <= generation)
    before: str | None = (await tx.execute(query.with_for_update())).scalar_one_or_none()
    if before is None:
        raise AgentRevoked
    await tx.execute(_changing(router_id, certificate=certificate, former_certificate=shown))
    return before


async def announce(
    tx: AsyncSession, router_id: str, *, address: str, instance: str, version: str, certificate: str
) -> bool:
    """Records where a router listens, and that it has its newest certificate if it shows that; returns whether the
    address changed.

    Raises AgentRevoked, and AgentIdInUse for another instance than the one that came first after it enrolled.
    """
    rows = await tx.execute(_enrolled(router_id, _router.c.address, _router.c.instance).with_for_update())
    found = rows.one_or_none()
    if found is None:
        raise AgentRevoked
    if found.instance not in {"", instance}:
        raise AgentIdInUse(f"router {router_id} is enrolled with another data directory: a copy is refused")
    await tx.execute(
        _changing(
            router_id,
            address=address,
            instance=instance,
            software_version=version,
            announce_time=func.now(),
            former_certificate=case((_router.c.certificate == certificate, ""), else_=_router.c.former_certificate),
        )
    )
    return bool(found.address != address)


async def is_enrolled(tx: AsyncSession, router_id: str, generation: int) -> bool:
    """Returns whether a router's certificate of that generation is valid; a higher one is of a state that was lost."""
    rows = await tx.execute(_enrolled(router_id, _router.c.id).where(_router.c.generation <= generation))
    return rows.scalar_one_or_none() is not None


async def read_targets(tx: AsyncSession) -> list[RouterTarget]:
    """Returns the routers to keep a link to."""
    query = select(_router.c.id, _router.c.address).where(_router.c.address != "", ~_router.c.revoked)
    return [RouterTarget(*row) for row in await tx.execute(query.order_by(_router.c.id))]


async def record_url(tx: AsyncSession, router_id: str, url: str) -> None:
    """Records where clients reach a router, and that it was heard now."""
    await tx.execute(_changing(router_id, url=url, heartbeat_time=func.now()))


_URLS = select(_router.c.url).where(_router.c.url != "", ~_router.c.revoked)


async def read_url(tx: AsyncSession) -> str:
    """Returns the base address for clients of the router that was heard last; empty without any."""
    rows = await tx.execute(_URLS.order_by(_router.c.heartbeat_time.desc().nulls_last()).limit(1))
    return str(rows.scalar_one_or_none() or "")


async def read_urls(tx: AsyncSession) -> list[str]:
    """Returns the base addresses for clients of all routers, as they say."""
    return list((await tx.execute(_URLS)).scalars())


_STATE = case(
    (_router.c.revoked, "REVOKED"),
    (_router.c.heartbeat_time.is_(None), "JOINING"),
    (_router.c.heartbeat_time > func.now() - dt.timedelta(seconds=LIVE_SECONDS), "ALIVE"),
    else_="LOST",
)
# In the order of the fields of RouterRecord.
_RECORDS = select(
    _router.c.id,
    _STATE.label("state"),
    _router.c.address,
    _router.c.url,
    _router.c.software_version,
    _router.c.create_time,
    _router.c.heartbeat_time,
)


async def list_page(tx: AsyncSession, after: str, limit: int) -> list[RouterRecord]:
    """Returns routers with an id after this one, by id."""
    rows = await tx.execute(_RECORDS.where(_router.c.id > after).order_by(_router.c.id).limit(limit))
    return [_record(*row) for row in rows]


async def revoke(tx: AsyncSession, router_id: str) -> RouterRecord | None:
    """Makes a router's certificate worthless; returns it, None when there is none. Idempotent."""
    await tx.execute(_changing(router_id, revoked=True))
    return await read(tx, router_id)


async def read(tx: AsyncSession, router_id: str) -> RouterRecord | None:
    """Returns a router, None when there is none."""
    row = (await tx.execute(_RECORDS.where(_router.c.id == router_id))).one_or_none()
    return None if row is None else _record(*row)


async def record_heard(tx: AsyncSession, router_ids: Collection[str]) -> None:
    """Records that these routers were heard now."""
    await tx.execute(update(_router).where(_router.c.id.in_(router_ids)).values(heartbeat_time=func.now()))


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
