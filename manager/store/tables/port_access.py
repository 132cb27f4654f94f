"""Access to ports of sessions over HTTP."""

from __future__ import annotations

import datetime as dt
import uuid

from sqlalchemy import Column, LargeBinary
from sqlmodel import Field, SQLModel

from retinue.manager.store.tables.columns import time_column


class PortTicket(SQLModel, table=True):
    """A ticket: the bearer of its secret, of which only the SHA-256 is kept, may begin once to use a port of a session over HTTP."""

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
