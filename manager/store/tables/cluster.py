"""The identity of the database, the attempts on agents that it does not know, and its journal of events."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Index, LargeBinary, SmallInteger, Table, Text, text
from sqlmodel import Field, SQLModel

from retinue.manager.store.tables.columns import json_column, time_column


class Cluster(SQLModel, table=True):
    """The one row that names the database. `cluster_id` stays for good;
    `incarnation` is another one after each restore.
    """

    __tablename__ = "cluster"

    id: int = Field(default=1, sa_column=Column(SmallInteger, primary_key=True, autoincrement=False))
    cluster_id: uuid.UUID
    incarnation: uuid.UUID
    restore_time: dt.datetime | None = time_column()
    # Attempts made from here on have higher epochs.
    last_epoch: int = Field(default=0, sa_column_kwargs={"server_default": text("0")})
    # SHA-256 of the authority's certificate, in hexadecimal; empty until the first manager has started.
    ca_fingerprint: str = Field(default="", sa_column_kwargs={"server_default": text("''")})
    # Its certificates in PEM, the newest first: what managers that have its key go by.
    ca_certificates: str = Field(default="", sa_column_kwargs={"server_default": text("''")})
    # The authority itself, sealed with a key that the database does not have.
    ca_sealed: bytes | None = Field(default=None, sa_column=Column(LargeBinary, nullable=True))


class Orphan(SQLModel, table=True):
    """An attempt that an agent runs and that has no row: it was placed after the backup
    that the database was restored from.
    """

    __tablename__ = "orphan"
    __table_args__ = (Index("orphan_session", "session_id"),)

    agent_id: str = Field(foreign_key="agent.id", ondelete="CASCADE", primary_key=True)
    kernel_id: uuid.UUID = Field(primary_key=True)
    epoch: int = Field(primary_key=True)
    session_id: uuid.UUID | None = None
    state: str
    # Whether the agent is to end it.
    end_requested: bool = Field(default=False, sa_column_kwargs={"server_default": text("false")})
    create_time: dt.datetime = time_column(nullable=False, default_now=True)


class JournalHead(SQLModel, table=True):
    """The one row that numbers the journal; a transaction that appends locks it to the end of its commit."""

    __tablename__ = "journal_head"

    id: int = Field(default=1, sa_column=Column(SmallInteger, primary_key=True, autoincrement=False))
    revision: int = Field(sa_column=Column(BigInteger, nullable=False))
    # Lowest revision a watcher may resume after.
    oldest: int = Field(sa_column=Column(BigInteger, nullable=False))


class Journal(SQLModel, table=True):
    """An event, in commit order. `kind` and `payload` are as `retinue.manager.session.core.events` has them."""

    __tablename__ = "journal"
    __table_args__ = (Index("journal_session", "session_id", "revision"),)

    revision: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    create_time: dt.datetime = time_column(nullable=False, default_now=True)
    session_id: uuid.UUID
    owner: str
    project: str
    kind: str
    payload: dict[str, Any] = json_column()


# What the leader's scheduler has not taken in yet, set by triggers in the commit of the change (see `changes`). It has
# no key and is not written ahead: rows are only ever added, and deleted all at once.
scheduling_change = Table(
    "scheduling_change",
    SQLModel.metadata,
    Column("kind", Text, nullable=False),
    Column("key", Text),
    Column("resource_group", Text),
    Column("owner", Text),
    Column("project", Text),
    # Whether the sessions are system sessions; unset: not, as in marks of an earlier version.
    Column("system", Boolean),
    Column("slot", Text),
    Column("amount", BigInteger),
    prefixes=["UNLOGGED"],
)
