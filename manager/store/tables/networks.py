"""The private networks of sessions."""

from __future__ import annotations

import uuid

from sqlalchemy import BigInteger, Column, ForeignKey, Identity, Index, text
from sqlalchemy.dialects.postgresql import CIDR
from sqlmodel import Field, SQLModel


class Network(SQLModel, table=True):
    """A private network. Its session releases it before it is given another; the row goes when no agent has it any more."""

    __tablename__ = "network"
    __table_args__ = (
        Index("network_vni", "vni", unique=True, postgresql_where=text("vni <> 0")),
        Index("network_session", "session_id", unique=True, postgresql_where=text("session_id IS NOT NULL")),
    )

    id: int = Field(default=None, sa_column=Column(BigInteger, Identity(always=True), primary_key=True))
    session_id: uuid.UUID | None = None
    # 0 for a bridge on one agent; unique otherwise.
    vni: int
    subnet: str = Field(sa_column=Column(CIDR, nullable=False, unique=True))
    mtu: int


class NetworkSite(SQLModel, table=True):
    """An agent that has, or may have, a session's network; the row goes when it confirmed the removal."""

    __tablename__ = "network_site"
    __table_args__ = (Index("network_site_agent", "agent_id"), Index("network_site_session", "session_id"))

    network_id: int = Field(
        sa_column=Column(BigInteger, ForeignKey("network.id", ondelete="CASCADE"), primary_key=True)
    )
    agent_id: str = Field(primary_key=True)
    session_id: uuid.UUID
