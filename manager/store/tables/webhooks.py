"""Webhooks of sessions, and the events that are still to be sent to them."""

from __future__ import annotations

import datetime as dt
import uuid

from sqlalchemy import BigInteger, Column, LargeBinary, SmallInteger
from sqlmodel import Field, SQLModel

from retinue.manager.store.tables.columns import json_column, time_column


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
