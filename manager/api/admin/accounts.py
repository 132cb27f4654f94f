"""The AccountService: projects, users, memberships, tokens, quotas, idle overrides and the audit."""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import grpc.aio

from retinue.manager.api.admin.audit import list_audit_records
from retinue.manager.api.admin.quota_convert import KINDS, checked_limits, quota_message
from retinue.manager.api.admin.ssh_keys import add_ssh_key, list_ssh_keys, remove_ssh_key
from retinue.manager.api.sessions.idle_convert import checked_override, override_message
from retinue.manager.api.streams.gateway_access import create_console_ticket
from retinue.manager.domain.errors import (
    MAX_NAMES,
    InvalidRequest,
    MethodDenied,
    NameRetired,
    NameTaken,
    NotFound,
    QuotaExceeded,
    TokenInvalid,
)
from retinue.manager.domain.idle.policy import NOTHING
from retinue.manager.domain.preconditions import InUse, StateForbids
from retinue.manager.domain.session.mounts import FileOwner, check_file_owner
from retinue.manager.identity.principal import ADMIN, USER, Principal
from retinue.manager.identity.tokens import MAX_TOKENS, TOKEN_PREFIX, hash_secret, new_secret
from retinue.manager.server.etags import check_etag
from retinue.manager.server.fields import Violations
from retinue.manager.server.interceptors import current_principal
from retinue.manager.server.journal_positions import with_position
from retinue.manager.server.pages import open_page
from retinue.manager.store.accounts import accounts
from retinue.manager.store.accounts.accounts import MembershipRecord, ProjectRecord, TokenRecord, UserRecord
from retinue.manager.store.endpoints import endpoint_tokens, endpoints
from retinue.manager.store.fleet import groups
from retinue.manager.store.journal import requests
from retinue.manager.store.placement import quotas
from retinue.manager.store.placement.quotas import Limits, QuotaRecord
from retinue.manager.store.sessions import idle
from retinue.manager.store.sessions.idle import OverrideRecord
from retinue.manager.v1 import account_service_pb2 as pb
from retinue.manager.v1 import account_service_pb2_grpc
from retinue.rpc.times import timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlmodel.ext.asyncio.session import AsyncSession

    from retinue.manager.server.authentication import Authenticator
    from retinue.manager.store.postgres.database import Database

MAX_MEMBERSHIPS = 1000
MAX_DESCRIPTION = 256
LONGEST_TTL = dt.timedelta(days=3653)
_SHORTEST_TTL = dt.timedelta(seconds=1)
_USER_ROLES = {USER: pb.USER_ROLE_USER, ADMIN: pb.USER_ROLE_ADMIN}
_PROJECT_ROLES = {"MEMBER": pb.PROJECT_ROLE_MEMBER, "ADMIN": pb.PROJECT_ROLE_ADMIN}
_STORED_PROJECT_ROLES = {number: name for name, number in _PROJECT_ROLES.items()}

_Context = grpc.aio.ServicerContext[Any, Any]


class AccountServicer(account_service_pb2_grpc.AccountServiceServicer):
    """Accounts, for administrators; and for every caller its own."""

    def __init__(
        self, database: Database, authenticator: Authenticator, changed: Callable[[], None], console_origin: str = ""
    ) -> None:
        """`changed` is called when what may be placed has changed; the origin of the console is empty
        when there is none.
        """
        self._database = database
        self._console_origin = console_origin
        self._changed = changed
        self._authenticator = authenticator

    async def GetCaller(self, request: pb.GetCallerRequest, context: _Context) -> pb.GetCallerResponse:
        async with self._database.transaction() as tx:
            return pb.GetCallerResponse(user=await _user_message(tx, current_principal().name))

    async def CreateProject(self, request: pb.CreateProjectRequest, context: _Context) -> pb.CreateProjectResponse:
        violations = Violations()
        name = violations.name("project.name", request.project.name)
        violations.request_id(request.request_id)
        violations.raise_any()
        async with self._database.transaction() as tx:

            async def create() -> pb.CreateProjectResponse:
                made = await accounts.create_project(tx, name)
                if made is None:
                    raise NameTaken("project", name)
                await _refuse_retired(tx, quotas.PROJECT, name)
                return await with_position(tx, pb.CreateProjectResponse(project=_project_message(made)))

            if request.validate_only:
                if await accounts.get_project(tx, name) is not None:
                    raise NameTaken("project", name)
                await _refuse_retired(tx, quotas.PROJECT, name)
                return await with_position(tx, pb.CreateProjectResponse(project=pb.Project(name=name)))
            caller = current_principal().name
            return await requests.once(tx, caller, "CreateProject", request, pb.CreateProjectResponse, create)

    async def GetProject(self, request: pb.GetProjectRequest, context: _Context) -> pb.GetProjectResponse:
        caller = current_principal()
        async with self._database.transaction() as tx:
            found = await accounts.get_project(tx, request.name)
        if found is None or not (caller.is_admin or found.name in caller.projects):
            raise NotFound("project", request.name)
        return pb.GetProjectResponse(project=_project_message(found))

    async def ListProjects(self, request: pb.ListProjectsRequest, context: _Context) -> pb.ListProjectsResponse:
        caller = current_principal()
        page = open_page(request.page_size, request.page_token, ["projects"])
        async with self._database.transaction() as tx:
            found = await accounts.list_projects(
                tx,
                after=page.after[0] if page.after else "",
                limit=page.size + 1,
                among=None if caller.is_admin else caller.projects,
            )
        messages = [_project_message(project) for project in found[: page.size]]
        projects, token = page.close(messages, len(found), lambda position: [found[position].name])
        return pb.ListProjectsResponse(projects=projects, next_page_token=token)

    async def DeleteProject(self, request: pb.DeleteProjectRequest, context: _Context) -> pb.DeleteProjectResponse:
        async with self._database.transaction() as tx:
            if await accounts.get_project(tx, request.name, lock=True) is None:
                raise NotFound("project", request.name)
            if await accounts.project_has_live_sessions(tx, request.name):
                raise InUse("project", request.name, "live sessions")
            if await endpoints.has_any(tx, project=request.name):
                raise InUse("project", request.name, "endpoints")
            await accounts.delete_project(tx, request.name)
            response = await with_position(tx, pb.DeleteProjectResponse())
        self._authenticator.forget()
        return response

    async def CreateUser(self, request: pb.CreateUserRequest, context: _Context) -> pb.CreateUserResponse:
        name, role, memberships, owner = checked_user(request)
        async with self._database.transaction() as tx:

            async def create() -> pb.CreateUserResponse:
                for project in memberships:
                    await _existing_project(tx, project)
                if await accounts.create_user(tx, name, role, memberships) is None:
                    raise NameTaken("user", name)
                await _refuse_retired(tx, quotas.USER, name)
                await accounts.set_file_owner(tx, name, owner)
                return await with_position(tx, pb.CreateUserResponse(user=await _user_message(tx, name)))

            if request.validate_only:
                for project in memberships:
                    await _existing_project(tx, project)
                if await accounts.get_user(tx, name) is not None:
                    raise NameTaken("user", name)
                await _refuse_retired(tx, quotas.USER, name)
                shown = [MembershipRecord(project, role) for project, role in memberships.items()]
                user = pb.User(
                    name=name,
                    role=_USER_ROLES[role],
                    memberships=_membership_messages(shown),
                    file_owner=_owner_message(owner),
                )
                return await with_position(tx, pb.CreateUserResponse(user=user))
            caller = current_principal().name
            return await requests.once(tx, caller, "CreateUser", request, pb.CreateUserResponse, create)

    async def GetUser(self, request: pb.GetUserRequest, context: _Context) -> pb.GetUserResponse:
        async with self._database.transaction() as tx:
            return pb.GetUserResponse(user=await _user_message(tx, request.name))

    async def ListUsers(self, request: pb.ListUsersRequest, context: _Context) -> pb.ListUsersResponse:
        page = open_page(request.page_size, request.page_token, ["users"])
        async with self._database.transaction() as tx:
            found = await accounts.list_users(tx, after=page.after[0] if page.after else "", limit=page.size + 1)
            shown = found[: page.size]
            memberships = await accounts.memberships_of(tx, [user.name for user in shown])
        messages = [_as_message(user, memberships[user.name]) for user in shown]
        users, token = page.close(messages, len(found), lambda position: [found[position].name])
        return pb.ListUsersResponse(users=users, next_page_token=token)

    async def DeleteUser(self, request: pb.DeleteUserRequest, context: _Context) -> pb.DeleteUserResponse:
        async with self._database.transaction() as tx:
            await _existing_user(tx, request.name, lock=True)
            if await accounts.user_has_live_sessions(tx, request.name):
                raise InUse("user", request.name, "live sessions")
            if await endpoints.has_any(tx, owner=request.name):
                raise InUse("user", request.name, "endpoints")
            await endpoint_tokens.revoke_of_creator(tx, request.name)
            await accounts.delete_user(tx, request.name)
            response = await with_position(tx, pb.DeleteUserResponse())
        self._authenticator.forget()
        return response

    async def SetMembership(self, request: pb.SetMembershipRequest, context: _Context) -> pb.SetMembershipResponse:
        role = checked_role(request)
        async with self._database.transaction() as tx:
            await _existing_user(tx, request.user, lock=True)
            await _existing_project(tx, request.project)
            await accounts.set_membership(tx, request.user, request.project, role)
            user = await _user_message(tx, request.user)
            response = await with_position(tx, pb.SetMembershipResponse(user=user))
        self._authenticator.forget()
        return response

    async def DeleteMembership(
        self, request: pb.DeleteMembershipRequest, context: _Context
    ) -> pb.DeleteMembershipResponse:
        async with self._database.transaction() as tx:
            await _existing_user(tx, request.user, lock=True)
            await _existing_project(tx, request.project)
            await accounts.remove_membership(tx, request.user, request.project)
            await endpoint_tokens.revoke_of_creator(tx, request.user, request.project)
            user = await _user_message(tx, request.user)
            response = await with_position(tx, pb.DeleteMembershipResponse(user=user))
        self._authenticator.forget()
        return response

    async def SetFileOwner(self, request: pb.SetFileOwnerRequest, context: _Context) -> pb.SetFileOwnerResponse:
        violations = Violations()
        owner = _file_owner(request, "file_owner", violations)
        violations.raise_any()
        async with self._database.transaction() as tx:
            await _existing_user(tx, request.user, lock=True)
            await accounts.set_file_owner(tx, request.user, owner)
            user = await _user_message(tx, request.user)
            return await with_position(tx, pb.SetFileOwnerResponse(user=user))

    async def SetUserRole(self, request: pb.SetUserRoleRequest, context: _Context) -> pb.SetUserRoleResponse:
        role = checked_user_role(request)
        async with self._database.transaction() as tx:
            if not await accounts.set_role(tx, request.user, role):
                raise StateForbids("no administrator would be left", f"user/{request.user}", {"user": request.user})
            user = await _user_message(tx, request.user)
            response = await with_position(tx, pb.SetUserRoleResponse(user=user))
        self._authenticator.forget()
        return response

    async def CreateToken(self, request: pb.CreateTokenRequest, context: _Context) -> pb.CreateTokenResponse:
        user = _own_or_any(request.user)
        violations = Violations()
        description = violations.text("description", request.description, MAX_DESCRIPTION)
        ttl = violations.duration("ttl", request.ttl, _SHORTEST_TTL, LONGEST_TTL) if request.HasField("ttl") else None
        violations.raise_any()
        secret = new_secret(TOKEN_PREFIX)
        async with self._database.transaction() as tx:
            # One at a time for each user: tokens are counted, and none comes from one that is being revoked.
            await _existing_user(tx, user, lock=True)
            parent_id = await _parent(tx, user, ttl)
            if await accounts.count_live_tokens(tx, user) >= MAX_TOKENS:
                raise QuotaExceeded([(f"users/{user}", f"{MAX_TOKENS} tokens of user {user} are valid: revoke some")])
            token = await accounts.create_token(
                tx, user, hash_secret(secret), description=description, ttl=ttl, parent_id=parent_id
            )
            return await with_position(tx, pb.CreateTokenResponse(token=_token_message(token), secret=secret))

    async def ListTokens(self, request: pb.ListTokensRequest, context: _Context) -> pb.ListTokensResponse:
        user = _own_or_any(request.user)
        page = open_page(request.page_size, request.page_token, ["tokens", user])
        after = (dt.datetime.fromisoformat(page.after[0]), uuid.UUID(page.after[1])) if page.after else None
        async with self._database.transaction() as tx:
            found = await accounts.list_tokens(tx, user, after=after, limit=page.size + 1)
        messages = [_token_message(item) for item in found[: page.size]]
        tokens, token = page.close(
            messages, len(found), lambda position: [found[position].create_time.isoformat(), str(found[position].id)]
        )
        return pb.ListTokensResponse(tokens=tokens, next_page_token=token)

    async def RevokeToken(self, request: pb.RevokeTokenRequest, context: _Context) -> pb.RevokeTokenResponse:
        caller = current_principal()
        violations = Violations()
        token_id = violations.uuid("token_id", request.token_id)
        violations.raise_any()
        async with self._database.transaction() as tx:
            token = await accounts.get_token(tx, token_id)
            if token is None or not (caller.is_admin or token.user_name == caller.name):
                raise NotFound("token", request.token_id)
            await _existing_user(tx, token.user_name, lock=True)
            await accounts.revoke_token(tx, token_id)
            revoked = await accounts.get_token(tx, token_id) or token
            response = await with_position(tx, pb.RevokeTokenResponse(token=_token_message(revoked)))
        self._authenticator.forget()
        return response

    async def CreateConsoleTicket(
        self, request: pb.CreateConsoleTicketRequest, context: _Context
    ) -> pb.CreateConsoleTicketResponse:
        return await create_console_ticket(self._database, self._console_origin)

    async def CreateSshKey(self, request: pb.CreateSshKeyRequest, context: _Context) -> pb.CreateSshKeyResponse:
        response = await add_ssh_key(self._database, request)
        self._changed()
        return response

    async def ListSshKeys(self, request: pb.ListSshKeysRequest, context: _Context) -> pb.ListSshKeysResponse:
        return await list_ssh_keys(self._database, request)

    async def DeleteSshKey(self, request: pb.DeleteSshKeyRequest, context: _Context) -> pb.DeleteSshKeyResponse:
        response = await remove_ssh_key(self._database, request)
        self._changed()
        return response

    async def SetQuota(self, request: pb.SetQuotaRequest, context: _Context) -> pb.SetQuotaResponse:
        wanted = request.quota
        limits = checked_limits(wanted)
        kind, name = KINDS[wanted.kind], wanted.name
        async with self._database.transaction() as tx:
            await _existing_subject(tx, kind, name)
            quota = await quotas.get(tx, kind, name, lock=True)
            version = 0 if quota is None else quota.version
            check_etag(wanted.etag, version)
            if request.validate_only or limits == Limits():
                shown = QuotaRecord(
                    kind=kind, name=name, version=version if request.validate_only else 0, **asdict(limits)
                )
                if not request.validate_only:
                    await quotas.remove(tx, kind, name)
            else:
                shown = await quotas.put(tx, kind, name, limits)
            message = (await _quota_messages(tx, [shown]))[0]
            response = await with_position(tx, pb.SetQuotaResponse(quota=message))
        self._changed()
        return response

    async def GetQuota(self, request: pb.GetQuotaRequest, context: _Context) -> pb.GetQuotaResponse:
        violations = Violations()
        violations.enum("kind", request.kind, pb.QuotaKind.DESCRIPTOR)
        violations.raise_any()
        async with self._database.transaction() as tx:
            found = await _quotas_for_caller(tx, KINDS[request.kind], request.name) if request.name else []
            if not found:
                raise NotFound("quota", request.name)
            return pb.GetQuotaResponse(quota=(await _quota_messages(tx, found))[0])

    async def ListQuotas(self, request: pb.ListQuotasRequest, context: _Context) -> pb.ListQuotasResponse:
        violations = Violations()
        violations.enum("kind", request.kind, pb.QuotaKind.DESCRIPTOR, unspecified=True)
        if request.name and not request.kind:
            violations.add("name", "needs kind")
        violations.raise_any()
        page = open_page(request.page_size, request.page_token, ["quotas", request.kind, request.name])
        async with self._database.transaction() as tx:
            kind = KINDS.get(request.kind, "")
            found = await _quotas_for_caller(tx, kind, request.name, page.after or ("", ""), page.size + 1)
            messages = await _quota_messages(tx, found[: page.size])
        listed, token = page.close(messages, len(found), lambda position: [found[position].kind, found[position].name])
        return pb.ListQuotasResponse(quotas=listed, next_page_token=token)

    async def SetIdleOverride(
        self, request: pb.SetIdleOverrideRequest, context: _Context
    ) -> pb.SetIdleOverrideResponse:
        wanted = request.override
        policy = checked_override(wanted)
        async with self._database.transaction() as tx:
            await _existing_user(tx, wanted.user, lock=True)
            kept = await idle.get_override(tx, wanted.user, lock=True)
            version = 0 if kept is None else kept.version
            check_etag(wanted.etag, version)
            if request.validate_only or policy == NOTHING:
                version = version if request.validate_only else 0
                shown = OverrideRecord(wanted.user, policy, version)
                if not request.validate_only:
                    await idle.remove_override(tx, wanted.user)
            else:
                shown = await idle.put_override(tx, wanted.user, policy)
            return await with_position(tx, pb.SetIdleOverrideResponse(override=override_message(shown)))

    async def ListIdleOverrides(
        self, request: pb.ListIdleOverridesRequest, context: _Context
    ) -> pb.ListIdleOverridesResponse:
        caller = current_principal()
        page = open_page(request.page_size, request.page_token, ["idle overrides"])
        async with self._database.transaction() as tx:
            found = await idle.list_overrides(
                tx,
                only=None if caller.is_admin else caller.name,
                after=page.after[0] if page.after else "",
                limit=page.size + 1,
            )
        messages = [override_message(override) for override in found[: page.size]]
        overrides, token = page.close(messages, len(found), lambda position: [found[position].user_name])
        return pb.ListIdleOverridesResponse(overrides=overrides, next_page_token=token)

    async def ListAuditRecords(
        self, request: pb.ListAuditRecordsRequest, context: _Context
    ) -> pb.ListAuditRecordsResponse:
        return await list_audit_records(self._database, request)


async def _parent(tx: AsyncSession, user: str, ttl: dt.timedelta | None) -> uuid.UUID | None:
    """Returns the token that a new one is made with and ends with; none when an administrator
    makes it for another user.

    Raises InvalidRequest when it is asked to last longer than that, and TokenInvalid when that
    was revoked a moment ago.
    """
    caller = current_principal()
    if user != caller.name or caller.token_id is None:
        return None
    parent = await accounts.get_token(tx, caller.token_id)
    if parent is None or parent.revoke_time is not None:
        raise TokenInvalid
    if ttl is not None and parent.expire_time is not None:
        left = parent.expire_time - dt.datetime.now(dt.UTC)
        if ttl > left:
            raise InvalidRequest(
                [
                    (
                        "ttl",
                        f"must be at most {max(0, int(left.total_seconds()))} s, as long as the token that you call with",
                    )
                ]
            )
    return parent.id


async def _refuse_retired(tx: AsyncSession, kind: str, name: str) -> None:
    if await accounts.is_retired(tx, kind, name):
        raise NameRetired(kind.lower(), name)


def _own_or_any(user: str) -> str:
    """The user whose tokens are meant. Others are for administrators, whether they exist or not."""
    caller: Principal = current_principal()
    if user not in ("", caller.name) and not caller.is_admin:
        raise MethodDenied("only administrators deal with the tokens of others")
    return user or caller.name


def checked_role(request: pb.SetMembershipRequest) -> str:
    """Returns the role to set, as stored. Raises InvalidRequest."""
    violations = Violations()
    violations.enum("role", request.role, pb.ProjectRole.DESCRIPTOR)
    violations.raise_any()
    return _STORED_PROJECT_ROLES[request.role]


def checked_user_role(request: pb.SetUserRoleRequest) -> str:
    """Returns the role to set, as stored. Raises InvalidRequest."""
    violations = Violations()
    role = violations.enum("role", request.role, pb.UserRole.DESCRIPTOR)
    violations.raise_any()
    return ADMIN if role == pb.USER_ROLE_ADMIN else USER


def checked_user(request: pb.CreateUserRequest) -> tuple[str, str, dict[str, str], FileOwner | None]:
    """Returns a new user's name, role, role by project, and whom its files belong to. Raises InvalidRequest."""
    violations = Violations()
    name = violations.name("user.name", request.user.name)
    violations.request_id(request.request_id)
    role = violations.enum("user.role", request.user.role, pb.UserRole.DESCRIPTOR, unspecified=True)
    memberships: dict[str, str] = {}
    if len(request.user.memberships) > MAX_MEMBERSHIPS:
        raise InvalidRequest([("user.memberships", f"must be at most {MAX_MEMBERSHIPS}")])
    for position, membership in enumerate(request.user.memberships):
        path = f"user.memberships[{position}]"
        violations.enum(f"{path}.role", membership.role, pb.ProjectRole.DESCRIPTOR)
        violations.name(f"{path}.project", membership.project)
        if membership.project in memberships:
            violations.add(f"{path}.project", "is given twice")
        memberships[membership.project] = _STORED_PROJECT_ROLES.get(membership.role, "")
    owner = _file_owner(request.user, "user.file_owner", violations)
    violations.raise_any()
    return name, ADMIN if role == pb.USER_ROLE_ADMIN else USER, memberships, owner


def _file_owner(message: pb.User | pb.SetFileOwnerRequest, path: str, violations: Violations) -> FileOwner | None:
    """Reads the numbers of an account; None without any."""
    if not message.HasField("file_owner"):
        return None
    owner, found = FileOwner(message.file_owner.uid, message.file_owner.gid), list[tuple[str, str]]()
    check_file_owner(owner, path, found)
    for field, description in found:
        violations.add(field, description)
    return owner


async def _existing_user(tx: AsyncSession, name: str, *, lock: bool = False) -> UserRecord:
    user = await accounts.get_user(tx, name, lock=lock)
    if user is None:
        raise NotFound("user", name)
    return user


async def _existing_project(tx: AsyncSession, name: str) -> ProjectRecord:
    """Held until the commit, so that nothing refers to a project that goes meanwhile."""
    project = await accounts.get_project(tx, name, lock=True)
    if project is None:
        projects = await accounts.list_projects(tx, after="", limit=MAX_NAMES, among=None)
        raise NotFound.among("project", name, [item.name for item in projects])
    return project


async def _existing_subject(tx: AsyncSession, kind: str, name: str) -> None:
    """Locks the subject of a quota until the commit. Raises NotFound."""
    if kind == quotas.USER:
        await _existing_user(tx, name, lock=True)
    elif kind == quotas.PROJECT:
        await _existing_project(tx, name)
    elif await groups.get(tx, name, lock=True) is None:
        raise NotFound.among("resource_group", name, await groups.first_names(tx, MAX_NAMES))


async def _quotas_for_caller(
    tx: AsyncSession, kind: str, name: str, after: quotas.Subject = ("", ""), limit: int = 1
) -> list[QuotaRecord]:
    """Returns quotas that the caller may read, of one kind and one name where those are not empty."""
    caller = current_principal()
    visible = None if caller.is_admin else (caller.name, caller.projects)
    return await quotas.list_page(tx, kind=kind, name=name, visible=visible, after=after, limit=limit)


async def _quota_messages(tx: AsyncSession, shown: Sequence[QuotaRecord]) -> list[pb.Quota]:
    """Quotas with what counts against them."""
    subjects = [(quota.kind, quota.name) for quota in shown]
    use = await quotas.read_use(tx, subjects)
    for subject, number in (await quotas.count_pending(tx, subjects)).items():
        use[subject].pending_sessions = number
    return [quota_message(quota, use[quota.kind, quota.name]) for quota in shown]


async def _user_message(tx: AsyncSession, name: str) -> pb.User:
    user = await _existing_user(tx, name)
    return _as_message(user, (await accounts.memberships_of(tx, [name]))[name])


def _as_message(user: UserRecord, memberships: Sequence[MembershipRecord]) -> pb.User:
    return pb.User(
        name=user.name,
        role=_USER_ROLES[user.role],
        memberships=_membership_messages(memberships),
        create_time=timestamp(user.create_time),
        file_owner=_owner_message(user.file_owner),
    )


def _owner_message(owner: FileOwner | None) -> pb.FileOwner | None:
    return None if owner is None else pb.FileOwner(uid=owner.uid, gid=owner.gid)


def _membership_messages(memberships: Sequence[MembershipRecord]) -> list[pb.Membership]:
    return [pb.Membership(project=item.project, role=_PROJECT_ROLES[item.role]) for item in memberships]


def _project_message(project: ProjectRecord) -> pb.Project:
    return pb.Project(name=project.name, create_time=timestamp(project.create_time))


def _token_message(token: TokenRecord) -> pb.Token:
    return pb.Token(
        id=str(token.id),
        user=token.user_name,
        description=token.description,
        create_time=timestamp(token.create_time),
        expire_time=timestamp(token.expire_time),
        revoke_time=timestamp(token.revoke_time),
        parent_id="" if token.parent_id is None else str(token.parent_id),
    )
