"""Tokens of endpoints: how long they are good, and how many there are."""

from __future__ import annotations

import asyncio
import datetime as dt
import uuid
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from retinue.manager.store.endpoints import endpoint_tokens
from retinue.manager.v1 import (
    account_service_pb2,
)
from retinue.manager.v1 import endpoint_service_pb2 as pb
from tests.integration.manager.rig import bearer, failure
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from tests.integration.manager.endpoints.controlled import Rig

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_tokens_end_with_the_membership_and_with_the_user_who_made_them(rig: Rig) -> None:
    database, endpoint = rig.service.database, uuid.UUID((await rig.create()).id)
    elsewhere = uuid.uuid4()
    async with database.transaction() as tx:
        made = {
            (creator, place): await endpoint_tokens.create(
                tx, place, label="", creator=creator, ttl=dt.timedelta(days=1)
            )
            for creator in ("ada", "bob")
            for place in (endpoint, elsewhere)
        }

    async def revoked() -> set[tuple[str, uuid.UUID]]:
        async with database.transaction() as tx:
            ids = {item for items in (await endpoint_tokens.read_revoked(tx)).values() for item in items}
        return {key for key, token in made.items() if str(token.id) in ids}

    root = bearer(await rig.service.user("root", role="ADMIN"))
    await rig.accounts.DeleteMembership(
        account_service_pb2.DeleteMembershipRequest(user="bob", project="default"), metadata=root
    )
    assert await revoked() == {("bob", endpoint)}
    await rig.accounts.DeleteUser(account_service_pb2.DeleteUserRequest(name="bob"), metadata=root)
    assert await revoked() == {("bob", endpoint), ("bob", elsewhere)}


async def test_tokens_are_so_many_and_revoked_ones_count(rig: Rig) -> None:
    endpoint = uuid.UUID((await rig.create()).id)
    async with rig.service.database.transaction() as tx:
        await tx.execute(
            text("""
                INSERT INTO endpoint_token (id, endpoint_id, label, creator, expire_time, revoke_time)
                SELECT gen_random_uuid(), :endpoint, '', 'ada', now() + interval '1 day' * (n - 1), now()
                FROM generate_series(1, 1001) AS n
            """),
            {"endpoint": endpoint},
        )
    request = pb.CreateEndpointTokenRequest(endpoint="llm")
    assert (await failure(rig.call("CreateEndpointToken", request))).reason == "TOKEN_LIMIT"
    async with rig.service.database.transaction() as tx:
        await tx.execute(
            text(
                "DELETE FROM endpoint_token WHERE id = (SELECT id FROM endpoint_token WHERE expire_time > now() LIMIT 1)"
            )
        )
    assert (await rig.call("CreateEndpointToken", request)).secret
    assert (await failure(rig.call("CreateEndpointToken", request))).reason == "TOKEN_LIMIT"


async def test_a_revocation_wakes_what_rests(rig: Rig) -> None:
    """Whoever sends routers what is revoked looks less often while nobody writes."""
    await rig.create()
    made = await rig.call("CreateEndpointToken", pb.CreateEndpointTokenRequest(endpoint="llm", label="a"))
    writes, changed = rig.service.database.writes, asyncio.Event()
    with writes.watching():
        resting = asyncio.create_task(writes.rest(changed, writes.number, 0.0, NEVER))
        await rig.call("RevokeEndpointToken", pb.RevokeEndpointTokenRequest(endpoint="llm", token_id=made.token.id))
        assert changed.is_set()
        await resting
