"""The journal of events, and the changes that the scheduler has not taken in yet."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

from sqlalchemy import BigInteger, Column, Index, SmallInteger, Table, Text
from sqlmodel import Field, SQLModel

from retinue.manager.store.tables.columns import json_column, time_column


class JournalHead(SQLModel, table=True):
    """The one row that numbers the journal; a transaction that appends locks it to the end of its commit."""

    __tablename__ = "journal_head"

    id: int = Field(default=1, sa_column=Column(SmallInteger, primary_key=True, autoincrement=False))
    revision: int = Field(sa_column=Column(BigInteger, nullable=False))
    # Lowest revision a watcher may resume after.
    oldest: int = Field(sa_column=Column(BigInteger, nullable=False))


class Journal(SQLModel, table=True):
    """An event, in commit order. `kind` is CREATED, SESSION_MOVED, KERNEL_MOVED, IMAGE_PULL, NOTED or ENTERED."""

    __tablename__ = "journal"
    __table_args__ = (Index("journal_session", "session_id", "revision"),)

    revision: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    create_time: dt.datetime = time_column(nullable=False, default_now=True)
    session_id: uuid.UUID
    owner: str
    project: str
    kind: str
    payload: dict[str, Any] = json_column()


# What the leader's scheduler has not taken in yet, set by triggers in the commit of the change (see `changes`). It has no key and is not
# written ahead: rows are only ever added, and deleted all at once.
scheduling_change = Table(
    "scheduling_change",
    SQLModel.metadata,
    Column("kind", Text, nullable=False),
    Column("key", Text),
    Column("resource_group", Text),
    Column("owner", Text),
    Column("project", Text),
    Column("slot", Text),
    Column("amount", BigInteger),
    prefixes=["UNLOGGED"],
)
