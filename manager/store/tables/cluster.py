"""The identity of the database, the attempts on agents that it does not know, its journal of events, and the audit."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Index, LargeBinary, SmallInteger, Table, Text, text
from sqlmodel import Field, SQLModel

from retinue.manager.store.tables.columns import json_column, one_row, time_column


class Cluster(SQLModel, table=True):
    """The one row that names the database. `cluster_id` stays for good;
    `incarnation` is another one after each restore.
    """

    __tablename__ = "cluster"
    __table_args__ = (one_row("cluster"),)

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
    """An event, in commit order. `kind` and `payload` are as `retinue.manager.domain.session.events` has them."""

    __tablename__ = "journal"
    __table_args__ = (Index("journal_session", "session_id", "revision"),)

    revision: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    create_time: dt.datetime = time_column(nullable=False, default_now=True)
    session_id: uuid.UUID
    owner: str
    project: str
    kind: str
    payload: dict[str, Any] = json_column()


def _text() -> str:
    found: str = Field(default="", sa_column_kwargs={"server_default": text("''")})
    return found


class AuditRecord(SQLModel, table=True):
    """An act, or the denied calls of a minute that are alike. Names are kept as they were: nothing here refers to
    other tables, and it outlives what it names.
    """

    __tablename__ = "audit_record"
    __table_args__ = (
        Index("audit_record_time", "create_time", "id"),
        Index("audit_record_category", "category", "create_time", "id"),
    )

    id: uuid.UUID = Field(primary_key=True)
    # ADMINISTRATION, ACCOUNT or DENIAL.
    category: str
    # Of denied calls, the minute by the manager's clock.
    create_time: dt.datetime = time_column(nullable=False, default_now=True)
    end_time: dt.datetime | None = time_column()
    # USER, AGENT, ROUTER or HOST; empty: without valid credentials.
    principal_kind: str = _text()
    principal: str = _text()
    # Of a user: USER or ADMIN.
    role: str = _text()
    token_id: uuid.UUID | None = None
    address: str = _text()
    method: str
    object_kind: str = _text()
    object: str = _text()
    summary: str = _text()
    # Empty: the call has not ended, or its manager ended during it.
    code: str = _text()
    reason: str = _text()
    request_id: str = _text()
    manager: str = _text()
    count: int = Field(default=1, sa_column=Column(BigInteger, nullable=False, server_default=text("1")))


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
    # Everything in it is soon deleted.
    postgresql_with={"autovacuum_vacuum_scale_factor": 0, "autovacuum_vacuum_threshold": 5000},
)
