"""Tokens of endpoints: who made which, and which were revoked. A token itself is nowhere."""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import Text, cast, func, insert, select, update
from sqlalchemy.dialects.postgresql import aggregate_order_by

from retinue.manager.store.postgres.constructs import columns_of, table_of
from retinue.manager.store.tables import Endpoint, EndpointToken

if TYPE_CHECKING:
    from collections.abc import Mapping

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


_token, _endpoint = table_of(EndpointToken), table_of(Endpoint)
_COLUMNS = columns_of(EndpointToken, EndpointTokenRecord)


async def create(
    tx: AsyncSession, endpoint_id: uuid.UUID, *, label: str, creator: str, ttl: dt.timedelta
) -> EndpointTokenRecord:
    """Records a new token."""
    made = insert(_token).values(
        id=func.gen_random_uuid(), endpoint_id=endpoint_id, label=label, creator=creator, expire_time=func.now() + ttl
    )
    return EndpointTokenRecord(*(await tx.execute(made.returning(*_COLUMNS))).one())


async def list_of(tx: AsyncSession, endpoint_id: uuid.UUID) -> list[EndpointTokenRecord]:
    """Returns the tokens of an endpoint that have not ended, oldest first."""
    query = select(*_COLUMNS).where(_token.c.endpoint_id == endpoint_id, _token.c.expire_time > func.now())
    rows = await tx.execute(query.order_by(_token.c.create_time, _token.c.id))
    return [EndpointTokenRecord(*row) for row in rows]


async def revoke(tx: AsyncSession, endpoint_id: uuid.UUID, token_id: uuid.UUID) -> EndpointTokenRecord | None:
    """Revokes a token; None when the endpoint has none of this id. Revoked once more, it stays as it is."""
    revoked = update(_token).where(_token.c.id == token_id, _token.c.endpoint_id == endpoint_id)
    revoked = revoked.values(revoke_time=func.coalesce(_token.c.revoke_time, func.now()))
    found = (await tx.execute(revoked.returning(*_COLUMNS))).one_or_none()
    return None if found is None else EndpointTokenRecord(*found)


async def revoke_of_creator(tx: AsyncSession, creator: str, project: str | None = None) -> None:
    """Revokes all tokens that a user made, or those for the endpoints of a project."""
    revoked = update(_token).where(_token.c.creator == creator, _token.c.revoke_time.is_(None))
    if project is not None:
        of_project = select(_endpoint.c.id).where(_endpoint.c.project == project)
        revoked = revoked.where(_token.c.endpoint_id.in_(of_project))
    await tx.execute(revoked.values(revoke_time=func.now()))


async def read_revoked(tx: AsyncSession) -> Mapping[uuid.UUID, tuple[str, ...]]:
    """Returns the ids of tokens that were revoked and have not ended, by endpoint."""
    ids = func.array_agg(aggregate_order_by(cast(_token.c.id, Text), _token.c.id))
    query = select(_token.c.endpoint_id, ids).where(
        _token.c.revoke_time.is_not(None), _token.c.expire_time > func.now()
    )
    rows = await tx.execute(query.group_by(_token.c.endpoint_id))
    return {endpoint_id: tuple(tokens) for endpoint_id, tokens in rows}
