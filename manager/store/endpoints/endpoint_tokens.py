"""Tokens of endpoints: who made which, and which were revoked. A token itself is nowhere."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import text
from sqlmodel.ext.asyncio.session import AsyncSession


@dataclass(frozen=True, slots=True)
class EndpointTokenRecord:
    """A token; `id` is its `jti`."""

    id: uuid.UUID
    endpoint_id: uuid.UUID
    label: str
    creator: str
    create_time: dt.datetime
    expire_time: dt.datetime
    revoke_time: dt.datetime | None


_COLUMNS = "id, endpoint_id, label, creator, create_time, expire_time, revoke_time"


async def create(
    tx: AsyncSession, endpoint_id: uuid.UUID, *, label: str, creator: str, ttl: dt.timedelta
) -> EndpointTokenRecord:
    """Records a new token."""
    rows = await tx.execute(
        text(f"""
            INSERT INTO endpoint_token (id, endpoint_id, label, creator, expire_time)
            VALUES (gen_random_uuid(), :endpoint, :label, :creator, now() + :ttl) RETURNING {_COLUMNS}
        """),  # noqa: S608  # constants
        {"endpoint": endpoint_id, "label": label, "creator": creator, "ttl": ttl},
    )
    return EndpointTokenRecord(*rows.one())


async def list_of(tx: AsyncSession, endpoint_id: uuid.UUID) -> list[EndpointTokenRecord]:
    """Returns the tokens of an endpoint that have not ended, oldest first."""
    rows = await tx.execute(
        text(f"""
            SELECT {_COLUMNS} FROM endpoint_token WHERE endpoint_id = :endpoint AND expire_time > now()
            ORDER BY create_time, id
        """),  # noqa: S608  # constants
        {"endpoint": endpoint_id},
    )
    return [EndpointTokenRecord(*row) for row in rows]


async def revoke(tx: AsyncSession, endpoint_id: uuid.UUID, token_id: uuid.UUID) -> EndpointTokenRecord | None:
    """Revokes a token; None when the endpoint has none of this id. Revoked once more, it stays as it is."""
    rows = await tx.execute(
        text(f"""
            UPDATE endpoint_token SET revoke_time = coalesce(revoke_time, now())
            WHERE id = :id AND endpoint_id = :endpoint RETURNING {_COLUMNS}
        """),  # noqa: S608  # constants
        {"id": token_id, "endpoint": endpoint_id},
    )
    found = rows.one_or_none()
    return None if found is None else EndpointTokenRecord(*found)


async def revoke_of_creator(tx: AsyncSession, creator: str, project: str | None = None) -> None:
    """Revokes all tokens that a user made, or those for the endpoints of a project."""
    await tx.execute(
        text("""
            UPDATE endpoint_token SET revoke_time = now()
            WHERE creator = :creator AND revoke_time IS NULL AND (CAST(:project AS text) IS NULL
                OR endpoint_id IN (SELECT id FROM endpoint WHERE project = :project))
        """),
        {"creator": creator, "project": project},
    )


async def read_revoked(tx: AsyncSession) -> Mapping[uuid.UUID, tuple[str, ...]]:
    """Returns the ids of tokens that were revoked and have not ended, by endpoint."""
    rows = await tx.execute(
        text("""
            SELECT endpoint_id, array_agg(id::text ORDER BY id) FROM endpoint_token
            WHERE revoke_time IS NOT NULL AND expire_time > now() GROUP BY endpoint_id
        """)
    )
    return {endpoint_id: tuple(tokens) for endpoint_id, tokens in rows}
