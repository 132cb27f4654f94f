"""What belongs to sessions besides their kernels: their recorded use for idle policies, access to ports over HTTP,
and webhooks.
"""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

from sqlalchemy import BigInteger, Column, LargeBinary, SmallInteger, text
from sqlmodel import Field, SQLModel

from retinue.manager.store.tables.columns import json_column, time_column


class SessionIdle(SQLModel, table=True):
    """The recorded use of a session, for the idle policy; no row: nothing yet."""

    __tablename__ = "session_idle"

    session_id: uuid.UUID = Field(primary_key=True, foreign_key="session.id", ondelete="CASCADE")
    # When something was last exchanged with it, to some seconds.
    interaction_time: dt.datetime | None = time_column()
    # Seconds since then, or since its start, in which no user could have been heard; and until when that was counted.
    paused_seconds: float = Field(default=0.0, sa_column_kwargs={"server_default": text("0")})
    pause_time: dt.datetime | None = time_column()
    # Kept by its owner until then.
    extension_end_time: dt.datetime | None = time_column()
    # When each checker warned of the end, in seconds since 1970.
    warned: dict[str, float] = json_column()
    # What it used, and what that came to when it was last written.
    window: dict[str, Any] = json_column()
    reading: dict[str, Any] = json_column()


class IdleOverride(SQLModel, table=True):
    """An override of the idle policies of resource groups for the sessions of a user."""

    __tablename__ = "idle_override"

    user_name: str = Field(primary_key=True, foreign_key="user_account.name", ondelete="CASCADE")
    policy: dict[str, Any] = json_column()
    version: int = 1


class IdleLook(SQLModel, table=True):
    """The one row that says when a leader last evaluated idle sessions: what came after is not known."""

    __tablename__ = "idle_look"

    id: int = Field(default=1, sa_column=Column(SmallInteger, primary_key=True, autoincrement=False))
    time: dt.datetime | None = time_column()


class PortTicket(SQLModel, table=True):
    """A ticket: the bearer of its secret, of which only the SHA-256 is kept,
    may begin once to use a port of a session over HTTP.
    """

    __tablename__ = "port_ticket"

    hash: bytes = Field(sa_column=Column(LargeBinary, primary_key=True))
    session_id: uuid.UUID = Field(foreign_key="session.id", ondelete="CASCADE")
    port: int
    user_name: str
    # What its user was known by: it is worth as much as that.
    token_id: uuid.UUID = Field(foreign_key="token.id", ondelete="CASCADE")
    # Where to begin.
    path: str
    expire_time: dt.datetime = time_column(nullable=False)


class PortAccess(SQLModel, table=True):
    """The result of the exchange of a ticket: a browser's cookie, of which only the SHA-256 is kept."""

    __tablename__ = "port_access"

    hash: bytes = Field(sa_column=Column(LargeBinary, primary_key=True))
    session_id: uuid.UUID = Field(foreign_key="session.id", ondelete="CASCADE")
    port: int
    user_name: str
    token_id: uuid.UUID = Field(foreign_key="token.id", ondelete="CASCADE")
    expire_time: dt.datetime = time_column(nullable=False)


class Webhook(SQLModel, table=True):
    """A webhook of a session, kept until the session has terminated and all was sent; the secret is sealed."""

    __tablename__ = "webhook"

    session_id: uuid.UUID = Field(primary_key=True, foreign_key="session.id", ondelete="CASCADE")
    position: int = Field(primary_key=True)
    url: str
    events: list[str] = json_column("[]")
    secret: bytes = Field(sa_column=Column(LargeBinary, nullable=False))


class WebhookDelivery(SQLModel, table=True):
    """An event that is still to be sent to a webhook."""

    __tablename__ = "webhook_delivery"

    session_id: uuid.UUID = Field(primary_key=True, foreign_key="session.id", ondelete="CASCADE")
    position: int = Field(primary_key=True)
    revision: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    event: str
    body: str
    tries: int
    next_try_time: dt.datetime = time_column(nullable=False)


class WebhookCursor(SQLModel, table=True):
    """The one row that says up to which revision the journal was gone through for webhooks."""

    __tablename__ = "webhook_cursor"

    id: int = Field(default=1, sa_column=Column(SmallInteger, primary_key=True, autoincrement=False))
    revision: int = Field(sa_column=Column(BigInteger, nullable=False))
