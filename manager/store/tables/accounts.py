"""Accounts and their rights: projects, users, their tokens and quotas, and the calls that are answered once."""

from __future__ import annotations

import datetime as dt
import uuid

from sqlalchemy import Column, LargeBinary
from sqlmodel import Field, SQLModel

from retinue.manager.store.tables.columns import json_column, time_column


class Project(SQLModel, table=True):
    """A project that sessions are accounted to."""

    __tablename__ = "project"

    name: str = Field(primary_key=True)
    create_time: dt.datetime = time_column(nullable=False, default_now=True)


class UserAccount(SQLModel, table=True):
    """A person or a service; `role` is USER or ADMIN. Numbers on the nodes of whom its files belong to are both there,
    or none.
    """

    __tablename__ = "user_account"

    name: str = Field(primary_key=True)
    role: str
    file_uid: int | None = None
    file_gid: int | None = None
    create_time: dt.datetime = time_column(nullable=False, default_now=True)


class RetiredName(SQLModel, table=True):
    """The name of a user or a project (`kind` USER, PROJECT) that was deleted. Names are identities: sessions, journals
    and answers to repeated requests stay behind, and must not come to be another user's.
    """

    __tablename__ = "retired_name"

    kind: str = Field(primary_key=True)
    name: str = Field(primary_key=True)
    retire_time: dt.datetime = time_column(nullable=False, default_now=True)


class Membership(SQLModel, table=True):
    """A user's role in a project: MEMBER or ADMIN."""

    __tablename__ = "membership"

    user_name: str = Field(primary_key=True, foreign_key="user_account.name", ondelete="CASCADE")
    project: str = Field(primary_key=True, foreign_key="project.name", ondelete="CASCADE")
    role: str


class Token(SQLModel, table=True):
    """A bearer token; only the SHA-256 of its secret is kept."""

    __tablename__ = "token"

    id: uuid.UUID = Field(primary_key=True)
    hash: bytes = Field(sa_column=Column(LargeBinary, nullable=False, unique=True))
    user_name: str = Field(foreign_key="user_account.name", ondelete="CASCADE", index=True)
    description: str = ""
    create_time: dt.datetime = time_column(nullable=False, default_now=True)
    # Of the same user; it does not end before this one, and is revoked with it.
    parent_id: uuid.UUID | None = Field(default=None, foreign_key="token.id", ondelete="CASCADE", index=True)
    expire_time: dt.datetime | None = time_column()
    revoke_time: dt.datetime | None = time_column()


class ConsoleTicket(SQLModel, table=True):
    """A ticket: the bearer of its secret, of which only the SHA-256 is kept, may log in to the console once."""

    __tablename__ = "console_ticket"

    hash: bytes = Field(sa_column=Column(LargeBinary, primary_key=True))
    # What its user was known by: the login is a token that is made with this one.
    token_id: uuid.UUID = Field(foreign_key="token.id", ondelete="CASCADE")
    expire_time: dt.datetime = time_column(nullable=False)


class SshKey(SQLModel, table=True):
    """A public key by which a user is let in to system sessions: its line without comment, by its fingerprint."""

    __tablename__ = "ssh_key"

    fingerprint: str = Field(primary_key=True)
    user_name: str = Field(foreign_key="user_account.name", ondelete="CASCADE", index=True)
    public_key: str
    description: str = ""
    create_time: dt.datetime = time_column(nullable=False, default_now=True)


class Quota(SQLModel, table=True):
    """Limits for the sessions of a user, a project or a resource group (`kind` USER, PROJECT, RESOURCE_GROUP);
    None is no limit.
    """

    __tablename__ = "quota"

    kind: str = Field(primary_key=True)
    name: str = Field(primary_key=True)
    # Most that live claims may hold, by slot.
    slots: dict[str, int] = json_column()
    # Sessions that are placed and have not ended, and sessions that wait.
    max_sessions: int | None = None
    max_pending_sessions: int | None = None
    # System sessions that have not ended.
    max_system_sessions: int | None = None
    highest_priority: int | None = None
    version: int = 1


class Request(SQLModel, table=True):
    """A finished creating call, to answer its repetitions: the serialized response and a hash of the request."""

    __tablename__ = "request"

    principal: str = Field(primary_key=True)
    method: str = Field(primary_key=True)
    request_id: uuid.UUID = Field(primary_key=True)
    body_hash: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    answer: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    create_time: dt.datetime = time_column(nullable=False, default_now=True)
