"""What is wrong with a request is said with the exact code, reason and fields, and nothing is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp
from sqlalchemy import text

from retinue.client.admin.scheduling_policy import agent_strategy, session_strategy
from retinue.manager.v1 import account_service_pb2 as ac
from retinue.manager.v1 import account_service_pb2_grpc, fleet_service_pb2_grpc
from retinue.manager.v1 import fleet_service_pb2 as fl
from retinue.manager.v1 import scheduling_policy_pb2 as sp
from tests.integration.manager.rig import Service, bearer, failure, served
from tests.support.databases import Postgres, fresh_database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.asyncio(loop_scope="session")

POLICY = "resource_group.scheduling_policy"
NAMES = ["", "x" * 64, "../x", "-rf", "a\0b", "a\nb", "\u202eabc", "\U0001f600", "A", "'; DROP TABLE project; --"]
GROUP = fl.ResourceGroup
# A value that a newer contract may have.
UNKNOWN: Any = 99


def user(**fields: Any) -> ac.CreateUserRequest:
    return ac.CreateUserRequest(user=ac.User(**{"name": "bob", **fields}))


def group(**fields: Any) -> fl.CreateResourceGroupRequest:
    return fl.CreateResourceGroupRequest(resource_group=GROUP(**{"name": "g", **fields}))


def changed(*paths: str, **fields: Any) -> fl.UpdateResourceGroupRequest:
    return fl.UpdateResourceGroupRequest(
        resource_group=GROUP(**{"name": "default", **fields}), update_mask=FieldMask(paths=paths)
    )


MEMBER = ac.Membership(project="default", role=ac.PROJECT_ROLE_MEMBER)
CASES: list[tuple[str, Any, list[str]]] = [
    *(("CreateProject", ac.CreateProjectRequest(project=ac.Project(name=name)), ["project.name"]) for name in NAMES),
    ("CreateProject", ac.CreateProjectRequest(), ["project.name"]),
    (
        "CreateProject",
        ac.CreateProjectRequest(project=ac.Project(name="-"), request_id="7"),
        ["project.name", "request_id"],
    ),
    *(("CreateUser", user(name=name), ["user.name"]) for name in NAMES),
    ("CreateUser", user(role=3), ["user.role"]),
    ("CreateUser", user(role=-1), ["user.role"]),
    ("CreateUser", user(memberships=[ac.Membership(project="default")]), ["user.memberships[0].role"]),
    ("CreateUser", user(memberships=[ac.Membership(project="default", role=UNKNOWN)]), ["user.memberships[0].role"]),
    ("CreateUser", user(memberships=[MEMBER, MEMBER]), ["user.memberships[1].project"]),
    ("CreateUser", user(memberships=[MEMBER] * 1001), ["user.memberships"]),
    (
        "CreateUser",
        user(name="-", memberships=[ac.Membership(project="..")]),
        ["user.name", "user.memberships[0].role", "user.memberships[0].project"],
    ),
    ("SetMembership", ac.SetMembershipRequest(user="ada", project="default", role=UNKNOWN), ["role"]),
    ("SetMembership", ac.SetMembershipRequest(user="ada", project="default"), ["role"]),
    ("SetUserRole", ac.SetUserRoleRequest(user="ada", role=UNKNOWN), ["role"]),
    ("SetUserRole", ac.SetUserRoleRequest(user="ada"), ["role"]),
    ("UpdateResourceGroup", changed("egress"), ["resource_group.egress"]),
    ("CreateToken", ac.CreateTokenRequest(description="x" * 257), ["description"]),
    ("CreateToken", ac.CreateTokenRequest(description="a\x1b[2J"), ["description"]),
    ("CreateToken", ac.CreateTokenRequest(ttl=Duration(seconds=0)), ["ttl"]),
    ("CreateToken", ac.CreateTokenRequest(ttl=Duration(seconds=-1)), ["ttl"]),
    ("CreateToken", ac.CreateTokenRequest(ttl=Duration(seconds=11 * 366 * 86400)), ["ttl"]),
    ("CreateToken", ac.CreateTokenRequest(ttl=Duration(seconds=2**62)), ["ttl"]),
    ("CreateToken", ac.CreateTokenRequest(ttl=Duration(seconds=5, nanos=-1)), ["ttl"]),
    ("RevokeToken", ac.RevokeTokenRequest(token_id=""), ["token_id"]),
    ("RevokeToken", ac.RevokeTokenRequest(token_id="' OR 1=1"), ["token_id"]),  # no password
    *(
        (method, kind(page_size=-1), ["page_size"])
        for method, kind in (
            ("ListProjects", ac.ListProjectsRequest),
            ("ListUsers", ac.ListUsersRequest),
            ("ListTokens", ac.ListTokensRequest),
            ("ListAgents", fl.ListAgentsRequest),
            ("ListResourceGroups", fl.ListResourceGroupsRequest),
        )
    ),
    *(
        (method, kind(page_token="AAAA"), ["page_token"])  # no password
        for method, kind in (
            ("ListProjects", ac.ListProjectsRequest),
            ("ListUsers", ac.ListUsersRequest),
            ("ListTokens", ac.ListTokensRequest),
            ("ListAgents", fl.ListAgentsRequest),
            ("ListResourceGroups", fl.ListResourceGroupsRequest),
        )
    ),
    ("ListAuditRecords", ac.ListAuditRecordsRequest(page_size=-1), ["page_size"]),
    ("ListAuditRecords", ac.ListAuditRecordsRequest(page_token="AAAA"), ["page_token"]),  # no password
    ("ListAuditRecords", ac.ListAuditRecordsRequest(filter='summary = "x"'), ["filter"]),
    ("ListAuditRecords", ac.ListAuditRecordsRequest(start_time=Timestamp(nanos=-1)), ["start_time"]),
    ("ListAuditRecords", ac.ListAuditRecordsRequest(end_time=Timestamp(seconds=1 << 60)), ["end_time"]),
    ("ListOrphans", fl.ListOrphansRequest(page_size=-1), ["page_size"]),
    ("ListShareHistories", fl.ListShareHistoriesRequest(page_size=-1), ["page_size"]),
    ("ListShareHistories", fl.ListShareHistoriesRequest(page_token="AAAA"), ["page_token"]),  # no password
    ("ListShareHistories", fl.ListShareHistoriesRequest(interval=Duration(seconds=3599)), ["interval"]),
    ("ListShareHistories", fl.ListShareHistoriesRequest(interval=Duration(seconds=5400)), ["interval"]),
    ("ListShareHistories", fl.ListShareHistoriesRequest(interval=Duration(seconds=32 * 86400)), ["interval"]),
    ("ListShareHistories", fl.ListShareHistoriesRequest(start_time=Timestamp(seconds=0)), ["interval"]),
    ("ListShareHistories", fl.ListShareHistoriesRequest(start_time=Timestamp(seconds=1 << 33)), ["start_time"]),
    (
        "ListShareHistories",
        fl.ListShareHistoriesRequest(start_time=Timestamp(nanos=-1), end_time=Timestamp(seconds=1 << 60)),
        ["end_time", "start_time"],
    ),
    ("ListRouters", fl.ListRoutersRequest(page_size=-1), ["page_size"]),
    ("EndOrphans", fl.EndOrphansRequest(agent="n1", attempt_ids=["x", "y.1"]), ["attempt_ids[0]", "attempt_ids[1]"]),
    ("EndOrphans", fl.EndOrphansRequest(attempt_ids=["x"] * 501), ["attempt_ids"]),
    ("ConfirmLostAgents", fl.ConfirmLostAgentsRequest(), ["agents"]),
    ("ConfirmLostAgents", fl.ConfirmLostAgentsRequest(agents=["x"] * 501), ["agents"]),
    ("ListAgents", fl.ListAgentsRequest(filter='secret = "x"'), ["filter"]),
    ("ListAgents", fl.ListAgentsRequest(filter='id = "x" OR TRUE'), ["filter"]),
    ("ListAgents", fl.ListAgentsRequest(filter="x" * 10_000), ["filter"]),
    *(("CreateResourceGroup", group(name=name), ["resource_group.name"]) for name in NAMES),
    (
        "CreateResourceGroup",
        group(scheduling_policy=sp.SchedulingPolicy(session_strategy=session_strategy("best"))),
        [f"{POLICY}.session_strategy"],
    ),
    (
        "CreateResourceGroup",
        group(scheduling_policy=sp.SchedulingPolicy(agent_strategy=agent_strategy("best"))),
        [f"{POLICY}.agent_strategy"],
    ),
    (
        "CreateResourceGroup",
        group(scheduling_policy=sp.SchedulingPolicy(external_server=sp.ExternalServer(address="127.0.0.1:1"))),
        [f"{POLICY}.external_server"],
    ),
    (
        "CreateResourceGroup",
        group(
            scheduling_policy=sp.SchedulingPolicy(
                session_strategy=sp.SessionStrategy(fifo=sp.FifoStrategy(max_tries_before_skip=-1))
            )
        ),
        [f"{POLICY}.session_strategy.fifo.max_tries_before_skip"],
    ),
    ("CreateResourceGroup", group(owner_weights={"ada": 0}), ["resource_group.owner_weights['ada']"]),
    ("CreateResourceGroup", group(owner_weights={"ada": 1_000_001}), ["resource_group.owner_weights['ada']"]),
    ("CreateResourceGroup", group(egress=7), ["resource_group.egress"]),
    ("CreateResourceGroup", group(max_grace=Duration(seconds=9)), ["resource_group.max_grace"]),
    ("CreateResourceGroup", group(max_grace=Duration(seconds=86_401)), ["resource_group.max_grace"]),
    ("CreateResourceGroup", group(mass_loss_percent=101), ["resource_group.mass_loss_percent"]),
    ("CreateResourceGroup", group(mass_loss_percent=-1), ["resource_group.mass_loss_percent"]),
    ("CreateResourceGroup", group(mass_loss_agents=-1), ["resource_group.mass_loss_agents"]),
    ("CreateResourceGroup", group(mass_loss_agents=100_001), ["resource_group.mass_loss_agents"]),
    ("CreateResourceGroup", group(mass_loss_window=Duration(nanos=1)), ["resource_group.mass_loss_window"]),
    ("CreateResourceGroup", group(mass_loss_window=Duration(seconds=86_401)), ["resource_group.mass_loss_window"]),
    ("CreateResourceGroup", group(start_timeout=Duration(seconds=0)), ["resource_group.start_timeout"]),
    ("CreateResourceGroup", group(start_timeout=Duration(seconds=86_401)), ["resource_group.start_timeout"]),
    (
        "CreateResourceGroup",
        group(start_timeout=Duration(seconds=5, nanos=5_000_000)),
        ["resource_group.start_timeout"],
    ),
    ("UpdateResourceGroup", changed("name"), ["update_mask"]),
    ("UpdateResourceGroup", changed("owner_weights.ada"), ["update_mask"]),
    (
        "UpdateResourceGroup",
        changed(
            "scheduling_policy.session_strategy",
            scheduling_policy=sp.SchedulingPolicy(session_strategy=session_strategy("x")),
        ),
        [f"{POLICY}.session_strategy"],
    ),
    (
        "UpdateResourceGroup",
        changed(
            "scheduling_policy.pending_timeout",
            scheduling_policy=sp.SchedulingPolicy(pending_timeout=Duration(seconds=-1)),
        ),
        [f"{POLICY}.pending_timeout"],
    ),
    ("CreateJoinToken", fl.CreateJoinTokenRequest(agent="-x"), ["agent"]),
    ("CreateJoinToken", fl.CreateJoinTokenRequest(uses=-1), ["uses"]),
    ("CreateJoinToken", fl.CreateJoinTokenRequest(uses=10_001), ["uses"]),
    ("CreateJoinToken", fl.CreateJoinTokenRequest(ttl=Duration(seconds=31 * 86_400)), ["ttl"]),
    ("CreateJoinToken", fl.CreateJoinTokenRequest(ttl=Duration(seconds=-1)), ["ttl"]),
]


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def called(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Service, Any]]:
    """One service for all cases: a case that made something would be noticed by the last one."""
    async with fresh_database(postgres) as url, served(url, tmp_path_factory.mktemp("authority")) as service:
        token = bearer(await service.user("root", role="ADMIN"))
        async with service.channel() as channel:
            stubs = (
                account_service_pb2_grpc.AccountServiceStub(channel),
                fleet_service_pb2_grpc.FleetServiceStub(channel),
            )

            async def call(method: str, message: Any) -> Any:
                stub = next(stub for stub in stubs if hasattr(stub, method))
                return await getattr(stub, method)(message, metadata=token)

            yield service, call


@pytest.mark.attack("forged-filters", "page-tokens-of-others", "odd-names", "odd-durations", "slow-filters")
@pytest.mark.parametrize(("method", "message", "fields"), CASES, ids=[f"{n}-{c[0]}" for n, c in enumerate(CASES)])
async def test_case(called: tuple[Service, Any], method: str, message: Any, fields: list[str]) -> None:
    service, call = called
    failed = await failure(call(method, message))
    assert (failed.code, failed.reason, failed.fields) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", fields)
    assert "Traceback" not in failed.text
    async with service.database.transaction() as tx:
        counts = await tx.execute(
            text("""
                SELECT (SELECT count(*) FROM project), (SELECT count(*) FROM user_account), (SELECT count(*) FROM token),
                    (SELECT count(*) FROM resource_group), (SELECT count(*) FROM join_token), (SELECT count(*) FROM request),
                    (SELECT sum(version) FROM resource_group)
            """)
        )
    assert tuple(counts.one()) == (1, 1, 1, 1, 0, 0, 1)


@pytest.mark.attack("large-messages")
async def test_a_message_that_is_too_large(called: tuple[Service, Any]) -> None:
    _, call = called
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call("CreateToken", ac.CreateTokenRequest(description="x" * 5_000_000))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    # And the server continues.
    await call("ListProjects", ac.ListProjectsRequest(page_size=2**31 - 1))
