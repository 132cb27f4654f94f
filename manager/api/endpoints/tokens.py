"""Tokens that routers let requests to an endpoint through with."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import TYPE_CHECKING

from retinue.manager.api.endpoints.requests import find_endpoint, find_id
from retinue.manager.domain import errors, preconditions
from retinue.manager.server.fields import Violations, parse_uuid
from retinue.manager.server.interceptors import current_principal
from retinue.manager.server.journal_positions import with_position
from retinue.manager.server.pages import open_page
from retinue.manager.store.endpoints import endpoint_tokens
from retinue.manager.v1 import endpoint_pb2
from retinue.manager.v1 import endpoint_service_pb2 as pb
from retinue.rpc.times import timestamp

if TYPE_CHECKING:
    from retinue.manager.identity.endpoint_tokens import EndpointTokenSigner
    from retinue.manager.store.endpoints.endpoint_tokens import EndpointTokenRecord
    from retinue.manager.store.postgres.database import Transaction

_MAX_LABEL = 64
MAX_TOKENS = 1_000
_DEFAULT, _SHORTEST, _LONGEST = dt.timedelta(days=90), dt.timedelta(minutes=1), dt.timedelta(days=365)


async def create_token(
    tx: Transaction, signer: EndpointTokenSigner | None, request: pb.CreateEndpointTokenRequest
) -> pb.CreateEndpointTokenResponse:
    """Makes a token. Raises NoRouter without a `signer`, StateForbids and TokenLimit."""
    violations = Violations()
    violations.text("label", request.label, _MAX_LABEL)
    lifetime = _DEFAULT
    if request.HasField("lifetime"):
        lifetime = violations.duration("lifetime", request.lifetime, _SHORTEST, _LONGEST)
    violations.raise_any()
    # Locked, so that tokens are counted one after the other.
    view = await find_endpoint(tx, request.endpoint, lock=True)
    if signer is None:
        raise preconditions.NoRouter
    if not view.is_active:
        raise preconditions.StateForbids("the endpoint is being deleted", f"endpoint/{view.record.name}")
    # Routers know each revoked one until it ends.
    if len(await endpoint_tokens.list_of(tx, view.record.id)) >= MAX_TOKENS:
        raise preconditions.TokenLimit(view.record.name, MAX_TOKENS)
    made = await endpoint_tokens.create(
        tx, view.record.id, label=request.label, creator=current_principal().name, ttl=lifetime
    )
    secret = signer.sign(view.record.id, made.id, now=made.create_time, expire_time=made.expire_time)
    return await with_position(tx, pb.CreateEndpointTokenResponse(token=_message(made), secret=secret))


async def list_tokens(tx: Transaction, request: pb.ListEndpointTokensRequest) -> pb.ListEndpointTokensResponse:
    """Returns a page of tokens, newest first."""
    page = open_page(request.page_size, request.page_token, ["endpoint tokens", request.endpoint])
    endpoint_id = await find_id(tx, request.endpoint)
    found = (await endpoint_tokens.list_of(tx, endpoint_id))[::-1]
    if page.after:
        found = [item for item in found if (item.create_time.isoformat(), str(item.id)) < page.after]
    listed, token = page.close(
        [_message(item) for item in found[: page.size]],
        len(found),
        lambda n: [found[n].create_time.isoformat(), str(found[n].id)],
    )
    return pb.ListEndpointTokensResponse(tokens=listed, next_page_token=token)


async def revoke_token(tx: Transaction, request: pb.RevokeEndpointTokenRequest) -> pb.RevokeEndpointTokenResponse:
    """Revokes a token."""
    endpoint_id = await find_id(tx, request.endpoint)
    token_id = parse_uuid(request.token_id) or uuid.UUID(int=0)
    revoked = await endpoint_tokens.revoke(tx, endpoint_id, token_id)
    if revoked is None:
        raise errors.NotFound("token", request.token_id)
    return await with_position(tx, pb.RevokeEndpointTokenResponse(token=_message(revoked)))


def _message(record: EndpointTokenRecord) -> endpoint_pb2.EndpointToken:
    return endpoint_pb2.EndpointToken(
        id=str(record.id),
        label=record.label,
        creator=record.creator,
        create_time=timestamp(record.create_time),
        expire_time=timestamp(record.expire_time),
        revoke_time=timestamp(record.revoke_time),
    )
