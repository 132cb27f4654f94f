"""The AccountService over real TLS and a real database: what it does, for whom, and how it refuses."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration
from sqlalchemy import text

from retinue.manager.api.admin import accounts as accounts_api
from retinue.manager.store.accounts import accounts as store
from retinue.manager.store.journal import journal
from retinue.manager.store.tables import Session
from retinue.manager.v1 import account_service_pb2 as pb
from retinue.manager.v1 import account_service_pb2_grpc, session_pb2, session_service_pb2, session_service_pb2_grpc
from tests.integration.manager.rig import Service, bearer, failure
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.manager.store.postgres.database import Database

pytestmark = pytest.mark.asyncio(loop_scope="session")

Stub: TypeAlias = "account_service_pb2_grpc.AccountServiceAsyncStub"
Code = grpc.StatusCode
REQUEST_ID = "0a1f5a9c-96b8-4c1e-8ba4-3f1d7a1f3b52"


class Accounts:
    """The service as an administrator and as a user see it."""

    def __init__(self, stub: Stub, service: Service, admin: str, user: str) -> None:
        self.stub = stub
        self.service = service
        self.admin = bearer(admin)
        self.user = bearer(user)


@pytest_asyncio.fixture(loop_scope="session")
async def accounts(service: Service) -> AsyncIterator[Accounts]:
    admin = await service.user("root", role="ADMIN", projects=())
    user = await service.user("ada")
    async with service.channel() as channel:
        yield Accounts(account_service_pb2_grpc.AccountServiceStub(channel), service, admin, user)


async def test_caller(accounts: Accounts) -> None:
    caller = (await accounts.stub.GetCaller(pb.GetCallerRequest(), metadata=accounts.user)).user
    assert (caller.name, caller.role) == ("ada", pb.USER_ROLE_USER)
    assert [(m.project, m.role) for m in caller.memberships] == [("default", pb.PROJECT_ROLE_MEMBER)]
    assert caller.HasField("create_time")
    admin = (await accounts.stub.GetCaller(pb.GetCallerRequest(), metadata=accounts.admin)).user
    assert (admin.name, admin.role, list(admin.memberships)) == ("root", pb.USER_ROLE_ADMIN, [])


async def test_projects(accounts: Accounts) -> None:
    stub, admin = accounts.stub, accounts.admin
    for name in ("p3", "p1", "p2"):
        await stub.CreateProject(pb.CreateProjectRequest(project=pb.Project(name=name)), metadata=admin)
    taken = await failure(stub.CreateProject(pb.CreateProjectRequest(project=pb.Project(name="p1")), metadata=admin))
    assert (taken.code, taken.reason, taken.metadata) == (
        Code.ALREADY_EXISTS,
        "NAME_TAKEN",
        {"kind": "project", "name": "p1"},
    )
    first = await stub.ListProjects(pb.ListProjectsRequest(page_size=3), metadata=admin)
    assert [project.name for project in first.projects] == ["default", "p1", "p2"]
    request = pb.ListProjectsRequest(page_size=3, page_token=first.next_page_token)
    last = await stub.ListProjects(request, metadata=admin)
    assert ([project.name for project in last.projects], last.next_page_token) == (["p3"], "")
    # A user sees the own ones only, and the page token of another is worth nothing.
    own = await stub.ListProjects(pb.ListProjectsRequest(), metadata=accounts.user)
    assert [project.name for project in own.projects] == ["default"]
    stolen = await failure(stub.ListProjects(request, metadata=accounts.user))
    assert (stolen.code, stolen.fields) == (Code.INVALID_ARGUMENT, ["page_token"])
    await stub.DeleteProject(pb.DeleteProjectRequest(name="p1"), metadata=admin)
    gone = await failure(stub.DeleteProject(pb.DeleteProjectRequest(name="p1"), metadata=admin))
    assert (gone.code, gone.reason, gone.metadata) == (Code.NOT_FOUND, "NOT_FOUND", {"kind": "project", "id": "p1"})


async def test_what_is_in_use_stays(accounts: Accounts) -> None:
    async with accounts.service.database.transaction() as tx:
        session = Session(
            id=uuid.uuid4(),
            name="s",
            owner="ada",
            project="default",
            resource_group="default",
            type="BATCH",
            cluster_mode="SINGLE_NODE",
            cluster_size=1,
            priority=10,
            state="RUNNING",
        )
        tx.add(session)
    stub, admin = accounts.stub, accounts.admin
    for call in (
        stub.DeleteProject(pb.DeleteProjectRequest(name="default"), metadata=admin),
        stub.DeleteUser(pb.DeleteUserRequest(name="ada"), metadata=admin),
    ):
        failed = await failure(call)
        assert (failed.code, failed.reason) == (Code.FAILED_PRECONDITION, "IN_USE")
    async with accounts.service.database.transaction() as tx:
        await tx.execute(text("UPDATE session SET state = 'TERMINATED'"))
    await stub.DeleteUser(pb.DeleteUserRequest(name="ada"), metadata=admin)
    await stub.DeleteProject(pb.DeleteProjectRequest(name="default"), metadata=admin)
    late = await failure(stub.GetCaller(pb.GetCallerRequest(), metadata=accounts.user))
    assert (late.code, late.reason) == (Code.UNAUTHENTICATED, "TOKEN_INVALID")


async def test_users_and_memberships(accounts: Accounts) -> None:
    stub, admin = accounts.stub, accounts.admin
    wanted = pb.User(
        name="bob",
        role=pb.USER_ROLE_ADMIN,
        memberships=[pb.Membership(project="default", role=pb.PROJECT_ROLE_ADMIN)],
    )
    shown = (await stub.CreateUser(pb.CreateUserRequest(user=wanted, validate_only=True), metadata=admin)).user
    assert (shown.name, shown.memberships) == (wanted.name, wanted.memberships)
    made = (await stub.CreateUser(pb.CreateUserRequest(user=wanted), metadata=admin)).user
    assert (made.role, made.memberships) == (wanted.role, wanted.memberships)
    taken = await failure(stub.CreateUser(pb.CreateUserRequest(user=wanted), metadata=admin))
    assert taken.reason == "NAME_TAKEN"
    wanted.name, wanted.memberships[0].project = "eve", "nowhere"
    missing = await failure(stub.CreateUser(pb.CreateUserRequest(user=wanted), metadata=admin))
    assert (missing.code, missing.metadata) == (Code.NOT_FOUND, {"kind": "project", "id": "nowhere"})
    for role in (pb.PROJECT_ROLE_MEMBER, pb.PROJECT_ROLE_MEMBER):
        request = pb.SetMembershipRequest(user="bob", project="default", role=role)
        answer = await stub.SetMembership(request, metadata=admin)
        assert [m.role for m in answer.user.memberships] == [role]
        async with accounts.service.database.transaction() as tx:
            at = await journal.head(tx)
        assert (answer.position.revision, answer.position.incarnation) == (at.revision, at.incarnation)
    unspecified = await failure(
        stub.SetMembership(pb.SetMembershipRequest(user="bob", project="default"), metadata=admin)
    )
    assert (unspecified.code, unspecified.fields) == (Code.INVALID_ARGUMENT, ["role"])
    kept = await stub.ListUsers(pb.ListUsersRequest(), metadata=admin)
    assert [len(user.memberships) for user in kept.users if user.name == "bob"] == [1]
    for _ in range(2):
        removal = pb.DeleteMembershipRequest(user="bob", project="default")
        assert list((await stub.DeleteMembership(removal, metadata=admin)).user.memberships) == []
    for user, project in (("bob", "nowhere"), ("nobody", "default")):
        request = pb.SetMembershipRequest(user=user, project=project, role=pb.PROJECT_ROLE_MEMBER)
        assert (await failure(stub.SetMembership(request, metadata=admin))).code is Code.NOT_FOUND
        removal = pb.DeleteMembershipRequest(user=user, project=project)
        assert (await failure(stub.DeleteMembership(removal, metadata=admin))).code is Code.NOT_FOUND
    listed = await stub.ListUsers(pb.ListUsersRequest(page_size=2), metadata=admin)
    assert [user.name for user in listed.users] == ["ada", "bob"]
    rest = await stub.ListUsers(pb.ListUsersRequest(page_size=2, page_token=listed.next_page_token), metadata=admin)
    assert [user.name for user in rest.users] == ["root"]


async def test_one_user_and_one_project(accounts: Accounts) -> None:
    stub, admin = accounts.stub, accounts.admin
    assert (await stub.GetUser(pb.GetUserRequest(name="ada"), metadata=admin)).user.name == "ada"
    for caller in (accounts.user, admin):
        found = await stub.GetProject(pb.GetProjectRequest(name="default"), metadata=caller)
        assert found.project.name == "default"
    await stub.CreateProject(pb.CreateProjectRequest(project=pb.Project(name="other")), metadata=admin)
    assert (await stub.GetProject(pb.GetProjectRequest(name="other"), metadata=admin)).project.HasField("create_time")
    denied = await failure(stub.GetUser(pb.GetUserRequest(name="ada"), metadata=accounts.user))
    assert denied.code is Code.PERMISSION_DENIED
    for refused in (
        stub.GetUser(pb.GetUserRequest(name="nobody"), metadata=admin),
        stub.GetProject(pb.GetProjectRequest(name="nowhere"), metadata=admin),
        stub.GetProject(pb.GetProjectRequest(name="other"), metadata=accounts.user),
    ):
        assert (await failure(refused)).code is Code.NOT_FOUND


async def test_tokens(accounts: Accounts) -> None:
    stub = accounts.stub
    made = await stub.CreateToken(
        pb.CreateTokenRequest(description="laptop", ttl=Duration(seconds=3600)), metadata=accounts.user
    )
    assert made.token.user == "ada"
    lifetime = made.token.expire_time.ToDatetime() - made.token.create_time.ToDatetime()
    assert lifetime.total_seconds() == 3600
    assert (await stub.GetCaller(pb.GetCallerRequest(), metadata=bearer(made.secret))).user.name == "ada"
    async with accounts.service.database.transaction() as tx:
        stored = await tx.execute(text("SELECT string_agg(row_to_json(token)::text, '') FROM token"))
        assert made.secret not in stored.scalar_one()
    listed = await stub.ListTokens(pb.ListTokensRequest(page_size=1), metadata=accounts.user)
    assert listed.tokens[0].description == "laptop"
    second = await stub.ListTokens(
        pb.ListTokensRequest(page_size=1, page_token=listed.next_page_token), metadata=accounts.user
    )
    assert (len(second.tokens), second.next_page_token) == (1, "")
    for _ in range(2):
        revoked = await stub.RevokeToken(pb.RevokeTokenRequest(token_id=made.token.id), metadata=accounts.user)
        assert revoked.token.HasField("revoke_time")
    refused = await failure(stub.GetCaller(pb.GetCallerRequest(), metadata=bearer(made.secret)))
    assert (refused.code, refused.reason) == (Code.UNAUTHENTICATED, "TOKEN_INVALID")


async def test_tokens_of_others(accounts: Accounts) -> None:
    stub, user, admin = accounts.stub, accounts.user, accounts.admin
    # Whether the other exists makes no difference.
    for name in ("root", "nobody"):
        for call in (
            stub.CreateToken(pb.CreateTokenRequest(user=name), metadata=user),
            stub.ListTokens(pb.ListTokensRequest(user=name), metadata=user),
        ):
            refused = await failure(call)
            assert (refused.code, refused.reason) == (Code.PERMISSION_DENIED, "METHOD_DENIED")
    of_root = (await stub.ListTokens(pb.ListTokensRequest(), metadata=admin)).tokens[0].id
    of_no_user = str(uuid.uuid4())
    texts = set()
    for token_id in (of_root, of_no_user):
        hidden = await failure(stub.RevokeToken(pb.RevokeTokenRequest(token_id=token_id), metadata=user))
        assert (hidden.code, hidden.reason) == (Code.NOT_FOUND, "NOT_FOUND")
        texts.add(hidden.text.replace(token_id, "ID").split("debug_error_string")[0])
    assert len(texts) == 1
    made = await stub.CreateToken(pb.CreateTokenRequest(user="ada"), metadata=admin)
    assert made.token.user == "ada"
    assert (
        await failure(stub.CreateToken(pb.CreateTokenRequest(user="nobody"), metadata=admin))
    ).code is Code.NOT_FOUND
    await stub.RevokeToken(pb.RevokeTokenRequest(token_id=made.token.id), metadata=admin)


@pytest.mark.attack("names-of-former-users")
async def test_names_of_the_deleted_are_not_used_again(accounts: Accounts) -> None:
    stub, admin = accounts.stub, accounts.admin
    channel = accounts.service.channel()
    sessions: session_service_pb2_grpc.SessionServiceAsyncStub = session_service_pb2_grpc.SessionServiceStub(channel)
    spec = session_pb2.SessionSpec(
        name="private",
        type=session_pb2.SESSION_TYPE_BATCH,
        kernel=session_pb2.KernelSpec(command=["true"], environment={"PASSWORD": "secret"}),
    )
    made = await sessions.CreateSession(
        session_service_pb2.CreateSessionRequest(spec=spec, request_id=REQUEST_ID), metadata=accounts.user
    )
    await sessions.TerminateSession(
        session_service_pb2.TerminateSessionRequest(session=made.session.id), metadata=accounts.user
    )
    await stub.DeleteUser(pb.DeleteUserRequest(name="ada"), metadata=admin)
    await stub.DeleteProject(pb.DeleteProjectRequest(name="default"), metadata=admin)
    for validate_only in (True, False):
        for kind, call in (
            (
                "user",
                stub.CreateUser(
                    pb.CreateUserRequest(user=pb.User(name="ada"), validate_only=validate_only), metadata=admin
                ),
            ),
            (
                "project",
                stub.CreateProject(
                    pb.CreateProjectRequest(project=pb.Project(name="default"), validate_only=validate_only),
                    metadata=admin,
                ),
            ),
        ):
            refused = await failure(call)
            assert (refused.code, refused.reason) == (Code.ALREADY_EXISTS, "NAME_RETIRED")
            assert refused.metadata["kind"] == kind
    # A user and a project may have the same name, and each is retired by itself.
    await stub.CreateProject(pb.CreateProjectRequest(project=pb.Project(name="ada")), metadata=admin)
    left = await failure(stub.GetCaller(pb.GetCallerRequest(), metadata=accounts.user))
    assert left.reason == "TOKEN_INVALID"
    await channel.close()


async def test_a_name_is_not_taken_while_it_is_being_retired(accounts: Accounts) -> None:
    """Who creates while another deletes waits for that, and sees it then."""
    database = accounts.service.database
    async with database.transaction() as deleting:
        await store.delete_user(deleting, "ada")
        await deleting.flush()
        creating = asyncio.ensure_future(
            failure(accounts.stub.CreateUser(pb.CreateUserRequest(user=pb.User(name="ada")), metadata=accounts.admin))
        )
        await blocked(database)
    assert (await creating).reason == "NAME_RETIRED"


async def blocked(database: Database) -> None:
    """Returns when a statement waits for a lock."""

    async def waiting() -> int:
        async with database.transaction() as tx:
            found = await tx.execute(text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))
            number: int = found.scalar_one()
            return number

    await eventually(waiting)


@pytest.mark.attack("tokens-from-tokens")
async def test_a_token_ends_with_the_one_it_was_made_with(accounts: Accounts) -> None:
    stub = accounts.stub
    hour = await stub.CreateToken(pb.CreateTokenRequest(ttl=Duration(seconds=3600)), metadata=accounts.user)
    metadata = bearer(hour.secret)
    longer = await failure(stub.CreateToken(pb.CreateTokenRequest(ttl=Duration(seconds=3700)), metadata=metadata))
    assert (longer.code, longer.fields) == (Code.INVALID_ARGUMENT, ["ttl"])
    unbounded = await stub.CreateToken(pb.CreateTokenRequest(), metadata=metadata)
    assert unbounded.token.expire_time == hour.token.expire_time
    assert unbounded.token.parent_id == hour.token.id
    shorter = await stub.CreateToken(pb.CreateTokenRequest(ttl=Duration(seconds=60)), metadata=bearer(unbounded.secret))
    assert shorter.token.expire_time.ToSeconds() < hour.token.expire_time.ToSeconds()
    # What an administrator makes for another user stands by itself.
    other = await stub.CreateToken(pb.CreateTokenRequest(user="ada"), metadata=accounts.admin)
    assert (other.token.parent_id, other.token.HasField("expire_time")) == ("", False)
    await stub.RevokeToken(pb.RevokeTokenRequest(token_id=hour.token.id), metadata=accounts.user)
    for secret in (hour.secret, unbounded.secret, shorter.secret):
        refused = await failure(stub.GetCaller(pb.GetCallerRequest(), metadata=bearer(secret)))
        assert refused.reason == "TOKEN_INVALID"
    for alive in (accounts.user, bearer(other.secret)):
        assert (await stub.GetCaller(pb.GetCallerRequest(), metadata=alive)).user.name == "ada"


async def test_no_token_is_made_with_one_that_is_being_revoked(accounts: Accounts) -> None:
    stub, database = accounts.stub, accounts.service.database
    made = await stub.CreateToken(pb.CreateTokenRequest(), metadata=accounts.user)
    metadata = bearer(made.secret)
    assert (await stub.GetCaller(pb.GetCallerRequest(), metadata=metadata)).user.name == "ada"
    async with database.transaction() as tx:
        await store.get_user(tx, "ada", lock=True)
        await store.revoke_token(tx, uuid.UUID(made.token.id))
        creating = asyncio.ensure_future(failure(stub.CreateToken(pb.CreateTokenRequest(), metadata=metadata)))
        await blocked(database)
    assert (await creating).reason == "TOKEN_INVALID"


@pytest.mark.attack("tokens-from-tokens")
async def test_a_user_has_so_many_tokens(accounts: Accounts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts_api, "MAX_TOKENS", 3)
    stub = accounts.stub
    made = [await stub.CreateToken(pb.CreateTokenRequest(), metadata=accounts.user) for _ in range(2)]
    many = await failure(stub.CreateToken(pb.CreateTokenRequest(), metadata=accounts.user))
    assert (many.code, many.reason) == (Code.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED")
    await stub.RevokeToken(pb.RevokeTokenRequest(token_id=made[0].token.id), metadata=accounts.user)
    await stub.CreateToken(pb.CreateTokenRequest(), metadata=accounts.user)


async def test_whom_the_files_of_a_user_belong_to(accounts: Accounts) -> None:
    stub, admin = accounts.stub, accounts.admin
    owner = pb.FileOwner(uid=1500, gid=1501)
    wanted = pb.User(name="ida", file_owner=owner)
    for only_check in (True, False):
        request = pb.CreateUserRequest(user=wanted, validate_only=only_check)
        assert (await stub.CreateUser(request, metadata=admin)).user.file_owner == owner
    for number in (-1, 0):
        refused = pb.SetFileOwnerRequest(user="ida", file_owner=pb.FileOwner(uid=7, gid=number))
        assert (await failure(stub.SetFileOwner(refused, metadata=admin))).fields == ["file_owner.gid"]
        refused_user = pb.CreateUserRequest(user=pb.User(name="eve", file_owner=pb.FileOwner(uid=number, gid=7)))
        assert (await failure(stub.CreateUser(refused_user, metadata=admin))).fields == ["user.file_owner.uid"]
    missing = pb.SetFileOwnerRequest(user="nobody", file_owner=owner)
    assert (await failure(stub.SetFileOwner(missing, metadata=admin))).code is Code.NOT_FOUND
    for change in (pb.FileOwner(uid=7, gid=8), None):
        answer = await stub.SetFileOwner(pb.SetFileOwnerRequest(user="ida", file_owner=change), metadata=admin)
        (kept,) = [
            user for user in (await stub.ListUsers(pb.ListUsersRequest(), metadata=admin)).users if user.name == "ida"
        ]
        for user in (answer.user, kept):
            assert (user.file_owner if user.HasField("file_owner") else None) == change


async def test_a_role_is_given_and_taken(accounts: Accounts) -> None:
    stub, admin = accounts.stub, accounts.admin

    async def give(user: str, role: pb.UserRole.ValueType) -> pb.User:
        return (await stub.SetUserRole(pb.SetUserRoleRequest(user=user, role=role), metadata=admin)).user

    for _ in range(2):
        assert (await give("ada", pb.USER_ROLE_ADMIN)).role == pb.USER_ROLE_ADMIN
    # It counts for tokens that there are.
    await stub.ListUsers(pb.ListUsersRequest(), metadata=accounts.user)
    assert (await give("ada", pb.USER_ROLE_USER)).role == pb.USER_ROLE_USER
    refused = await failure(stub.ListUsers(pb.ListUsersRequest(), metadata=accounts.user))
    assert refused.reason == "METHOD_DENIED"
    missing = pb.SetUserRoleRequest(user="nobody", role=pb.USER_ROLE_ADMIN)
    assert (await failure(stub.SetUserRole(missing, metadata=admin))).code is Code.NOT_FOUND
    last = await failure(give("root", pb.USER_ROLE_USER))
    assert (last.code, last.reason) == (Code.FAILED_PRECONDITION, "STATE_FORBIDS")
    assert (await give("root", pb.USER_ROLE_ADMIN)).role == pb.USER_ROLE_ADMIN


async def test_administrators_do_not_take_the_role_from_each_other(accounts: Accounts) -> None:
    stub = accounts.stub
    await stub.SetUserRole(pb.SetUserRoleRequest(user="ada", role=pb.USER_ROLE_ADMIN), metadata=accounts.admin)
    calls = (
        stub.SetUserRole(pb.SetUserRoleRequest(user=user, role=pb.USER_ROLE_USER), metadata=caller)
        for user, caller in (("ada", accounts.admin), ("root", accounts.user))
    )
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert len([answer for answer in answers if isinstance(answer, pb.SetUserRoleResponse)]) == 1


ADMIN_ONLY: list[tuple[str, Any]] = [
    ("CreateProject", pb.CreateProjectRequest(project=pb.Project(name="p"))),
    ("DeleteProject", pb.DeleteProjectRequest(name="default")),
    ("CreateUser", pb.CreateUserRequest(user=pb.User(name="eve", role=pb.USER_ROLE_ADMIN))),
    ("ListUsers", pb.ListUsersRequest()),
    ("DeleteUser", pb.DeleteUserRequest(name="root")),
    ("SetMembership", pb.SetMembershipRequest(user="ada", project="default", role=pb.PROJECT_ROLE_ADMIN)),
    ("DeleteMembership", pb.DeleteMembershipRequest(user="ada", project="default")),
    ("SetFileOwner", pb.SetFileOwnerRequest(user="ada", file_owner=pb.FileOwner(uid=1, gid=1))),
    ("SetUserRole", pb.SetUserRoleRequest(user="ada", role=pb.USER_ROLE_ADMIN)),
]


@pytest.mark.attack("self-promotion")
@pytest.mark.parametrize(("method", "request_message"), ADMIN_ONLY, ids=[method for method, _ in ADMIN_ONLY])
async def test_users_do_not_administer(accounts: Accounts, method: str, request_message: Any) -> None:
    refused = await failure(getattr(accounts.stub, method)(request_message, metadata=accounts.user))
    assert (refused.code, refused.reason) == (Code.PERMISSION_DENIED, "METHOD_DENIED")


@pytest.mark.attack("reused-request-ids", "concurrent-creates")
async def test_32_creates_with_one_request_id(accounts: Accounts) -> None:
    request = pb.CreateUserRequest(user=pb.User(name="bob"), request_id=str(uuid.uuid4()))
    calls = (accounts.stub.CreateUser(request, metadata=accounts.admin) for _ in range(32))
    answers = {answer.SerializeToString() for answer in await asyncio.gather(*calls)}
    assert len(answers) == 1
    request.user.role = pb.USER_ROLE_ADMIN
    reused = await failure(accounts.stub.CreateUser(request, metadata=accounts.admin))
    assert (reused.code, reused.reason) == (Code.INVALID_ARGUMENT, "REQUEST_ID_REUSED")
