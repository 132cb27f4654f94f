"""Inserts and reads the revisions of endpoints; of one that is made, only its found images,
its failed starts and when it served change.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter
from sqlalchemy import Select, Update, Uuid, and_, cast, func, insert, literal, or_, select, update
from sqlalchemy.dialects.postgresql import JSONB

from retinue.manager.domain.endpoints.bounds import checked
from retinue.manager.domain.endpoints.spec import ReplicaSpec, RevisionSpec
from retinue.manager.domain.session.spec_codec import UnreadableSpec, decode, encode
from retinue.manager.store.postgres.constructs import json_of, one_of, table_of, word
from retinue.manager.store.postgres.documents import Decoder, Unreadable
from retinue.manager.store.postgres.recordset import Row, fetched
from retinue.manager.store.tables import Endpoint, EndpointReplica, EndpointRevision, EndpointTraffic, Rollout

if TYPE_CHECKING:
    from sqlmodel.ext.asyncio.session import AsyncSession

_REPLICA = TypeAdapter(ReplicaSpec)
_MAX_NUMBER = 2**31 - 1
_endpoint, _replica, _revision = table_of(Endpoint), table_of(EndpointReplica), table_of(EndpointRevision)
_rollout, _traffic = table_of(Rollout), table_of(EndpointTraffic)


def _spec(stored: object) -> RevisionSpec:
    if not isinstance(stored, Mapping):
        raise TypeError("it is no mapping")
    session = decode(stored["session"])
    if isinstance(session, UnreadableSpec):
        raise ValueError(session.error)  # what is stored, whatever its type
    if not (-_MAX_NUMBER <= session.priority <= _MAX_NUMBER and 1 <= session.cluster_size <= _MAX_NUMBER):
        raise ValueError("its priority or the size of its cluster is out of bounds")
    return RevisionSpec(session, checked(_REPLICA.validate_python(stored["replica"])))


REVISION_SPEC = Decoder("a revision", _spec)
FOUND_IMAGES = Decoder(
    "what images of a revision were found to be", TypeAdapter(dict[str, tuple[str, str]]).validate_python
)


@dataclass(frozen=True, slots=True)
class RevisionRecord:
    """A revision with its share in percent. `found_images` are (digest, id) by reference."""

    endpoint_id: uuid.UUID
    number: int
    spec: RevisionSpec | Unreadable
    found_images: Mapping[str, tuple[str, str]]
    failures: int
    retry_time: dt.datetime | None
    serve_time: dt.datetime | None
    author: str
    create_time: dt.datetime
    percent: int


_HAS_TRAFFIC = and_(_traffic.c.endpoint_id == _revision.c.endpoint_id, _traffic.c.revision == _revision.c.number)
_PERCENT = func.coalesce(_traffic.c.percent, 0).label("percent")
_STORED = [_revision.c[field.name] for field in fields(RevisionRecord) if field.name != "percent"]
_REVISIONS = select(*_STORED, _PERCENT).outerjoin_from(_revision, _traffic, _HAS_TRAFFIC)
_HAS_REPLICAS = select(_replica.c.session_id).where(
    _replica.c.endpoint_id == _revision.c.endpoint_id,
    _replica.c.revision == _revision.c.number,
    _replica.c.state != word("GONE"),
)
_NAMED = [_endpoint.c.newest_revision, _rollout.c.from_revision, _rollout.c.to_revision]
_CURRENT = (
    select(*_STORED, _PERCENT)
    .join_from(_revision, _endpoint, _endpoint.c.id == _revision.c.endpoint_id)
    .outerjoin(_traffic, _HAS_TRAFFIC)
    .outerjoin(_rollout, _rollout.c.endpoint_id == _revision.c.endpoint_id)
    .where(
        _revision.c.endpoint_id == one_of("ids", Uuid()),
        or_(_traffic.c.percent > 0, _revision.c.number.in_(_NAMED), _HAS_REPLICAS.exists()),
    )
    .order_by(_revision.c.number)
)


async def read_current(
    tx: AsyncSession, endpoint_ids: Collection[uuid.UUID]
) -> dict[uuid.UUID, tuple[RevisionRecord, ...]]:
    """Returns the revisions that have a share or replicas, or take part in the newest rollout, and the newest one,
    by endpoint.
    """
    rows = await tx.execute(_CURRENT, {"ids": list(endpoint_ids)})
    found: dict[uuid.UUID, list[RevisionRecord]] = {}
    for row in fetched(rows):
        found.setdefault(row["endpoint_id"], []).append(_record(row))
    return {key: tuple(items) for key, items in found.items()}


async def read(tx: AsyncSession, endpoint_id: uuid.UUID, number: int) -> RevisionRecord | None:
    """Returns one revision; None when there is none."""
    found = await _list(tx, _REVISIONS.where(_revision.c.number == number), endpoint_id, 1)
    return found[0] if found else None


async def list_page(tx: AsyncSession, endpoint_id: uuid.UUID, *, before: int, limit: int) -> list[RevisionRecord]:
    """Returns revisions, newest first, only those before a number unless that is 0."""
    query = _REVISIONS.where(_revision.c.number < before) if before else _REVISIONS
    return await _list(tx, query, endpoint_id, limit)


async def find_served_before(tx: AsyncSession, endpoint_id: uuid.UUID, number: int) -> int | None:
    """Returns the newest revision before a number that once had all requests; None when there is none."""
    query = select(func.max(_revision.c.number)).where(
        _revision.c.endpoint_id == endpoint_id, _revision.c.number < number, _revision.c.serve_time.is_not(None)
    )
    served: int | None = (await tx.execute(query)).scalar_one()
    return served


async def _list(
    tx: AsyncSession, query: Select[*tuple[Any, ...]], endpoint_id: uuid.UUID, limit: int
) -> list[RevisionRecord]:
    of = query.where(_revision.c.endpoint_id == endpoint_id)
    rows = await tx.execute(of.order_by(_revision.c.number.desc()).limit(limit))
    return [_record(row) for row in fetched(rows)]


def _record(row: Row) -> RevisionRecord:
    # Images that cannot be read are looked up again.
    images = FOUND_IMAGES.decode_present(row["found_images"]) or {}
    return RevisionRecord(**{**row, "spec": REVISION_SPEC.decode(row["spec"]), "found_images": images})


def encode_revision(spec: RevisionSpec) -> dict[str, object]:
    """Returns a revision for its column."""
    return {"session": encode(spec.session), "replica": spec.replica}


async def add(tx: AsyncSession, endpoint_id: uuid.UUID, *, spec: RevisionSpec, author: str) -> int:
    """Inserts the next revision of an endpoint that the transaction has locked; returns its number."""
    e = (
        update(_endpoint)
        .where(_endpoint.c.id == endpoint_id)
        .values(newest_revision=_endpoint.c.newest_revision + 1, version=_endpoint.c.version + 1)
        .returning(_endpoint.c.id, _endpoint.c.newest_revision)
        .cte("e")
    )
    stored = json_of(encode_revision(spec))
    new = insert(_revision).from_select(
        ["endpoint_id", "number", "spec", "failures", "author"],
        select(e.c.id, e.c.newest_revision, stored, literal(0), literal(author)),
        include_defaults=False,
    )
    made = await tx.execute(new.returning(_revision.c.number))
    return int(made.scalar_one())


async def record_found_images(
    tx: AsyncSession, endpoint_id: uuid.UUID, number: int, found: Mapping[str, Sequence[str]]
) -> None:
    """Keeps what images were found to be; what is known of a reference already stays."""
    known = cast({reference: list(image) for reference, image in found.items()}, JSONB)
    await tx.execute(_changing(endpoint_id, number, found_images=known.concat(_revision.c.found_images)))


async def record_starts(
    tx: AsyncSession, endpoint_id: uuid.UUID, number: int, *, failures: int, retry_seconds: float | None
) -> None:
    """Keeps how many starts of a revision failed in a row, and when the next may be tried."""
    retry = None if retry_seconds is None else func.now() + dt.timedelta(seconds=retry_seconds)
    await tx.execute(_changing(endpoint_id, number, failures=failures, retry_time=retry))


async def record_served(tx: AsyncSession, endpoint_id: uuid.UUID, number: int) -> None:
    """Keeps that a revision has all requests, and since when."""
    served = func.coalesce(_revision.c.serve_time, func.now())
    await tx.execute(_changing(endpoint_id, number, serve_time=served))


def _changing(endpoint_id: uuid.UUID, number: int, **values: object) -> Update:
    return (
        update(_revision).where(_revision.c.endpoint_id == endpoint_id, _revision.c.number == number).values(**values)
    )
