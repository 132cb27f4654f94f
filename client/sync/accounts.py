"""The form of `retinue.client.admin.accounts` for callers that block.

Written by scripts/generate-sync-client; do not edit it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.client.admin import accounts as aio_accounts
from retinue.client.blocking import iterate, run

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable, Iterator, Mapping
    from typing import TYPE_CHECKING

    from retinue.client.words import IdleChecker, ProjectRole, Span, UserRole
    from retinue.manager.v1 import account_service_pb2 as pb
    from retinue.manager.v1 import idle_pb2


class Projects:
    """The accounts of sessions. All methods raise CallError."""

    def __init__(self, asynchronous: aio_accounts.Projects) -> None:
        """Takes the asynchronous form."""
        self._asynchronous = asynchronous

    def create(self, name: str, *, request_id: str = "") -> pb.Project:
        """Makes a project."""
        return run(self._asynchronous.create(name, request_id=request_id))

    def list(self, *, limit: int | None = None) -> Iterator[pb.Project]:
        """Projects by name."""
        return iterate(self._asynchronous.list(limit=limit))

    def delete(self, name: str) -> None:
        """Removes a project without live sessions."""
        run(self._asynchronous.delete(name))

    def set_member(self, project: str, user: str, role: ProjectRole = "member") -> pb.User:
        """Makes a user `member` or `admin` of a project."""
        return run(self._asynchronous.set_member(project, user, role))

    def remove_member(self, project: str, user: str) -> pb.User:
        """Removes a user from a project; does nothing if the user is not a member."""
        return run(self._asynchronous.remove_member(project, user))


class Users:
    """People and services. All methods raise CallError."""

    def __init__(self, asynchronous: aio_accounts.Users) -> None:
        """Takes the asynchronous form."""
        self._asynchronous = asynchronous

    def caller(self) -> pb.User:
        """Returns the calling user."""
        return run(self._asynchronous.caller())

    def create(
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
        return run(
            self._asynchronous.create(name, role=role, projects=projects, file_owner=file_owner, request_id=request_id)
        )

    def set_file_owner(self, name: str, owner: tuple[int, int] | None) -> pb.User:
        """Sets whom files of a user's sessions belong to on the nodes, in mounts whose root takes the account's
        numbers: those of a user and a group. With None the user mounts nothing from there.
        """
        return run(self._asynchronous.set_file_owner(name, owner))

    def list(self, *, limit: int | None = None) -> Iterator[pb.User]:
        """Users by name."""
        return iterate(self._asynchronous.list(limit=limit))

    def delete(self, name: str) -> None:
        """Removes a user without live sessions, and the user's tokens."""
        run(self._asynchronous.delete(name))


class Tokens:
    """Bearer tokens. All methods raise CallError."""

    def __init__(self, asynchronous: aio_accounts.Tokens) -> None:
        """Takes the asynchronous form."""
        self._asynchronous = asynchronous

    def create(self, *, user: str = "", description: str = "", ttl: Span | None = None) -> pb.CreateTokenResponse:
        """Makes a token for a user (default: the caller); the answer's `secret` is shown once."""
        return run(self._asynchronous.create(user=user, description=description, ttl=ttl))

    def list(self, *, user: str = "", limit: int | None = None) -> Iterator[pb.Token]:
        """Tokens of a user (default: the caller), newest first, without secrets."""
        return iterate(self._asynchronous.list(user=user, limit=limit))

    def revoke(self, token_id: str) -> pb.Token:
        """Revokes a token."""
        return run(self._asynchronous.revoke(token_id))

    def create_console_ticket(self) -> pb.CreateConsoleTicketResponse:
        """Makes a link that logs a browser in to the web console as the caller: good once, within a minute."""
        return run(self._asynchronous.create_console_ticket())


class IdleOverrides:
    """Longer times for some users, or none. All methods raise CallError."""

    def __init__(self, asynchronous: aio_accounts.IdleOverrides) -> None:
        """Takes the asynchronous form."""
        self._asynchronous = asynchronous

    def set(
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
        return run(self._asynchronous.set(user, policy, exempt=exempt, etag=etag))

    def list(self, *, limit: int | None = None) -> Iterator[idle_pb2.IdleOverride]:
        """Overrides that the caller may read, by user."""
        return iterate(self._asynchronous.list(limit=limit))


class SshKeys:
    """Public keys by which users are let in to their system sessions. All methods raise CallError."""

    def __init__(self, asynchronous: aio_accounts.SshKeys) -> None:
        """Takes the asynchronous form."""
        self._asynchronous = asynchronous

    def add(self, public_key: str, *, description: str = "") -> pb.SshKey:
        """Registers a key of the caller: a line of OpenSSH's format."""
        return run(self._asynchronous.add(public_key, description=description))

    def list(self, *, user: str = "", limit: int | None = None) -> Iterator[pb.SshKey]:
        """Keys of a user (default: the caller)."""
        return iterate(self._asynchronous.list(user=user, limit=limit))

    def remove(self, fingerprint: str) -> pb.SshKey:
        """Removes a key; connections that were made with it end within seconds."""
        return run(self._asynchronous.remove(fingerprint))


class Audit:
    """The records of the audit, for administrators. All methods raise CallError."""

    def __init__(self, asynchronous: aio_accounts.Audit) -> None:
        """Takes the asynchronous form."""
        self._asynchronous = asynchronous

    def list(
        self,
        *,
        filter: str = "",
        since: dt.datetime | None = None,
        until: dt.datetime | None = None,
        limit: int | None = None,
    ) -> Iterator[pb.AuditRecord]:
        """Yields records, newest first, from `since` on and before `until`.

        `filter` is as in `principal = "ann" AND method = "CreateUser" AND code != "OK"`.
        """
        return iterate(self._asynchronous.list(filter=filter, since=since, until=until, limit=limit))
