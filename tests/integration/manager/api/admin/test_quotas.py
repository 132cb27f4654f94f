"""Quotas over the API: set, read, and in the way of requests."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from google.rpc.error_details_pb2 import QuotaFailure
from grpc_status import rpc_status

from retinue.client.transport.rpc_errors import from_status
from retinue.manager.v1 import account_service_pb2 as pb
from retinue.manager.v1 import (
    account_service_pb2_grpc,
    fleet_service_pb2,
    fleet_service_pb2_grpc,
    session_pb2,
    session_service_pb2,
    session_service_pb2_grpc,
)
from tests.integration.manager.rig import Service, bearer, failure, reasons, served

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.asyncio(loop_scope="session")

Code = grpc.StatusCode
USER, PROJECT, GROUP = pb.QUOTA_KIND_USER, pb.QUOTA_KIND_PROJECT, pb.QUOTA_KIND_RESOURCE_GROUP


class Callers:
    """An administrator, and two users: Ada in the projects default and deep, Ben in default."""

    def __init__(self, channel: grpc.aio.Channel, service: Service, tokens: dict[str, str]) -> None:
        self.service = service
        self.accounts: account_service_pb2_grpc.AccountServiceAsyncStub = account_service_pb2_grpc.AccountServiceStub(
            channel
        )
        self.sessions: session_service_pb2_grpc.SessionServiceAsyncStub = session_service_pb2_grpc.SessionServiceStub(
            channel
        )
        self.fleet: fleet_service_pb2_grpc.FleetServiceAsyncStub = fleet_service_pb2_grpc.FleetServiceStub(channel)
        self.metadata = {name: bearer(token) for name, token in tokens.items()}

    async def set(self, kind: pb.QuotaKind.ValueType, name: str, etag: str = "", **limits: Any) -> pb.Quota:
        request = pb.SetQuotaRequest(quota=pb.Quota(kind=kind, name=name, etag=etag, **limits))
        return (await self.accounts.SetQuota(request, metadata=self.metadata["root"])).quota

    async def quotas(self, caller: str, **values: Any) -> list[tuple[int, str]]:
        answer = await self.accounts.ListQuotas(pb.ListQuotasRequest(**values), metadata=self.metadata[caller])
        return [(quota.kind, quota.name) for quota in answer.quotas]

    async def create(self, caller: str, **changes: Any) -> session_service_pb2.CreateSessionResponse:
        return await self.sessions.CreateSession(
            session_service_pb2.CreateSessionRequest(spec=spec(**changes)), metadata=self.metadata[caller]
        )


@pytest_asyncio.fixture(loop_scope="session")
async def callers(service: Service) -> AsyncIterator[Callers]:
    tokens = {
        "root": await service.user("root", role="ADMIN"),
        "ada": await service.user("ada", projects=("default", "deep")),
        "ben": await service.user("ben"),
    }
    async with service.channel() as channel:
        yield Callers(channel, service, tokens)


def spec(**changes: Any) -> session_pb2.SessionSpec:
    made = session_pb2.SessionSpec(type=session_pb2.SESSION_TYPE_BATCH, kernel=session_pb2.KernelSpec(command=["true"]))
    made.MergeFrom(session_pb2.SessionSpec(**{"project": "default", **changes}))
    return made


async def violations(call: Any) -> list[tuple[str, str]]:
    """The quotas that refuse a call."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    refused = await failure(_again(raised.value))
    assert (refused.code, refused.reason) == (Code.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED")
    status, found = rpc_status.from_call(raised.value), QuotaFailure()
    assert any(detail.Unpack(found) for detail in status.details)
    return [(item.subject, item.description) for item in found.violations]


async def _again(error: Exception) -> None:
    raise error


async def test_set_change_and_remove(callers: Callers) -> None:
    made = await callers.set(USER, "ada", slots={"cpu": "4.50", "mem": "2048m", "cuda.device": "0"}, max_sessions=0)
    assert dict(made.slots) == {"cpu": "4.5", "mem": "2g", "cuda.device": "0"}
    assert (made.HasField("max_sessions"), made.max_sessions) == (True, 0)
    assert not made.HasField("max_pending_sessions")
    assert not made.HasField("highest_priority")
    changed = await callers.set(USER, "ada", made.etag, highest_priority=50)
    assert (dict(changed.slots), changed.highest_priority, changed.HasField("max_sessions")) == ({}, 50, False)
    assert changed.etag != made.etag
    stale = await failure(callers.set(USER, "ada", made.etag, highest_priority=1))
    assert (stale.code, stale.metadata) == (Code.ABORTED, {"etag": changed.etag})
    checked = pb.SetQuotaRequest(quota=pb.Quota(kind=USER, name="ada", max_sessions=9), validate_only=True)
    answer = await callers.accounts.SetQuota(checked, metadata=callers.metadata["root"])
    assert (answer.quota.max_sessions, answer.quota.etag) == (9, changed.etag)
    gone = await callers.set(USER, "ada")
    assert gone.etag == ""
    assert await callers.quotas("root") == []
    assert await callers.set(USER, "ada") == gone


async def test_who_may(callers: Callers) -> None:
    for kind, name in ((USER, "ada"), (USER, "ben"), (PROJECT, "deep"), (PROJECT, "default"), (GROUP, "default")):
        await callers.set(kind, name, max_sessions=1)
    shared = [(PROJECT, "default"), (GROUP, "default")]
    assert await callers.quotas("root") == [(PROJECT, "deep"), *shared, (USER, "ada"), (USER, "ben")]
    assert await callers.quotas("ada") == [(PROJECT, "deep"), *shared, (USER, "ada")]
    assert await callers.quotas("ben") == [*shared, (USER, "ben")]
    assert await callers.quotas("ben", kind=USER, name="ada") == []
    assert await callers.quotas("ben", kind=PROJECT) == [(PROJECT, "default")]
    for caller, kind, name in (("root", USER, "ada"), ("ada", USER, "ada"), ("ben", PROJECT, "default")):
        one = pb.GetQuotaRequest(kind=kind, name=name)
        found = (await callers.accounts.GetQuota(one, metadata=callers.metadata[caller])).quota
        assert (found.kind, found.name, found.max_sessions) == (kind, name, 1)
    for caller, kind, name in (
        ("ben", USER, "ada"),
        ("ben", PROJECT, "deep"),
        ("root", USER, "root"),
        ("root", USER, ""),
    ):
        one = pb.GetQuotaRequest(kind=kind, name=name)
        refused = await failure(callers.accounts.GetQuota(one, metadata=callers.metadata[caller]))
        assert refused.code is Code.NOT_FOUND
    no_kind = await failure(callers.accounts.GetQuota(pb.GetQuotaRequest(), metadata=callers.metadata["root"]))
    assert (no_kind.code, no_kind.fields) == (Code.INVALID_ARGUMENT, ["kind"])
    first = await callers.accounts.ListQuotas(pb.ListQuotasRequest(page_size=3), metadata=callers.metadata["root"])
    assert len(first.quotas) == 3
    assert await callers.quotas("root", page_size=3, page_token=first.next_page_token) == [(USER, "ada"), (USER, "ben")]
    denied = await failure(
        callers.accounts.SetQuota(
            pb.SetQuotaRequest(quota=pb.Quota(kind=USER, name="ada")), metadata=callers.metadata["ada"]
        )
    )
    assert (denied.code, denied.reason) == (Code.PERMISSION_DENIED, "METHOD_DENIED")


async def test_it_goes_with_its_subject(callers: Callers) -> None:
    root = callers.metadata["root"]
    await callers.fleet.CreateResourceGroup(
        fleet_service_pb2.CreateResourceGroupRequest(resource_group=fleet_service_pb2.ResourceGroup(name="g")),
        metadata=root,
    )
    for kind, name in ((USER, "ben"), (PROJECT, "deep"), (GROUP, "g")):
        await callers.set(kind, name, max_sessions=1)
    await callers.accounts.DeleteUser(pb.DeleteUserRequest(name="ben"), metadata=root)
    await callers.accounts.DeleteProject(pb.DeleteProjectRequest(name="deep"), metadata=root)
    await callers.fleet.DeleteResourceGroup(fleet_service_pb2.DeleteResourceGroupRequest(name="g"), metadata=root)
    assert await callers.quotas("root") == []
    for kind, name, what in ((USER, "ben", "user"), (PROJECT, "deep", "project"), (GROUP, "g", "resource_group")):
        missing = await failure(callers.set(kind, name, max_sessions=1))
        assert (missing.code, missing.metadata) == (Code.NOT_FOUND, {"kind": what, "id": name})


@pytest.mark.attack("beyond-quotas")
async def test_every_violation_with_amounts(callers: Callers) -> None:
    await callers.set(USER, "ada", max_pending_sessions=1, highest_priority=20)
    await callers.set(PROJECT, "default", max_pending_sessions=1)
    await callers.set(GROUP, "default", highest_priority=30)
    await callers.create("ada")
    assert await violations(callers.create("ada", priority=31)) == [
        ("users/ada", "1 of at most 1 sessions of user ada wait already"),
        ("users/ada", "priority 31 is above 20, the highest for user ada"),
        ("projects/default", "1 of at most 1 sessions of project default wait already"),
        ("resource_groups/default", "priority 31 is above 30, the highest for resource group default"),
    ]
    assert await violations(callers.create("ben")) == [
        ("projects/default", "1 of at most 1 sessions of project default wait already")
    ]
    assert await violations(callers.create("ada", project="deep")) == [
        ("users/ada", "1 of at most 1 sessions of user ada wait already")
    ]
    found = await callers.accounts.ListQuotas(pb.ListQuotasRequest(kind=USER), metadata=callers.metadata["ada"])
    assert found.quotas[0].usage == pb.QuotaUsage(pending_sessions=1)


async def test_many_at_once_are_counted_one_by_one(callers: Callers) -> None:
    await callers.set(USER, "ada", max_pending_sessions=3, highest_priority=20)
    await callers.create("ada", name="taken")
    request = session_service_pb2.BatchCreateSessionsRequest(
        specs=[
            spec(name="a"),
            spec(name="taken"),
            spec(name="a"),
            spec(name="urgent", priority=21),
            spec(name="b"),
            spec(name="c"),
        ],
        request_id=str(uuid.uuid4()),
    )
    answer = await callers.sessions.BatchCreateSessions(request, metadata=callers.metadata["ada"])
    assert reasons(answer) == [
        "",
        "NAME_TAKEN",
        "NAME_TAKEN",
        "QUOTA_EXCEEDED",
        "",
        "QUOTA_EXCEEDED",
    ]
    refused = from_status(answer.results[5].refused)
    assert [(item.field, item.description) for item in refused.violations] == [
        ("users/ada", "3 of at most 3 sessions of user ada wait already")
    ]


async def test_two_at_once_do_not_slip_through_together(callers: Callers) -> None:
    await callers.set(PROJECT, "default", max_pending_sessions=5)
    calls = [callers.create("ada" if number % 2 else "ben") for number in range(16)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, grpc.aio.AioRpcError)]
    assert len(answers) - len(refused) == 5
    assert {error.code() for error in refused} == {Code.RESOURCE_EXHAUSTED}


BAD: list[tuple[Any, list[str]]] = [
    (pb.Quota(name="ada"), ["quota.kind"]),
    (pb.Quota(kind=99, name="ada"), ["quota.kind"]),  # type: ignore[arg-type]
    (pb.Quota(kind=USER), ["quota.name"]),
    (pb.Quota(kind=USER, name="ada", slots={"cpu": "-1"}), ["quota.slots['cpu']"]),
    (pb.Quota(kind=USER, name="ada", slots={"CPU": "0"}), ["quota.slots['CPU']"]),
    (pb.Quota(kind=USER, name="ada", slots={"mem": "1e400"}), ["quota.slots['mem']"]),
    (pb.Quota(kind=USER, name="ada", slots={"mem": "8"}), ["quota.slots['mem']"]),
    (pb.Quota(kind=USER, name="ada", slots={f"s{number}": "1" for number in range(33)}), ["quota.slots"]),
    (
        pb.Quota(kind=USER, name="ada", max_sessions=-1, max_pending_sessions=-1, highest_priority=101),
        ["quota.max_sessions", "quota.max_pending_sessions", "quota.highest_priority"],
    ),
]


@pytest.mark.parametrize(("quota", "fields"), BAD, ids=[",".join(fields) for _, fields in BAD])
async def test_what_is_wrong_is_named(callers: Callers, quota: pb.Quota, fields: list[str]) -> None:
    request = pb.SetQuotaRequest(quota=quota)
    refused = await failure(callers.accounts.SetQuota(request, metadata=callers.metadata["root"]))
    assert (refused.code, refused.reason, refused.fields) == (Code.INVALID_ARGUMENT, "INVALID_FIELD", fields)


async def test_what_is_wrong_with_a_question(callers: Callers) -> None:
    for request, fields in (
        (pb.ListQuotasRequest(name="ada"), ["name"]),
        (pb.ListQuotasRequest(kind=99), ["kind"]),  # type: ignore[arg-type]
        (pb.ListQuotasRequest(page_size=-1), ["page_size"]),
        (pb.ListQuotasRequest(page_token="x"), ["page_token"]),
    ):
        refused = await failure(callers.accounts.ListQuotas(request, metadata=callers.metadata["ada"]))
        assert (refused.code, refused.fields) == (Code.INVALID_ARGUMENT, fields)


@pytest.mark.attack("beyond-quotas")
async def test_what_waits_is_bounded_without_a_quota(database_url: str, tmp_path: Path) -> None:
    async with served(database_url, tmp_path, max_pending_sessions=3) as service, service.channel() as channel:
        tokens = {
            name: await service.user(name, role=role)
            for name, role in (("root", "ADMIN"), ("ada", "USER"), ("ben", "USER"))
        }
        callers = Callers(channel, service, tokens)
        await callers.create("ada")
        many = session_service_pb2.BatchCreateSessionsRequest(specs=[spec()] * 4)
        made = await callers.sessions.BatchCreateSessions(many, metadata=callers.metadata["ada"])
        assert [item.HasField("accepted") for item in made.results] == [True, True, False, False]
        expected = [("users/ada", "3 of at most 3 sessions of user ada wait already")]
        assert [(item.field, item.description) for item in from_status(made.results[3].refused).violations] == expected
        assert await violations(callers.create("ada")) == expected
        await callers.create("ben")
        # What no longer waits makes room, and a quota takes the place of the bound.
        await callers.sessions.TerminateSession(
            session_service_pb2.TerminateSessionRequest(session=made.results[0].accepted.id),
            metadata=callers.metadata["ada"],
        )
        await callers.create("ada")
        assert await violations(callers.create("ada")) == expected
        await callers.set(USER, "ada", max_pending_sessions=4)
        await callers.create("ada")
        assert [subject for subject, _ in await violations(callers.create("ada"))] == ["users/ada"]
