"""The audit: acts before their answers, denied calls together, no secrets, and for administrators only."""

from __future__ import annotations

import asyncio
import datetime as dt
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from google.protobuf.timestamp_pb2 import Timestamp
from sqlalchemy import text

from retinue.manager.domain.endpoints.model import AppProtocol
from retinue.manager.domain.endpoints.spec import EndpointSettings, ReplicaSpec, RevisionSpec
from retinue.manager.domain.session.spec import KernelSpec, SessionSpec
from retinue.manager.domain.session.states import SessionType
from retinue.manager.identity.tokens import TOKEN_PREFIX, new_secret
from retinue.manager.session.drafts import draft
from retinue.manager.session.submit import create_many
from retinue.manager.store.accounts import accounts, audit
from retinue.manager.store.endpoints import endpoints
from retinue.manager.store.postgres.database import StoreUnavailable
from retinue.manager.v1 import (
    account_service_pb2 as pb,
)
from retinue.manager.v1 import (
    account_service_pb2_grpc,
    endpoint_service_pb2,
    endpoint_service_pb2_grpc,
    fleet_service_pb2,
    fleet_service_pb2_grpc,
    kernel_service_pb2,
    kernel_service_pb2_grpc,
    session_service_pb2,
    session_service_pb2_grpc,
)
from retinue.types.v1 import terminal_pb2
from tests.integration.manager.rig import Service, bearer, failure
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.asyncio(loop_scope="session")

Code = grpc.StatusCode
CREATE_USER = "/retinue.manager.v1.AccountService/CreateUser"
CANARY = "canary-of-a-secret"


class Rig:
    """A manager's services as an administrator, an administrator of a project, and a user call them."""

    def __init__(self, service: Service, channel: grpc.aio.Channel, tokens: dict[str, str]) -> None:
        self.service = service
        self.channel = channel
        self.accounts = account_service_pb2_grpc.AccountServiceStub(channel)
        self.fleet = fleet_service_pb2_grpc.FleetServiceStub(channel)
        self.sessions = session_service_pb2_grpc.SessionServiceStub(channel)
        self.kernels = kernel_service_pb2_grpc.KernelServiceStub(channel)
        self.tokens = tokens

    def as_(self, name: str) -> Any:
        return bearer(self.tokens[name])

    async def listed(self, filter_: str = "", **options: Any) -> list[pb.AuditRecord]:
        request = pb.ListAuditRecordsRequest(filter=filter_, **options)
        return list((await self.accounts.ListAuditRecords(request, metadata=self.as_("root"))).records)

    async def session(self, owner: str, name: str) -> str:
        """A session of a user that waits; returns its id."""
        spec = SessionSpec(
            name=name,
            project="default",
            resource_group="default",
            type=SessionType.BATCH,
            cluster_size=1,
            kernel=KernelSpec(command=("true",), slots={"cpu": "1", "mem": "64m"}),
        )
        async with self.service.database.transaction() as tx:
            made = draft(uuid.uuid4(), owner, spec)
            await create_many(tx, [made])
        return str(made.session.id)

    async def whole_table(self) -> str:
        """Every row of the audit, as text."""
        async with self.service.database.transaction() as tx:
            return "\n".join((await tx.execute(text("SELECT audit_record::text FROM audit_record"))).scalars())


@pytest_asyncio.fixture(loop_scope="session")
async def rig(service: Service) -> AsyncIterator[Rig]:
    tokens = {
        "root": await service.user("root", role="ADMIN", projects=()),
        "ada": await service.user("ada"),
        "pia": await service.user("pia"),
    }
    async with service.database.transaction() as tx:
        await accounts.set_membership(tx, "pia", "default", "ADMIN")
    async with service.channel() as channel:
        yield Rig(service, channel, tokens)


def user(name: str, **options: Any) -> pb.CreateUserRequest:
    return pb.CreateUserRequest(user=pb.User(name=name, **options.pop("user", {})), **options)


async def test_an_act_is_recorded_with_all_that_it_was(rig: Rig) -> None:
    metadata = (*rig.as_("root"), ("x-request-id", "call-7"))
    project = pb.Membership(project="default", role=pb.PROJECT_ROLE_ADMIN)
    request = user("eve", user={"role": pb.USER_ROLE_ADMIN, "memberships": [project]})
    await rig.accounts.CreateUser(request, metadata=metadata)
    (record,) = await rig.listed()
    async with rig.service.database.transaction() as tx:
        (token,) = await accounts.list_tokens(tx, "root", after=None, limit=9)
    assert (record.category, record.principal_kind) == (
        pb.AUDIT_CATEGORY_ADMINISTRATION,
        pb.AUDIT_PRINCIPAL_KIND_USER,
    )
    assert (record.principal, record.role, record.token_id) == ("root", pb.USER_ROLE_ADMIN, str(token.id))
    assert (record.address, record.method, record.request_id) == ("127.0.0.1", CREATE_USER, "call-7")
    assert (record.object_kind, record.object) == ("user", "eve")
    assert record.summary == "user.role=USER_ROLE_ADMIN user.memberships=default/PROJECT_ROLE_ADMIN"
    assert (record.code, record.reason, record.count, record.manager) == ("OK", "", 1, "tests:1")
    assert record.create_time.ToDatetime() <= record.end_time.ToDatetime()


async def test_an_act_that_fails_is_recorded_with_why(rig: Rig) -> None:
    await rig.accounts.CreateUser(user("eve"), metadata=rig.as_("root"))
    failed = await failure(rig.accounts.CreateUser(user("eve"), metadata=rig.as_("root")))
    newest, former = await rig.listed()
    assert (failed.code, newest.code, newest.reason) == (Code.ALREADY_EXISTS, "ALREADY_EXISTS", "NAME_TAKEN")
    assert (newest.object, former.code) == ("eve", "OK")


async def test_reads_and_checks_leave_none(rig: Rig) -> None:
    await rig.accounts.ListUsers(pb.ListUsersRequest(), metadata=rig.as_("root"))
    await rig.accounts.CreateUser(user("eve", validate_only=True), metadata=rig.as_("root"))
    await rig.accounts.GetCaller(pb.GetCallerRequest(), metadata=rig.as_("ada"))
    assert await rig.listed() == []


@pytest.mark.attack("acts-without-a-trace")
async def test_nothing_is_done_without_a_record(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any) -> None:
        raise StoreUnavailable("out of reach")

    with monkeypatch.context() as patched:
        patched.setattr(audit, "begin", broken)
        refused = await failure(rig.accounts.CreateUser(user("eve"), metadata=rig.as_("root")))
    assert refused.code is Code.UNAVAILABLE
    async with rig.service.database.transaction() as tx:
        assert await accounts.get_user(tx, "eve") is None
    with monkeypatch.context() as patched:
        patched.setattr(audit, "end", broken)
        unsure = await failure(rig.accounts.CreateUser(user("eve"), metadata=rig.as_("root")))
    assert unsure.code is Code.UNAVAILABLE
    (record,) = await rig.listed()
    assert (record.object, record.code, record.HasField("end_time")) == ("eve", "", False)
    async with rig.service.database.transaction() as tx:
        assert await accounts.get_user(tx, "eve") is not None


async def test_a_record_is_there_while_the_act_is_under_way(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    began, proceed = asyncio.Event(), asyncio.Event()
    create = accounts.create_user

    async def slow(*arguments: Any) -> Any:
        began.set()
        await proceed.wait()
        return await create(*arguments)

    monkeypatch.setattr(accounts, "create_user", slow)
    call = rig.accounts.CreateUser(user("eve"), metadata=rig.as_("root"))
    await began.wait()
    (record,) = await rig.listed()
    assert (record.object, record.code) == ("eve", "")
    proceed.set()
    await call
    (record,) = await rig.listed()
    assert record.code == "OK"


async def test_a_caller_who_leaves_is_recorded_as_one(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    began = asyncio.Event()

    async def endless(*_: Any) -> None:
        began.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(accounts, "create_user", endless)
    call = rig.accounts.CreateUser(user("eve"), metadata=rig.as_("root"))
    await began.wait()
    call.cancel()
    await eventually(rig.listed, lambda records: [record.code for record in records] == ["CANCELLED"])


async def test_own_accounts_and_own_sessions(rig: Rig) -> None:
    """What users do with their accounts is recorded, what they do with their sessions is in the journal."""
    await rig.accounts.CreateToken(pb.CreateTokenRequest(description=CANARY), metadata=rig.as_("ada"))
    await rig.session("ada", "train")
    request = session_service_pb2.TerminateSessionRequest(session="train")
    await rig.sessions.TerminateSession(request, metadata=rig.as_("ada"))
    (record,) = await rig.listed()
    assert (record.category, record.principal, record.method.rpartition("/")[2]) == (
        pb.AUDIT_CATEGORY_ACCOUNT,
        "ada",
        "CreateToken",
    )
    assert (record.object_kind, record.object) == ("user", "ada")


@pytest.mark.parametrize("administrator", ["root", "pia"])
async def test_administrators_on_sessions_of_others(rig: Rig, administrator: str) -> None:
    session_id = await rig.session("ada", "train")
    await rig.session(administrator, "mine")
    for reference in ("mine", session_id, "nothing"):
        request = session_service_pb2.TerminateSessionRequest(session=reference, force=True)
        call = rig.sessions.TerminateSession(request, metadata=rig.as_(administrator))
        await asyncio.gather(call, return_exceptions=True)
    (record,) = await rig.listed()
    assert (record.category, record.principal) == (pb.AUDIT_CATEGORY_ADMINISTRATION, administrator)
    assert (record.object_kind, record.object, record.code) == ("session", "ada/train", "OK")
    assert record.summary == "force=true"


async def test_many_sessions_of_others_by_one_call(rig: Rig) -> None:
    await rig.session("root", "mine")
    for name in ("one", "two", "three"):
        await rig.session("ada", name)
    named = ["mine", "ada/one", "ada/two", "ada/nothing", "ada/one"]
    request = session_service_pb2.BatchTerminateSessionsRequest(sessions=named)
    await rig.sessions.BatchTerminateSessions(request, metadata=rig.as_("root"))
    (record,) = await rig.listed()
    assert (record.object, record.summary, record.code) == ("ada/one,ada/two", "of_others=2", "OK")
    own = session_service_pb2.BatchTerminateSessionsRequest(sessions=["three"])
    await rig.sessions.BatchTerminateSessions(own, metadata=rig.as_("ada"))
    assert len(await rig.listed()) == 1


async def test_administrators_on_endpoints_of_others(rig: Rig) -> None:
    replicas = SessionSpec("llm", "default", "default", SessionType.INFERENCE)
    spec = RevisionSpec(replicas, ReplicaSpec(8000, AppProtocol.HTTP2))
    async with rig.service.database.transaction() as tx:
        for name, owner in (("llm", "ada"), ("own", "root")):
            new = endpoints.NewEndpoint(
                uuid.uuid4(), name, "default", owner, "default", f"{name}-x", EndpointSettings(), 1, spec
            )
            assert await endpoints.create(tx, new)
    stub = endpoint_service_pb2_grpc.EndpointServiceStub(rig.channel)
    for name in ("default/llm", "own", "nothing"):
        request = endpoint_service_pb2.SetScalingFloorRequest(endpoint=name, replicas=0)
        await asyncio.gather(stub.SetScalingFloor(request, metadata=rig.as_("root")), return_exceptions=True)
    (record,) = await rig.listed()
    assert (record.category, record.object_kind, record.object) == (
        pb.AUDIT_CATEGORY_ADMINISTRATION,
        "endpoint",
        "default/llm",
    )
    assert record.code


async def test_streams_into_sessions_of_others(rig: Rig) -> None:
    """The session is in the first message; its output and its files are another user's."""
    await rig.session("ada", "train")
    await rig.session("root", "mine")
    kernels = kernel_service_pb2
    for name in ("mine", "ada/train"):
        spec = terminal_pb2.CommandSpec(command=["echo", CANARY], environment={"KEY": CANARY})
        start = kernels.AttachStart(session=name, spec=spec)
        port = kernels.OpenPortStart(session=name, port="8080")
        for call in (
            rig.kernels.Attach(iter([kernels.AttachRequest(start=start)]), metadata=rig.as_("root")),
            rig.kernels.OpenPort(iter([kernels.OpenPortRequest(start=port)]), metadata=rig.as_("root")),
            rig.kernels.DownloadFiles(kernels.DownloadFilesRequest(session=name), metadata=rig.as_("root")),
        ):
            with pytest.raises(grpc.aio.AioRpcError):
                async for _ in call:
                    pass
    records = await rig.listed()
    assert {record.method.rpartition("/")[2] for record in records} == {"Attach", "OpenPort", "DownloadFiles"}
    assert len(records) == 3
    assert {(record.object, record.code == "OK") for record in records} == {("ada/train", False)}
    assert all(record.code for record in records)
    assert CANARY not in await rig.whole_table()
    # A stream without any message is refused as before.
    with pytest.raises(grpc.aio.AioRpcError):
        async for _ in rig.kernels.Attach(iter(()), metadata=rig.as_("root")):
            pass


async def test_no_secret_is_recorded(rig: Rig) -> None:
    root = rig.as_("root")
    made = await rig.accounts.CreateToken(pb.CreateTokenRequest(user="ada", description=CANARY), metadata=root)
    join = await rig.fleet.CreateJoinToken(fleet_service_pb2.CreateJoinTokenRequest(), metadata=root)
    secrets = [CANARY, made.secret, join.token, *rig.tokens.values()]
    # Where an id, a name or a number belongs.
    for secret in secrets:
        for call in (
            rig.accounts.RevokeToken(pb.RevokeTokenRequest(token_id=secret), metadata=root),
            rig.accounts.RevokeToken(pb.RevokeTokenRequest(token_id=secret[:20]), metadata=root),
            rig.accounts.CreateSshKey(pb.CreateSshKeyRequest(public_key=secret, description=secret), metadata=root),
            rig.accounts.GetCaller(pb.GetCallerRequest(), metadata=bearer(secret)),
            rig.accounts.GetCaller(pb.GetCallerRequest(), metadata=(("authorization", secret),)),
        ):
            await asyncio.gather(call, return_exceptions=True)
    for secret in secrets[1:]:
        named = rig.accounts.DeleteUser(pb.DeleteUserRequest(name=f"x {secret}"), metadata=root)
        joined = rig.accounts.SetMembership(pb.SetMembershipRequest(user="ada", project=secret), metadata=root)
        await asyncio.gather(named, joined, return_exceptions=True)
    await rig.service.auditor.write()
    table = await rig.whole_table()
    assert "CreateToken" in table
    assert "(hidden)" in table
    for secret in secrets:
        assert secret not in table
        assert secret[:20] not in table


@pytest.mark.attack("acts-without-a-trace")
async def test_denied_calls_are_counted(rig: Rig) -> None:
    for _ in range(3):
        await failure(rig.accounts.CreateUser(user("eve"), metadata=rig.as_("ada")))
    await failure(rig.accounts.GetCaller(pb.GetCallerRequest()))
    assert await rig.listed() == []
    await rig.service.auditor.write()
    by_reason = {record.reason: record for record in await rig.listed('category = "DENIAL"')}
    assert set(by_reason) == {"METHOD_DENIED", "CREDENTIALS_MISSING"}
    denied, unknown = by_reason["METHOD_DENIED"], by_reason["CREDENTIALS_MISSING"]
    # All in one minute, or those after it in the next.
    assert sum(record.count for record in await rig.listed('reason = "METHOD_DENIED"')) == 3
    assert (denied.principal, denied.code, denied.method) == ("ada", "PERMISSION_DENIED", CREATE_USER)
    assert (unknown.principal_kind, unknown.principal, unknown.address) == (
        pb.AUDIT_PRINCIPAL_KIND_UNSPECIFIED,
        "",
        "127.0.0.1",
    )


@pytest.mark.attack("acts-without-a-trace")
async def test_ten_thousand_wrong_tokens_are_a_row_a_minute(rig: Rig) -> None:
    # Otherwise the connection of who makes so many is ended before.
    assert await rig.listed() == []
    wrong = [new_secret(TOKEN_PREFIX) for _ in range(100)]
    codes: Counter[grpc.StatusCode] = Counter()
    for _ in range(100):
        calls = (rig.accounts.GetCaller(pb.GetCallerRequest(), metadata=bearer(secret)) for secret in wrong)
        for ended in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(ended, grpc.aio.AioRpcError)
            codes[ended.code()] += 1
        await rig.service.auditor.write()
    # Within the limit of an address, and above it; none waits for the database until it is refused.
    assert set(codes) == {Code.UNAUTHENTICATED, Code.RESOURCE_EXHAUSTED}
    records = await rig.listed(page_size=500)
    assert sum(record.count for record in records) == codes.total() == 10_000
    assert {(record.reason, record.code) for record in records} == {("TOKEN_INVALID", "UNAUTHENTICATED")}
    minutes = {record.create_time.seconds for record in records}
    assert len(minutes) == len(records)
    assert all(seconds % 60 == 0 for seconds in minutes)


async def test_denied_calls_wait_for_the_database(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any) -> None:
        raise StoreUnavailable("out of reach")

    with monkeypatch.context() as patched:
        patched.setattr(audit, "count_denials", broken)
        await failure(rig.accounts.GetCaller(pb.GetCallerRequest()))
        await rig.service.auditor.write()
    assert await rig.listed() == []
    await rig.service.auditor.write()
    await rig.service.auditor.write()
    (record,) = await rig.listed()
    assert record.count == 1


async def test_only_administrators_read_it(rig: Rig) -> None:
    for name in ("ada", "pia"):
        denied = await failure(rig.accounts.ListAuditRecords(pb.ListAuditRecordsRequest(), metadata=rig.as_(name)))
        assert (denied.code, denied.reason) == (Code.PERMISSION_DENIED, "METHOD_DENIED")


async def test_pages_filters_and_times(rig: Rig) -> None:
    root = rig.as_("root")
    for name in ("u1", "u2", "u3"):
        await rig.accounts.CreateUser(user(name), metadata=root)
    await failure(rig.accounts.DeleteUser(pb.DeleteUserRequest(name="none"), metadata=root))
    await rig.accounts.CreateToken(pb.CreateTokenRequest(), metadata=rig.as_("ada"))
    found: list[str] = []
    token = ""
    while True:
        page = await rig.accounts.ListAuditRecords(
            pb.ListAuditRecordsRequest(page_size=2, page_token=token), metadata=root
        )
        found += [record.object for record in page.records]
        token = page.next_page_token
        if not token:
            break
    assert found == ["ada", "none", "u3", "u2", "u1"]
    expected = {
        'principal = "ada"': ["ada"],
        'method = "CreateUser" AND object != "u2"': ["u3", "u1"],
        f'method = "{CREATE_USER}" AND object = "u2"': ["u2"],
        'method != "CreateUser"': ["ada", "none"],
        'code != "OK"': ["none"],
        'code = "NOT_FOUND" AND reason = "NOT_FOUND"': ["none"],
        'category = "ACCOUNT"': ["ada"],
        'category = "AUDIT_CATEGORY_ACCOUNT"': ["ada"],
        'object_kind = "user" AND address = "10.0.0.1"': [],
    }
    for terms, names in expected.items():
        assert [record.object for record in await rig.listed(terms)] == names, terms
    second = (await rig.listed('object = "u2"'))[0].create_time
    assert [record.object for record in await rig.listed(start_time=second)] == ["ada", "none", "u3", "u2"]
    assert [record.object for record in await rig.listed(end_time=second)] == ["u1"]
    unknown = await failure(
        rig.accounts.ListAuditRecords(pb.ListAuditRecordsRequest(filter='summary = "x"'), metadata=root)
    )
    assert unknown.fields == ["filter"]
    wrong = pb.ListAuditRecordsRequest(start_time=Timestamp(nanos=-1), end_time=Timestamp(seconds=1 << 60))
    assert (await failure(rig.accounts.ListAuditRecords(wrong, metadata=root))).fields == ["start_time", "end_time"]


async def test_a_command_on_the_machine_is_recorded(rig: Rig) -> None:
    async with rig.service.database.transaction() as tx:
        await tx.execute(audit.recording_command("create-admin", "user", "root"))
    (record,) = await rig.listed()
    assert (record.principal_kind, record.principal) == (pb.AUDIT_PRINCIPAL_KIND_HOST, "root")
    assert (record.method, record.object, record.code) == ("retinue-manager create-admin", "root", "OK")


async def test_records_are_removed_by_age_and_by_number(rig: Rig) -> None:
    async with rig.service.database.transaction() as tx:
        await tx.execute(
            text("""
                INSERT INTO audit_record (id, category, method, object, create_time)
                SELECT gen_random_uuid(), c.category, '/m', c.category || n, now() - make_interval(days => n)
                FROM unnest(ARRAY['ADMINISTRATION', 'ACCOUNT', 'DENIAL']) AS c(category), generate_series(1, 5) AS n
                WHERE c.category <> 'ACCOUNT' OR n <= 2
            """)
        )

    async def forget(age: dt.timedelta | None, most: int) -> int:
        async with rig.service.database.transaction() as tx:
            return await audit.forget(tx, age, most)

    async def left() -> set[str]:
        return {record.object for record in await rig.listed()}

    assert await forget(None, 5) == 0
    # Each category by itself: many denials push out no act.
    assert await forget(None, 3) == 4
    assert await left() == {
        "ACCOUNT1",
        "ACCOUNT2",
        *(f"{c}{n}" for c in ("ADMINISTRATION", "DENIAL") for n in (1, 2, 3)),
    }
    assert await forget(dt.timedelta(days=1, hours=12), 3) == 5
    assert await left() == {"ACCOUNT1", "ADMINISTRATION1", "DENIAL1"}
    assert await forget(dt.timedelta(days=1, hours=12), 3) == 0
