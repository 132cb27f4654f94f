"""Nodes, the groups they are in, and who leads them."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Computed, LargeBinary, SmallInteger, text
from sqlmodel import Field, SQLModel

from retinue.manager.store.tables.columns import json_column, one_row, time_column

# When an agent's `blocked` is true.
BLOCKED = """reported_conditions @> '[{"blocks": true}]' OR found_conditions @> '[{"blocks": true}]'"""


class Leadership(SQLModel, table=True):
    """The one row that says which term leads; every write of a leader checks it."""

    __tablename__ = "leadership"

    id: int = Field(default=1, sa_column=Column(SmallInteger, primary_key=True, autoincrement=False))
    term: int = Field(sa_column=Column(BigInteger, nullable=False))
    holder: str
    acquire_time: dt.datetime = time_column(nullable=False, default_now=True)


class LeadershipLease(SQLModel, table=True):
    """The one row that the leader changes each second, apart from the term, which its writes hold locks on."""

    __tablename__ = "leadership_lease"
    __table_args__ = (one_row("leadership_lease"),)

    id: int = Field(default=1, sa_column=Column(SmallInteger, primary_key=True, autoincrement=False))
    renewal: int = Field(sa_column=Column(BigInteger, nullable=False))
    # For people to read.
    renew_time: dt.datetime = time_column(nullable=False, default_now=True)


class ResourceGroup(SQLModel, table=True):
    """A pool of agents and its scheduling policy."""

    __tablename__ = "resource_group"

    name: str = Field(primary_key=True)
    session_strategy: str = "drf"
    agent_strategy: str = "concentrated"
    options: dict[str, str] = json_column()
    owner_weights: dict[str, int] = json_column()
    start_timeout_seconds: int = 600
    max_grace_seconds: int = Field(default=300, sa_column_kwargs={"server_default": text("300")})
    # ALLOW or DENY: whether kernels started in the group have egress.
    egress: str = Field(default="ALLOW", sa_column_kwargs={"server_default": text("'ALLOW'")})
    # What sessions may mount: path, writable, projects.
    mount_roots: list[dict[str, Any]] = json_column("[]")
    # Registries that images may come from: patterns of hosts; empty: `docker.io`.
    image_registries: list[str] = json_column("[]")
    # Types of sessions that it takes; empty: all.
    session_types: list[str] = json_column("[]")
    # Isolations that kernels may have, empty for all, and that of kernels which ask for none,
    # empty for what the image implies.
    isolations: list[str] = json_column("[]")
    default_isolation: str = Field(default="", sa_column_kwargs={"server_default": text("''")})
    # Of images of kernels that ask for none; empty: when a node does not have it.
    default_pull_policy: str = Field(default="", sa_column_kwargs={"server_default": text("''")})
    # Losses of agents are held when more than this share of them, and at least so many, are silent together; agents
    # lost so shortly before count, too.
    mass_loss_percent: int = Field(default=50, sa_column_kwargs={"server_default": text("50")})
    mass_loss_agents: int = Field(default=3, sa_column_kwargs={"server_default": text("3")})
    mass_loss_window_seconds: int = Field(default=300, sa_column_kwargs={"server_default": text("300")})
    # When idle running sessions are ended; empty: never.
    idle_policy: dict[str, Any] = json_column()
    # The agent that `round-robin` chose last.
    round_robin_cursor: str = Field(default="", sa_column_kwargs={"server_default": text("''")})
    # What exists: the sums over agents that were heard of, are not lost and not revoked;
    # written by triggers of `agent`.
    capacity: dict[str, int] = json_column()
    version: int = 1
    create_time: dt.datetime = time_column(nullable=False, default_now=True)


class Agent(SQLModel, table=True):
    """A node. `state` is JOINING, ALIVE, SUSPECT or LOST; `version` counts changes of its settings."""

    __tablename__ = "agent"

    id: str = Field(primary_key=True)
    resource_group: str = Field(foreign_key="resource_group.name", index=True)
    state: str = "JOINING"
    drained: bool = False
    # When what still runs there is evicted; null: never.
    drain_deadline_time: dt.datetime | None = time_column()
    revoked: bool = False
    address: str = ""
    instance: str = ""
    architecture: str = ""
    capacity: dict[str, int] = json_column()
    backends: list[str] = json_column("[]")
    # The names of slots and of runtimes that it has ever reported, as far as this version was told.
    past_slots: list[str] = json_column("[]")
    past_backends: list[str] = json_column("[]")
    # What it says of runtimes, those it does not have included: name, available, message.
    runtimes: list[dict[str, Any]] = json_column("[]")
    software_version: str = ""
    underlay_address: str = ""
    underlay_mtu: int = 0
    # Whether it answers probes of paths between nodes.
    proves_paths: bool = Field(default=False, sa_column_kwargs={"server_default": text("false")})
    # Private networks that its kernels may reach: subnets of sessions on it are outside them.
    reachable_networks: list[str] = json_column("[]")
    boot_id: str = ""
    # Which enrolment counts, and the fingerprints of its newest certificate and of what asked for that, until the
    # newest is shown: a certificate, or at first a join token with a key.
    generation: int = Field(default=0, sa_column=Column(BigInteger, nullable=False, server_default=text("0")))
    certificate: str = Field(default="", sa_column_kwargs={"server_default": text("''")})
    former_certificate: str = Field(default="", sa_column_kwargs={"server_default": text("''")})
    # What is wrong with it, as it says and as managers have found: type, reason, message, since, blocks.
    reported_conditions: list[dict[str, Any]] = json_column("[]")
    found_conditions: list[dict[str, Any]] = json_column("[]")
    # Whether any of them blocks placements.
    blocked: bool | None = Field(
        default=None, sa_column=Column(Boolean, Computed(BLOCKED, persisted=True), nullable=False)
    )
    # Of the database, when the agent last said what it runs; null before the first time.
    incarnation: uuid.UUID | None = None
    version: int = 1
    create_time: dt.datetime = time_column(nullable=False, default_now=True)
    announce_time: dt.datetime | None = time_column()
    heartbeat_time: dt.datetime | None = time_column()


class Router(SQLModel, table=True):
    """A node that serves endpoints to clients at `url`."""

    __tablename__ = "router"

    id: str = Field(primary_key=True)
    revoked: bool = Field(default=False, sa_column_kwargs={"server_default": text("FALSE")})
    address: str = Field(default="", sa_column_kwargs={"server_default": text("''")})
    url: str = Field(default="", sa_column_kwargs={"server_default": text("''")})
    instance: str = Field(default="", sa_column_kwargs={"server_default": text("''")})
    software_version: str = Field(default="", sa_column_kwargs={"server_default": text("''")})
    # Which enrolment counts, and the fingerprints of its newest certificate and of the one that asked for that, until
    # the newest is shown.
    generation: int = Field(default=0, sa_column=Column(BigInteger, nullable=False, server_default=text("0")))
    certificate: str = Field(default="", sa_column_kwargs={"server_default": text("''")})
    former_certificate: str = Field(default="", sa_column_kwargs={"server_default": text("''")})
    create_time: dt.datetime = time_column(nullable=False, default_now=True)
    announce_time: dt.datetime | None = time_column()
    heartbeat_time: dt.datetime | None = time_column()


class EndpointToken(SQLModel, table=True):
    """A token that lets requests through to an endpoint; `id` is its `jti`."""

    __tablename__ = "endpoint_token"

    id: uuid.UUID = Field(primary_key=True)
    endpoint_id: uuid.UUID = Field(index=True)
    label: str
    creator: str = Field(index=True)
    create_time: dt.datetime = time_column(nullable=False, default_now=True)
    expire_time: dt.datetime = time_column(nullable=False)
    revoke_time: dt.datetime | None = time_column()


class JoinToken(SQLModel, table=True):
    """Lets nodes enrol as agents of a group, or as routers, so many times. `kind` is AGENT or ROUTER."""

    __tablename__ = "join_token"

    hash: bytes = Field(sa_column=Column(LargeBinary, primary_key=True))
    resource_group: str = Field(foreign_key="resource_group.name", ondelete="CASCADE")
    agent_id: str | None = None
    kind: str = Field(default="AGENT", sa_column_kwargs={"server_default": text("'AGENT'")})
    uses_left: int
    expire_time: dt.datetime = time_column(nullable=False)
