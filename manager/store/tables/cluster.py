"""The identity of the database, and the attempts on agents that it does not know."""

from __future__ import annotations

import datetime as dt
import uuid

from sqlalchemy import Column, Index, LargeBinary, SmallInteger, text
from sqlmodel import Field, SQLModel

from retinue.manager.store.tables.columns import time_column


class Cluster(SQLModel, table=True):
    """The one row that names the database. `cluster_id` stays for good; `incarnation` is another one after each restore."""

    __tablename__ = "cluster"

    id: int = Field(default=1, sa_column=Column(SmallInteger, primary_key=True, autoincrement=False))
    cluster_id: uuid.UUID
    incarnation: uuid.UUID
    restore_time: dt.datetime | None = time_column()
    # Attempts made from here on have higher epochs.
    last_epoch: int = Field(default=0, sa_column_kwargs={"server_default": text("0")})
    # SHA-256 of the authority's certificate, in hexadecimal; empty until the first manager has started.
    ca_fingerprint: str = Field(default="", sa_column_kwargs={"server_default": text("''")})
    # The authority itself, sealed with a key that the database does not have.
    ca_sealed: bytes | None = Field(default=None, sa_column=Column(LargeBinary, nullable=True))


class Orphan(SQLModel, table=True):
    """An attempt that an agent runs and that has no row: it was placed after the backup that the database was restored from."""

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
