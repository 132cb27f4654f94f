"""Claims of sessions on the nodes, now and in the past, and their private networks.

Free capacity is capacity minus live claims, and shares are sums of live claims.
"""

from __future__ import annotations

import datetime as dt
import decimal
import uuid

from sqlalchemy import BigInteger, Column, DateTime, ForeignKey, Identity, Index, Numeric, text
from sqlalchemy.dialects.postgresql import CIDR
from sqlmodel import Field, SQLModel

from retinue.manager.store.tables.columns import json_column, time_column


class Claim(SQLModel, table=True):
    """The amount of one slot of one agent that an attempt holds, until it is released with the attempt's end."""

    __tablename__ = "claim"
    __table_args__ = (
        Index("claim_live_agent", "agent_id", "slot", postgresql_where=text("release_time IS NULL")),
        Index("claim_live_owner", "resource_group", "owner", "slot", postgresql_where=text("release_time IS NULL")),
    )

    kernel_id: uuid.UUID = Field(primary_key=True)
    epoch: int = Field(primary_key=True)
    slot: str = Field(primary_key=True)
    agent_id: str
    resource_group: str
    owner: str
    amount: int = Field(sa_column=Column(BigInteger, nullable=False))
    claim_time: dt.datetime = time_column(nullable=False, default_now=True)
    release_time: dt.datetime | None = time_column()


class DrfShare(SQLModel, table=True):
    """An owner's dominant share in a group: exactly the live claims, written in the commit that changes them."""

    __tablename__ = "drf_share"

    resource_group: str = Field(primary_key=True)
    owner: str = Field(primary_key=True)
    weight: int = 1
    held: dict[str, int] = json_column()
    dominant_slot: str = ""
    numerator: int = Field(default=0, sa_column=Column(BigInteger, nullable=False))
    denominator: int = Field(default=0, sa_column=Column(BigInteger, nullable=False))


class Usage(SQLModel, table=True):
    """The amount that released claims of an owner held of a group's slot on one day (UTC), in amount times seconds:
    written with the release.
    """

    __tablename__ = "usage"

    resource_group: str = Field(primary_key=True)
    owner: str = Field(primary_key=True)
    slot: str = Field(primary_key=True)
    day: dt.date = Field(primary_key=True)
    # A day of 2**53 bytes has more digits than a bigint.
    amount_seconds: decimal.Decimal = Field(sa_column=Column(Numeric, nullable=False))


class ShareHour(SQLModel, table=True):
    """Samples of the dominant share of a user, a project or a whole group within an hour (UTC)."""

    __tablename__ = "share_hour"
    __table_args__ = (Index("share_hour_hour", "hour"),)

    resource_group: str = Field(primary_key=True)
    # USER, PROJECT or RESOURCE_GROUP; the latter has no name, and a row for each hour that was sampled.
    kind: str = Field(primary_key=True)
    name: str = Field(primary_key=True)
    hour: dt.datetime = Field(sa_column=Column(DateTime(timezone=True), primary_key=True))
    samples: int
    share_sum: float
    peak: float


class Network(SQLModel, table=True):
    """A private network. Its session releases it before it is given another;
    the row goes when no agent has it any more.
    """

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
    # As it was when the network was made: the other end is not told of another.
    vxlan_port: int = Field(default=4789, sa_column_kwargs={"server_default": text("4789")})


class NetworkSite(SQLModel, table=True):
    """An agent that has, or may have, a session's network; the row goes when it confirmed the removal."""

    __tablename__ = "network_site"
    __table_args__ = (Index("network_site_agent", "agent_id"), Index("network_site_session", "session_id"))

    network_id: int = Field(
        sa_column=Column(BigInteger, ForeignKey("network.id", ondelete="CASCADE"), primary_key=True)
    )
    agent_id: str = Field(primary_key=True)
    session_id: uuid.UUID
