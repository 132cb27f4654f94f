"""Inserts and reads the revisions of endpoints; of one that is made, only its found images,
its failed starts and when it served change.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Update, cast, func, select, text, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel.ext.asyncio.session import AsyncSession

from retinue.manager.domain.endpoints.bounds import checked
from retinue.manager.domain.endpoints.spec import ReplicaSpec, RevisionSpec
from retinue.manager.domain.session.spec_codec import UnreadableSpec, decode, encode
from retinue.manager.store.postgres.constructs import table_of
from retinue.manager.store.postgres.documents import Decoder, Unreadable
from retinue.manager.store.postgres.recordset import Row, fetched, recordset
from retinue.manager.store.tables import EndpointRevision

_REPLICA = TypeAdapter(ReplicaSpec)
_MAX_NUMBER = 2**31 - 1
_revision = table_of(EndpointRevision)


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


async def read_current(
    tx: AsyncSession, endpoint_ids: Collection[uuid.UUID]
) -> dict[uuid.UUID, tuple[RevisionRecord, ...]]:
    """Returns the revisions that have a share or replicas, or take part in the newest rollout, and the newest one,
    by endpoint.
    """
    rows = await tx.execute(
        text("""
            SELECT r.endpoint_id, r.number, r.spec, r.found_images, r.failures, r.retry_time, r.serve_time, r.author, r.create_time,
                coalesce(t.percent, 0) AS percent
            FROM endpoint_revision r JOIN endpoint e ON e.id = r.endpoint_id
            LEFT JOIN endpoint_traffic t ON t.endpoint_id = r.endpoint_id AND t.revision = r.number
            LEFT JOIN rollout o ON o.endpoint_id = r.endpoint_id
            WHERE r.endpoint_id = ANY(:ids) AND (
                t.percent > 0 OR r.number IN (e.newest_revision, o.from_revision, o.to_revision)
                OR EXISTS (SELECT FROM endpoint_replica p
                    WHERE p.endpoint_id = r.endpoint_id AND p.revision = r.number AND p.state <> 'GONE'))
            ORDER BY r.number
        """),
        {"ids": list(endpoint_ids)},
    )
    found: dict[uuid.UUID, list[RevisionRecord]] = {}
    for row in fetched(rows):
        found.setdefault(row["endpoint_id"], []).append(_record(row))
    return {key: tuple(items) for key, items in found.items()}


async def read(tx: AsyncSession, endpoint_id: uuid.UUID, number: int) -> RevisionRecord | None:
    """Returns one revision; None when there is none."""
    found = await _list(tx, endpoint_id, "r.number = :number", {"number": number}, 1)
    return found[0] if found else None


async def list_page(tx: AsyncSession, endpoint_id: uuid.UUID, *, before: int, limit: int) -> list[RevisionRecord]:
    """Returns revisions, newest first, only those before a number unless that is 0."""
    return await _list(tx, endpoint_id, "(:before = 0 OR r.number < :before)", {"before": before}, limit)


async def find_served_before(tx: AsyncSession, endpoint_id: uuid.UUID, number: int) -> int | None:
    """Returns the newest revision before a number that once had all requests; None when there is none."""
    query = select(func.max(_revision.c.number)).where(
        _revision.c.endpoint_id == endpoint_id, _revision.c.number < number, _revision.c.serve_time.is_not(None)
    )
    served: int | None = (await tx.execute(query)).scalar_one()
    return served


async def _list(
    tx: AsyncSession, endpoint_id: uuid.UUID, condition: str, values: Mapping[str, Any], limit: int
) -> list[RevisionRecord]:
    rows = await tx.execute(
        text(f"""
            SELECT r.endpoint_id, r.number, r.spec, r.found_images, r.failures, r.retry_time, r.serve_time, r.author, r.create_time,
                coalesce(t.percent, 0) AS percent
            FROM endpoint_revision r LEFT JOIN endpoint_traffic t ON t.endpoint_id = r.endpoint_id AND t.revision = r.number
            WHERE r.endpoint_id = :endpoint AND {condition} ORDER BY r.number DESC LIMIT :limit
        """),  # noqa: S608  # the condition is ours, its values are parameters
        {"endpoint": endpoint_id, "limit": limit, **values},
    )
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
    made = await tx.execute(
        text("""
            WITH e AS (
                UPDATE endpoint SET newest_revision = newest_revision + 1, version = version + 1 WHERE id = :id RETURNING id, newest_revision
            )
            INSERT INTO endpoint_revision (endpoint_id, number, spec, failures, author)
            SELECT e.id, e.newest_revision, r.spec, 0, :author
            FROM e, jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(spec jsonb) RETURNING number
        """),
        {"id": endpoint_id, "author": author, "rows": recordset([{"spec": encode_revision(spec)}])},
    )
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
