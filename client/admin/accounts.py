"""Projects, users and tokens of a manager, and its audit."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from retinue.client import enum_names
from retinue.client.time_spans import as_duration
from retinue.client.transport.calls import call
from retinue.client.transport.pages import paged
from retinue.manager.v1 import account_service_pb2 as pb
from retinue.manager.v1 import account_service_pb2_grpc, idle_pb2
from retinue.rpc.times import timestamp

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import AsyncGenerator, Iterable, Mapping

    import grpc.aio

    from retinue.client.words import IdleChecker, ProjectRole, Span, UserRole


class Projects:
    """The accounts of sessions. All methods raise CallError."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """Sends nothing yet."""
        self._stub: account_service_pb2_grpc.AccountServiceAsyncStub = account_service_pb2_grpc.AccountServiceStub(
            channel
        )

    async def create(self, name: str, *, request_id: str = "") -> pb.Project:
        """Makes a project."""
        request = pb.CreateProjectRequest(project=pb.Project(name=name), request_id=request_id or str(uuid.uuid4()))
        return (await call(self._stub.CreateProject, request)).project

    async def get(self, name: str) -> pb.Project:
        """Returns one project."""
        return (await call(self._stub.GetProject, pb.GetProjectRequest(name=name))).project

    async def list(self, *, limit: int | None = None) -> AsyncGenerator[pb.Project, None]:
        """Projects by name."""

        async def fetch(token: str, size: int) -> pb.ListProjectsResponse:
            return await call(self._stub.ListProjects, pb.ListProjectsRequest(page_size=size, page_token=token))

        async for project in paged(fetch, lambda page: page.projects, limit):
            yield project

    async def delete(self, name: str) -> None:
        """Removes a project without live sessions."""
        await call(self._stub.DeleteProject, pb.DeleteProjectRequest(name=name))

    async def set_member(self, project: str, user: str, role: ProjectRole = "member") -> pb.User:
        """Makes a user `member` or `admin` of a project."""
        value = enum_names.number(enum_names.PROJECT_ROLE, role)
        request = pb.SetMembershipRequest(user=user, project=project, role=pb.ProjectRole.ValueType(value))
        return (await call(self._stub.SetMembership, request)).user

    async def remove_member(self, project: str, user: str) -> pb.User:
        """Removes a user from a project; does nothing if the user is not a member."""
        request = pb.DeleteMembershipRequest(user=user, project=project)
        return (await call(self._stub.DeleteMembership, request)).user


class Users:
    """People and services. All methods raise CallError."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """Sends nothing yet."""
        self._stub: account_service_pb2_grpc.AccountServiceAsyncStub = account_service_pb2_grpc.AccountServiceStub(
            channel
        )

    async def caller(self) -> pb.User:
        """Returns the calling user."""
        return (await call(self._stub.GetCaller, pb.GetCallerRequest())).user

    async def create(
        self,
        name: str,
        *,
        role: UserRole = "user",
        projects: Mapping[str, ProjectRole] | None = None,
        file_owner: tuple[int, int] | None = None,
        request_id: str = "",
    ) -> pb.User:
        """Makes a user, with a role (`user` or `admin`) and, by project, the role there (`member` or `admin`).

        `file_owner` has the numbers of a user and a group on the nodes, as `set_file_owner`.
        """
        user = pb.User(name=name, role=pb.UserRole.ValueType(enum_names.number(enum_names.USER_ROLE, role)))
        for project, project_role in (projects or {}).items():
            value = enum_names.number(enum_names.PROJECT_ROLE, project_role)
            user.memberships.add(project=project, role=pb.ProjectRole.ValueType(value))
        if file_owner is not None:
            user.file_owner.uid, user.file_owner.gid = file_owner
        request = pb.CreateUserRequest(user=user, request_id=request_id or str(uuid.uuid4()))
        return (await call(self._stub.CreateUser, request)).user

    async def set_file_owner(self, name: str, owner: tuple[int, int] | None) -> pb.User:
        """Sets whom files of a user's sessions belong to on the nodes, in mounts whose root takes the account's
        numbers: those of a user and a group. With None the user mounts nothing from there.
        """
        numbers = None if owner is None else pb.FileOwner(uid=owner[0], gid=owner[1])
        return (await call(self._stub.SetFileOwner, pb.SetFileOwnerRequest(user=name, file_owner=numbers))).user

    async def set_role(self, name: str, role: UserRole) -> pb.User:
        """Gives a user a role in the whole system: `user` or `admin`."""
        value = pb.UserRole.ValueType(enum_names.number(enum_names.USER_ROLE, role))
        return (await call(self._stub.SetUserRole, pb.SetUserRoleRequest(user=name, role=value))).user

    async def get(self, name: str) -> pb.User:
        """Returns one user, for administrators."""
        return (await call(self._stub.GetUser, pb.GetUserRequest(name=name))).user

    async def list(self, *, limit: int | None = None) -> AsyncGenerator[pb.User, None]:
        """Users by name."""

        async def fetch(token: str, size: int) -> pb.ListUsersResponse:
            return await call(self._stub.ListUsers, pb.ListUsersRequest(page_size=size, page_token=token))

        async for user in paged(fetch, lambda page: page.users, limit):
            yield user

    async def delete(self, name: str) -> None:
        """Removes a user without live sessions, and the user's tokens."""
        await call(self._stub.DeleteUser, pb.DeleteUserRequest(name=name))


class Tokens:
    """Bearer tokens. All methods raise CallError."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """Sends nothing yet."""
        self._stub: account_service_pb2_grpc.AccountServiceAsyncStub = account_service_pb2_grpc.AccountServiceStub(
            channel
        )

    async def create(self, *, user: str = "", description: str = "", ttl: Span | None = None) -> pb.CreateTokenResponse:
        """Makes a token for a user (default: the caller); the answer's `secret` is shown once."""
        request = pb.CreateTokenRequest(user=user, description=description)
        if ttl is not None:
            request.ttl.CopyFrom(as_duration(ttl))
        return await call(self._stub.CreateToken, request)

    async def list(self, *, user: str = "", limit: int | None = None) -> AsyncGenerator[pb.Token, None]:
        """Tokens of a user (default: the caller), newest first, without secrets."""

        async def fetch(token: str, size: int) -> pb.ListTokensResponse:
            return await call(self._stub.ListTokens, pb.ListTokensRequest(user=user, page_size=size, page_token=token))

        async for token in paged(fetch, lambda page: page.tokens, limit):
            yield token

    async def revoke(self, token_id: str) -> pb.Token:
        """Revokes a token."""
        return (await call(self._stub.RevokeToken, pb.RevokeTokenRequest(token_id=token_id))).token

    async def create_console_ticket(self) -> pb.CreateConsoleTicketResponse:
        """Makes a link that logs a browser in to the web console as the caller: good once, within a minute."""
        return await call(self._stub.CreateConsoleTicket, pb.CreateConsoleTicketRequest())


class IdleOverrides:
    """Longer times for some users, or none. All methods raise CallError."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """Sends nothing yet."""
        self._stub: account_service_pb2_grpc.AccountServiceAsyncStub = account_service_pb2_grpc.AccountServiceStub(
            channel
        )

    async def set(
        self,
        user: str,
        policy: idle_pb2.IdlePolicy | None = None,
        *,
        exempt: Iterable[IdleChecker] = (),
        etag: str = "",
    ) -> idle_pb2.IdleOverride:
        """Sets the whole override of a user: fields that replace those of groups, and checkers (`interaction`,
        …) that never end anything.

        Without both, there is none any more.
        """
        checkers = [idle_pb2.IdleChecker.ValueType(enum_names.number(enum_names.IDLE_CHECKER, name)) for name in exempt]
        override = idle_pb2.IdleOverride(user=user, policy=policy, exempt=checkers, etag=etag)
        return (await call(self._stub.SetIdleOverride, pb.SetIdleOverrideRequest(override=override))).override

    async def list(self, *, limit: int | None = None) -> AsyncGenerator[idle_pb2.IdleOverride, None]:
        """Overrides that the caller may read, by user."""

        async def fetch(token: str, size: int) -> pb.ListIdleOverridesResponse:
            request = pb.ListIdleOverridesRequest(page_size=size, page_token=token)
            return await call(self._stub.ListIdleOverrides, request)

        async for override in paged(fetch, lambda page: page.overrides, limit):
            yield override


class SshKeys:
    """Public keys by which users are let in to their system sessions. All methods raise CallError."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """Sends nothing yet."""
        self._stub: account_service_pb2_grpc.AccountServiceAsyncStub = account_service_pb2_grpc.AccountServiceStub(
            channel
        )

    async def add(self, public_key: str, *, description: str = "") -> pb.SshKey:
        """Registers a key of the caller: a line of OpenSSH's format."""
        request = pb.CreateSshKeyRequest(public_key=public_key, description=description)
        return (await call(self._stub.CreateSshKey, request)).key

    async def list(self, *, user: str = "", limit: int | None = None) -> AsyncGenerator[pb.SshKey, None]:
        """Keys of a user (default: the caller)."""

        async def fetch(token: str, size: int) -> pb.ListSshKeysResponse:
            return await call(
                self._stub.ListSshKeys, pb.ListSshKeysRequest(user=user, page_size=size, page_token=token)
            )

        async for key in paged(fetch, lambda page: page.keys, limit):
            yield key

    async def remove(self, fingerprint: str) -> pb.SshKey:
        """Removes a key; connections that were made with it end within seconds."""
        return (await call(self._stub.DeleteSshKey, pb.DeleteSshKeyRequest(fingerprint=fingerprint))).key


class Audit:
    """The records of the audit, for administrators. All methods raise CallError."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """Sends nothing yet."""
        self._stub: account_service_pb2_grpc.AccountServiceAsyncStub = account_service_pb2_grpc.AccountServiceStub(
            channel
        )

    async def list(
        self,
        *,
        filter: str = "",  # noqa: A002  # named as in the API
        since: dt.datetime | None = None,
        until: dt.datetime | None = None,
        limit: int | None = None,
    ) -> AsyncGenerator[pb.AuditRecord, None]:
        """Yields records, newest first, from `since` on and before `until`.

        `filter` is as in `principal = "ann" AND method = "CreateUser" AND code != "OK"`.
        """

        async def fetch(token: str, size: int) -> pb.ListAuditRecordsResponse:
            request = pb.ListAuditRecordsRequest(
                filter=filter,
                start_time=timestamp(since),
                end_time=timestamp(until),
                page_size=size,
                page_token=token,
            )
            return await call(self._stub.ListAuditRecords, request)

        async for record in paged(fetch, lambda page: page.records, limit):
            yield record
