"""Idle overrides over the API: set, read, merged and refused."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from retinue.manager.v1 import account_service_pb2 as pb
from retinue.manager.v1 import account_service_pb2_grpc, idle_pb2
from tests.integration.manager.rig import Service, bearer, failure

pytestmark = pytest.mark.asyncio(loop_scope="session")

Code = grpc.StatusCode
HOUR = Duration(seconds=3600)
LIFETIME = idle_pb2.IDLE_CHECKER_LIFETIME


async def test_set_list_change_and_remove(service: Service) -> None:
    tokens = {"root": await service.user("root", role="ADMIN")}
    tokens |= {name: await service.user(name) for name in ("ada", "ben")}
    metadata = {name: bearer(token) for name, token in tokens.items()}
    async with service.channel() as channel:
        stub: account_service_pb2_grpc.AccountServiceAsyncStub = account_service_pb2_grpc.AccountServiceStub(channel)

        async def put(caller: str = "root", *, validate_only: bool = False, **values: Any) -> idle_pb2.IdleOverride:
            request = pb.SetIdleOverrideRequest(
                override=idle_pb2.IdleOverride(**values), validate_only=validate_only
            )  # fmt: skip
            return (await stub.SetIdleOverride(request, metadata=metadata[caller])).override

        async def users(caller: str, **values: Any) -> list[str]:
            answer = await stub.ListIdleOverrides(pb.ListIdleOverridesRequest(**values), metadata=metadata[caller])
            return [override.user for override in answer.overrides]

        policy = idle_pb2.IdlePolicy(
            interaction_timeout=HOUR, utilization=idle_pb2.UtilizationPolicy(thresholds={"cpu": 2.5})
        )
        made = await put(user="ada", policy=policy, exempt=[LIFETIME, LIFETIME])
        assert (made.policy, made.exempt) == (policy, [LIFETIME])
        assert (await put(user="ada", policy=policy, validate_only=True)).etag == made.etag
        changed = await put(user="ada", policy=idle_pb2.IdlePolicy(max_lifetime=HOUR), etag=made.etag)
        assert (changed.policy.HasField("interaction_timeout"), list(changed.exempt)) == (False, [])
        assert changed.etag != made.etag
        stale = await failure(put(user="ada", policy=policy, etag=made.etag))
        assert (stale.code, stale.metadata) == (Code.ABORTED, {"etag": changed.etag})
        await put(user="ben", exempt=[LIFETIME])
        assert await users("root") == ["ada", "ben"]
        first = await stub.ListIdleOverrides(pb.ListIdleOverridesRequest(page_size=1), metadata=metadata["root"])
        assert await users("root", page_token=first.next_page_token) == ["ben"]
        assert await users("ada") == ["ada"]
        denied = await failure(put("ada", user="ada", exempt=[LIFETIME]))
        assert (denied.code, denied.reason) == (Code.PERMISSION_DENIED, "METHOD_DENIED")
        assert (await put(user="ada")).etag == ""
        assert await users("root") == ["ben"]
        await stub.DeleteUser(pb.DeleteUserRequest(name="ben"), metadata=metadata["root"])
        assert await users("root") == []
        missing = await failure(put(user="ben", exempt=[LIFETIME]))
        assert (missing.code, missing.metadata) == (Code.NOT_FOUND, {"kind": "user", "id": "ben"})
        for values, fields in (
            ({"exempt": [LIFETIME]}, ["override.user"]),
            ({"user": "ada", "exempt": [0]}, ["override.exempt[0]"]),
            ({"user": "ada", "exempt": [LIFETIME, 9]}, ["override.exempt[1]"]),
            (
                {"user": "ada", "policy": idle_pb2.IdlePolicy(interaction_timeout=Duration(seconds=1))},
                ["override.policy.interaction_timeout"],
            ),
            (
                {"user": "ada", "policy": idle_pb2.IdlePolicy(utilization=idle_pb2.UtilizationPolicy(thresholds={"x": 1}))},
                ["override.policy.utilization.thresholds['x']"],
            ),
        ):  # fmt: skip
            refused = await failure(put(**values))
            assert (refused.code, refused.fields) == (Code.INVALID_ARGUMENT, fields)
        bad = await failure(users("root", page_size=-1))
        assert (bad.code, bad.fields) == (Code.INVALID_ARGUMENT, ["page_size"])
