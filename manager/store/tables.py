"""The tables.

One truth for each fact: free capacity is capacity minus live claims, a claim lives as long as its attempt, shares are sums of
live claims. Amounts are integers in a slot's smallest unit: bytes for `mem`, thousandths for every other slot.
"""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    ForeignKey,
    Identity,
    Index,
    LargeBinary,
    Numeric,
    SmallInteger,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import CIDR, JSONB
from sqlmodel import Field, SQLModel


def _time(*, nullable: bool = True, default_now: bool = False) -> Any:
    return Field(
        default=None,
        sa_type=DateTime(timezone=True),
        nullable=nullable,
        sa_column_kwargs={"server_default": text("now()")} if default_now else {},
    )


def _json(default: str = "{}") -> Any:
    return Field(sa_column=Column(JSONB, nullable=False, server_default=text(f"'{default}'::jsonb")))


class Leadership(SQLModel, table=True):
    """The one row that says which term leads; every write of a leader checks it."""

    __tablename__ = "leadership"

    id: int = Field(default=1, sa_column=Column(SmallInteger, primary_key=True, autoincrement=False))
    term: int = Field(sa_column=Column(BigInteger, nullable=False))
    holder: str
    acquire_time: dt.datetime = _time(nullable=False, default_now=True)


class Project(SQLModel, table=True):
    """What sessions are accounted to."""

    __tablename__ = "project"

    name: str = Field(primary_key=True)
    create_time: dt.datetime = _time(nullable=False, default_now=True)


class UserAccount(SQLModel, table=True):
    """A person or a service; `role` is USER or ADMIN."""

    __tablename__ = "user_account"

    name: str = Field(primary_key=True)
    role: str
    create_time: dt.datetime = _time(nullable=False, default_now=True)


class Membership(SQLModel, table=True):
    """A user's role in a project: MEMBER or ADMIN."""

    __tablename__ = "membership"

    user_name: str = Field(primary_key=True, foreign_key="user_account.name", ondelete="CASCADE")
    project: str = Field(primary_key=True, foreign_key="project.name", ondelete="CASCADE")
    role: str


class Token(SQLModel, table=True):
    """A bearer token; only the SHA-256 of its secret is kept."""

    __tablename__ = "token"

    id: uuid.UUID = Field(primary_key=True)
    hash: bytes = Field(sa_column=Column(LargeBinary, nullable=False, unique=True))
    user_name: str = Field(foreign_key="user_account.name", ondelete="CASCADE", index=True)
    description: str = ""
    create_time: dt.datetime = _time(nullable=False, default_now=True)
    expire_time: dt.datetime | None = _time()
    revoke_time: dt.datetime | None = _time()


class JoinToken(SQLModel, table=True):
    """Lets nodes enrol as agents of a group, so many times."""

    __tablename__ = "join_token"

    hash: bytes = Field(sa_column=Column(LargeBinary, primary_key=True))
    resource_group: str = Field(foreign_key="resource_group.name", ondelete="CASCADE")
    agent_id: str | None = None
    uses_left: int
    expire_time: dt.datetime = _time(nullable=False)


class Request(SQLModel, table=True):
    """A finished creating call, to answer its repetitions: the serialized response and a hash of the request."""

    __tablename__ = "request"

    principal: str = Field(primary_key=True)
    method: str = Field(primary_key=True)
    request_id: uuid.UUID = Field(primary_key=True)
    body_hash: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    answer: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    create_time: dt.datetime = _time(nullable=False, default_now=True)


class ResourceGroup(SQLModel, table=True):
    """A pool of agents and its scheduling policy."""

    __tablename__ = "resource_group"

    name: str = Field(primary_key=True)
    session_strategy: str = "drf"
    agent_strategy: str = "concentrated"
    options: dict[str, str] = _json()
    owner_weights: dict[str, int] = _json()
    start_timeout_seconds: int = 600
    # ALLOW or DENY: whether kernels started in the group have a way out.
    egress: str = Field(default="ALLOW", sa_column_kwargs={"server_default": text("'ALLOW'")})
    # What sessions may mount: path, writable, projects.
    mount_roots: list[dict[str, Any]] = _json("[]")
    # When running sessions are ended that nobody needs; empty: never.
    idle_policy: dict[str, Any] = _json()
    # The agent that `round-robin` chose last.
    rotation: str = Field(default="", sa_column_kwargs={"server_default": text("''")})
    # What exists: the sums over agents that were heard of, are not lost and not revoked; written by triggers of `agent`.
    capacity: dict[str, int] = _json()
    version: int = 1
    create_time: dt.datetime = _time(nullable=False, default_now=True)


class Agent(SQLModel, table=True):
    """A node. `state` is JOINING, ALIVE, SUSPECT or LOST; `version` counts changes of its settings."""

    __tablename__ = "agent"

    id: str = Field(primary_key=True)
    resource_group: str = Field(foreign_key="resource_group.name", index=True)
    state: str = "JOINING"
    drained: bool = False
    revoked: bool = False
    address: str = ""
    instance: str = ""
    architecture: str = ""
    capacity: dict[str, int] = _json()
    backends: list[str] = _json("[]")
    software_version: str = ""
    underlay_address: str = ""
    underlay_mtu: int = 0
    boot_id: str = ""
    version: int = 1
    create_time: dt.datetime = _time(nullable=False, default_now=True)
    announce_time: dt.datetime | None = _time()
    heartbeat_time: dt.datetime | None = _time()


class Session(SQLModel, table=True):
    """A session. `spec` is the request in proto JSON with defaults filled in; `sequence` is the order of arrival."""

    __tablename__ = "session"
    __table_args__ = (
        Index("session_queue", "resource_group", "sequence", postgresql_where=text("state = 'PENDING'")),
        # For counting what waits without looking at history.
        Index("session_pending_owner", "owner", postgresql_where=text("state = 'PENDING'")),
        Index("session_pending_project", "project", postgresql_where=text("state = 'PENDING'")),
        Index("session_live", "state", postgresql_where=text("state NOT IN ('TERMINATED', 'CANCELLED')")),
        Index(
            "session_live_name",
            "project",
            "owner",
            "name",
            unique=True,
            postgresql_where=text("state NOT IN ('TERMINATED', 'CANCELLED')"),
        ),
        Index("session_newest", text("create_time DESC"), text("id DESC")),
        Index(
            "session_endpoint",
            "project",
            "endpoint",
            postgresql_where=text("endpoint <> '' AND state NOT IN ('TERMINATED', 'CANCELLED')"),
        ),
        Index("session_expiry", "expire_time", postgresql_where=text("expire_time IS NOT NULL")),
    )

    id: uuid.UUID = Field(primary_key=True)
    sequence: int = Field(
        default=None, sa_column=Column(BigInteger, Identity(always=True), nullable=False, unique=True)
    )
    name: str
    owner: str = Field(index=True)
    project: str
    resource_group: str
    type: str
    cluster_mode: str
    cluster_size: int
    priority: int
    spec: dict[str, Any] = _json()
    state: str
    result: str = "UNDEFINED"
    exit_code: int | None = None
    reason: str = ""
    message: str = ""
    # How a waiting session was last judged: tier and shortfalls.
    explanation: dict[str, Any] = _json()
    conditions: list[dict[str, Any]] = _json("[]")
    network: str = ""
    # Passes that tried to place it, and starts that failed after placement.
    tries: int = 0
    failed_starts: int = 0
    # How often it was run again.
    retries: int = Field(default=0, sa_column_kwargs={"server_default": text("0")})
    failed_agents: list[str] = _json("[]")
    last_failure: str = ""
    # Endpoint that it is a replica of; empty for none.
    endpoint: str = Field(default="", sa_column_kwargs={"server_default": text("''")})
    # Room kept for it while those it preempts are ending: `agents` of its kernels by rank, `until`; empty for none.
    promise: dict[str, Any] = _json()
    # Kill without grace.
    force: bool = False
    version: int = 1
    create_time: dt.datetime = _time(nullable=False, default_now=True)
    evaluate_time: dt.datetime | None = _time()
    next_try_time: dt.datetime | None = _time()
    schedule_time: dt.datetime | None = _time()
    start_time: dt.datetime | None = _time()
    # When fetching an image for it last got on; the bound of its start counts from here.
    pull_time: dt.datetime | None = _time()
    # When it entered the state it is in; bounds of waiting states count from here.
    state_time: dt.datetime = _time(nullable=False, default_now=True)
    end_time: dt.datetime | None = _time()
    # When its time limit ends it; only while it runs.
    expire_time: dt.datetime | None = _time()


class SessionIdle(SQLModel, table=True):
    """What is known of the use of a session, for the idle policy; no row: nothing yet."""

    __tablename__ = "session_idle"

    session_id: uuid.UUID = Field(primary_key=True, foreign_key="session.id", ondelete="CASCADE")
    # When something was last exchanged with it, to some seconds.
    interaction_time: dt.datetime | None = _time()
    # Seconds since then, or since its start, in which nobody could have been heard; and until when that was counted.
    paused_seconds: float = Field(default=0.0, sa_column_kwargs={"server_default": text("0")})
    pause_time: dt.datetime | None = _time()
    # Kept by its owner until then.
    extended_until: dt.datetime | None = _time()
    # When each checker warned of the end, in seconds since 1970.
    warned: dict[str, float] = _json()
    # What it used, and what that came to when it was last written.
    window: dict[str, Any] = _json()
    reading: dict[str, Any] = _json()


class IdleOverride(SQLModel, table=True):
    """How the idle policies of resource groups differ for the sessions of a user."""

    __tablename__ = "idle_override"

    user_name: str = Field(primary_key=True, foreign_key="user_account.name", ondelete="CASCADE")
    policy: dict[str, Any] = _json()
    version: int = 1


class IdleLook(SQLModel, table=True):
    """The one row that says when a leader last looked at idle sessions: what came after is not known."""

    __tablename__ = "idle_look"

    id: int = Field(default=1, sa_column=Column(SmallInteger, primary_key=True, autoincrement=False))
    time: dt.datetime | None = _time()


class Template(SQLModel, table=True):
    """A stored partial session request; no project: of all projects. What it is, is in its versions; `version` is the newest."""

    __tablename__ = "template"
    __table_args__ = (
        Index(
            "template_name",
            text("coalesce(project, '')"),
            "name",
            unique=True,
            postgresql_where=text("delete_time IS NULL"),
        ),
    )

    id: uuid.UUID = Field(primary_key=True)
    project: str | None = Field(default=None, foreign_key="project.name", ondelete="CASCADE")
    name: str
    # Who made it.
    owner: str
    version: int = 1
    create_time: dt.datetime = _time(nullable=False, default_now=True)
    # Deleted ones stay readable by their ids.
    delete_time: dt.datetime | None = _time()


class TemplateVersion(SQLModel, table=True):
    """One version of a template; never changed. `spec` is a SessionSpec in proto JSON."""

    __tablename__ = "template_version"

    template_id: uuid.UUID = Field(primary_key=True, foreign_key="template.id", ondelete="CASCADE")
    version: int = Field(primary_key=True)
    description: str
    spec: dict[str, Any] = _json()
    author: str
    create_time: dt.datetime = _time(nullable=False, default_now=True)


class SessionDependency(SQLModel, table=True):
    """A session waits for the success of another; `settled` once that has come. A parent that is gone leaves its row."""

    __tablename__ = "session_dependency"
    __table_args__ = (
        Index("session_dependency_open", "parent_id", postgresql_where=text("NOT settled")),
        Index("session_dependency_parent", "parent_id"),
    )

    child_id: uuid.UUID = Field(primary_key=True, foreign_key="session.id", ondelete="CASCADE")
    parent_id: uuid.UUID = Field(primary_key=True)
    position: int
    settled: bool


class Webhook(SQLModel, table=True):
    """Who is told what happens to a session, until it is over and told; the secret is sealed."""

    __tablename__ = "webhook"

    session_id: uuid.UUID = Field(primary_key=True, foreign_key="session.id", ondelete="CASCADE")
    position: int = Field(primary_key=True)
    url: str
    events: list[str] = _json("[]")
    secret: bytes = Field(sa_column=Column(LargeBinary, nullable=False))


class WebhookDelivery(SQLModel, table=True):
    """Something that a webhook is still to be told."""

    __tablename__ = "webhook_delivery"

    session_id: uuid.UUID = Field(primary_key=True, foreign_key="session.id", ondelete="CASCADE")
    position: int = Field(primary_key=True)
    revision: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    event: str
    body: str
    tries: int
    next_try_time: dt.datetime = _time(nullable=False)


class WebhookCursor(SQLModel, table=True):
    """The one row that says up to which revision the journal was gone through for webhooks."""

    __tablename__ = "webhook_cursor"

    id: int = Field(default=1, sa_column=Column(SmallInteger, primary_key=True, autoincrement=False))
    revision: int = Field(sa_column=Column(BigInteger, nullable=False))


class PortTicket(SQLModel, table=True):
    """Lets whoever has its secret, of which only the SHA-256 is kept, begin once to use a port of a session over HTTP."""

    __tablename__ = "port_ticket"

    hash: bytes = Field(sa_column=Column(LargeBinary, primary_key=True))
    session_id: uuid.UUID = Field(foreign_key="session.id", ondelete="CASCADE")
    port: int
    user_name: str
    # What its user was known by: it is worth as much as that.
    token_id: uuid.UUID = Field(foreign_key="token.id", ondelete="CASCADE")
    # Where to begin.
    path: str
    expire_time: dt.datetime = _time(nullable=False)


class PortAccess(SQLModel, table=True):
    """What a ticket was exchanged for: a browser's cookie, of which only the SHA-256 is kept."""

    __tablename__ = "port_access"

    hash: bytes = Field(sa_column=Column(LargeBinary, primary_key=True))
    session_id: uuid.UUID = Field(foreign_key="session.id", ondelete="CASCADE")
    port: int
    user_name: str
    token_id: uuid.UUID = Field(foreign_key="token.id", ondelete="CASCADE")
    expire_time: dt.datetime = _time(nullable=False)


class Kernel(SQLModel, table=True):
    """A kernel. The main kernel's id is its session's. `agent_id` and `epoch` are those of its newest attempt."""

    __tablename__ = "kernel"
    __table_args__ = (Index("kernel_place", "session_id", "local_rank", unique=True),)

    id: uuid.UUID = Field(primary_key=True)
    session_id: uuid.UUID = Field(foreign_key="session.id", ondelete="CASCADE")
    role: str
    role_index: int
    local_rank: int
    hostname: str
    slots: dict[str, int] = _json()
    state: str
    agent_id: str | None = None
    epoch: int = 0
    address: str = ""
    exit_code: int | None = None
    reason: str = ""
    # What its image was found to be: digest in the registry (empty if it came from none) and the engine's id.
    image_digest: str = Field(default="", sa_column_kwargs={"server_default": text("''")})
    image_id: str = Field(default="", sa_column_kwargs={"server_default": text("''")})
    # Ports its image says it serves: name, protocol, ports.
    service_ports: list[dict[str, Any]] = _json("[]")
    # While it is PULLING: bytes and total.
    pull: dict[str, int] = _json()


class Attempt(SQLModel, table=True):
    """One try to run a kernel; live until its agent confirmed its end. `goal` is HELD, RUNNING or STOPPED."""

    __tablename__ = "attempt"
    __table_args__ = (
        Index("attempt_live_agent", "agent_id", postgresql_where=text("end_time IS NULL OR log_pending")),
        Index("attempt_live_session", "session_id", postgresql_where=text("end_time IS NULL")),
    )

    kernel_id: uuid.UUID = Field(primary_key=True, foreign_key="kernel.id", ondelete="CASCADE")
    epoch: int = Field(primary_key=True)
    session_id: uuid.UUID
    agent_id: str
    goal: str
    # Last state its agent reported: '', ACCEPTED, PULLING, CREATING, HELD, RUNNING, STOPPING, EXITED, FAILED.
    observed: str = ""
    term: int = Field(sa_column=Column(BigInteger, nullable=False))
    # It ended, and its output is still to be fetched: its agent keeps it until then.
    log_pending: bool = False
    log_size: int = Field(default=0, sa_column=Column(BigInteger, nullable=False, server_default=text("0")))
    create_time: dt.datetime = _time(nullable=False, default_now=True)
    end_time: dt.datetime | None = _time()


class Claim(SQLModel, table=True):
    """How much of one slot of one agent an attempt holds, until it is released with the attempt's end."""

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
    claim_time: dt.datetime = _time(nullable=False, default_now=True)
    release_time: dt.datetime | None = _time()


class DrfShare(SQLModel, table=True):
    """An owner's dominant share in a group: exactly the live claims, written in the commit that changes them."""

    __tablename__ = "drf_share"

    resource_group: str = Field(primary_key=True)
    owner: str = Field(primary_key=True)
    weight: int = 1
    held: dict[str, int] = _json()
    dominant_slot: str = ""
    numerator: int = Field(default=0, sa_column=Column(BigInteger, nullable=False))
    denominator: int = Field(default=0, sa_column=Column(BigInteger, nullable=False))


class Usage(SQLModel, table=True):
    """What released claims of an owner held of a group's slot on one day (UTC), in amount times seconds: written with the release."""

    __tablename__ = "usage"

    resource_group: str = Field(primary_key=True)
    owner: str = Field(primary_key=True)
    slot: str = Field(primary_key=True)
    day: dt.date = Field(primary_key=True)
    # A day of 2**53 bytes has more digits than a bigint.
    amount_seconds: decimal.Decimal = Field(sa_column=Column(Numeric, nullable=False))


class Quota(SQLModel, table=True):
    """Limits for the sessions of a user, a project or a resource group (`kind` USER, PROJECT, RESOURCE_GROUP); None is no limit."""

    __tablename__ = "quota"

    kind: str = Field(primary_key=True)
    name: str = Field(primary_key=True)
    # Most that live claims may hold, by slot.
    slots: dict[str, int] = _json()
    # Sessions that are placed and not over, and sessions that wait.
    max_sessions: int | None = None
    max_pending_sessions: int | None = None
    highest_priority: int | None = None
    version: int = 1


class Network(SQLModel, table=True):
    """A private network. Its session lets go of it before it is given another; the row goes when no agent has it any more."""

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


class KernelLog(SQLModel, table=True):
    """The kept tail of an ended attempt's output; of each kernel, that of the newest attempts."""

    __tablename__ = "kernel_log"

    kernel_id: uuid.UUID = Field(primary_key=True, foreign_key="kernel.id", ondelete="CASCADE")
    epoch: int = Field(primary_key=True)
    start_offset: int = Field(sa_column=Column(BigInteger, nullable=False))
    data: bytes = Field(sa_column=Column(LargeBinary, nullable=False))


class JournalHead(SQLModel, table=True):
    """The one row that numbers the journal; whoever appends holds it to the end of its commit."""

    __tablename__ = "journal_head"

    id: int = Field(default=1, sa_column=Column(SmallInteger, primary_key=True, autoincrement=False))
    revision: int = Field(sa_column=Column(BigInteger, nullable=False))
    # Lowest revision a watcher may resume after.
    oldest: int = Field(sa_column=Column(BigInteger, nullable=False))


class Journal(SQLModel, table=True):
    """What happened, in commit order. `kind` is CREATED, SESSION_MOVED, KERNEL_MOVED, IMAGE_PULL, NOTED or ENTERED."""

    __tablename__ = "journal"
    __table_args__ = (Index("journal_session", "session_id", "revision"),)

    revision: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    create_time: dt.datetime = _time(nullable=False, default_now=True)
    session_id: uuid.UUID
    owner: str
    project: str
    kind: str
    payload: dict[str, Any] = _json()


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
