"""Sessions, their kernels, every try to run one, and the templates that they are made from."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

from sqlalchemy import ARRAY, BigInteger, Column, Computed, Identity, Index, Integer, LargeBinary, Text, text
from sqlmodel import Field, SQLModel

from retinue.manager.store.tables.columns import OFTEN_UPDATED, json_column, time_column

# As PostgreSQL writes it, with which migrations are compared.
_VERSION_OF_SPEC = "CASE WHEN jsonb_typeof(spec->'version'::text) = 'number'::text THEN (spec->>'version'::text)::integer ELSE NULL::integer END"


class Session(SQLModel, table=True):
    """A session. `spec` is its spec as a document; columns from `labels` to `sftp` are what queries read of that.
    `number` is the order of arrival.
    """

    __tablename__ = "session"
    __table_args__ = (
        Index("session_number", "number", unique=True),
        Index("session_queue", "resource_group", "number", postgresql_where=text("state = 'PENDING'")),
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
        # For the newest terminated session of a name, without reading all that its owner ever had.
        Index(
            "session_ended_name",
            "owner",
            "name",
            "number",
            postgresql_where=text("state IN ('TERMINATED', 'CANCELLED')"),
        ),
        Index("session_newest", text("create_time DESC"), text("id DESC")),
        Index(
            "session_endpoint",
            "project",
            "endpoint",
            postgresql_where=text("endpoint <> '' AND state NOT IN ('TERMINATED', 'CANCELLED')"),
        ),
        # For removing those that ended long ago.
        Index("session_ended", "end_time", postgresql_where=text("end_time IS NOT NULL")),
        Index("session_expiry", "expire_time", postgresql_where=text("expire_time IS NOT NULL")),
    )

    id: uuid.UUID = Field(primary_key=True)
    number: int = Field(default=None, sa_column=Column(BigInteger, Identity(always=True), nullable=False))
    name: str
    owner: str = Field(index=True)
    project: str
    resource_group: str
    type: str
    cluster_mode: str
    cluster_size: int
    priority: int
    spec: dict[str, Any] = json_column()
    # Size of `spec` as text: what is read of large ones is bounded without reading them.
    spec_bytes: int = Field(
        default=None, sa_column=Column(Integer, Computed("octet_length(spec::text)", persisted=True), nullable=False)
    )
    # The version of that document.
    spec_version: int | None = Field(
        default=None,
        sa_column=Column(
            Integer,
            Computed(_VERSION_OF_SPEC, persisted=True),
        ),
    )
    labels: dict[str, str] = json_column()
    # Not placed until a caller releases it, and not before that many seconds since 1970.
    hold: bool = Field(default=False, sa_column_kwargs={"server_default": text("false")})
    earliest_start_time: float | None = None
    # Agents to run on: only those when strict, else those first.
    agents: list[str] = Field(
        default_factory=list, sa_column=Column(ARRAY(Text), nullable=False, server_default=text("'{}'"))
    )
    agents_strict: bool = Field(default=False, sa_column_kwargs={"server_default": text("false")})
    architecture: str = Field(default="", sa_column_kwargs={"server_default": text("''")})
    replica_placement: str = Field(default="", sa_column_kwargs={"server_default": text("''")})
    time_limit_seconds: float | None = None
    grace_seconds: float = Field(default=10.0, sa_column_kwargs={"server_default": text("10")})
    preemptible: bool = Field(default=False, sa_column_kwargs={"server_default": text("false")})
    # In all; 1: it is not run again.
    max_attempts: int = Field(default=1, sa_column_kwargs={"server_default": text("1")})
    # Whether it serves its mounts by SFTP.
    sftp: bool = Field(default=False, sa_column_kwargs={"server_default": text("false")})
    state: str
    result: str = "UNDEFINED"
    exit_code: int | None = None
    reason: str = ""
    message: str = ""
    # The result of the last pass that evaluated it while it waited: tier and shortfalls.
    explanation: dict[str, Any] = json_column()
    conditions: list[dict[str, Any]] = json_column("[]")
    network: str = ""
    # Passes that tried to place it, and starts that failed after placement.
    tries: int = 0
    failed_starts: int = 0
    # How often it was run again.
    retries: int = Field(default=0, sa_column_kwargs={"server_default": text("0")})
    failed_agents: list[str] = json_column("[]")
    last_failure: str = ""
    # Endpoint that it is a replica of; empty for none.
    endpoint: str = Field(default="", sa_column_kwargs={"server_default": text("''")})
    # Room kept for it while those it preempts are ending: `agents` of its kernels by rank, `until`; empty for none.
    nomination: dict[str, Any] = json_column()
    # Kill without grace.
    force: bool = False
    version: int = 1
    create_time: dt.datetime = time_column(nullable=False, default_now=True)
    evaluate_time: dt.datetime | None = time_column()
    next_try_time: dt.datetime | None = time_column()
    schedule_time: dt.datetime | None = time_column()
    start_time: dt.datetime | None = time_column()
    # When fetching an image for it last got on; the bound of its start counts from here.
    pull_time: dt.datetime | None = time_column()
    # When it entered the state it is in; bounds of waiting states count from here.
    state_time: dt.datetime = time_column(nullable=False, default_now=True)
    end_time: dt.datetime | None = time_column()
    # When its time limit ends it; only while it runs.
    expire_time: dt.datetime | None = time_column()


class SessionDependency(SQLModel, table=True):
    """A session waits for the end of another that is of a `kind`; `settled` once that has come. A parent that is gone
    leaves its row.
    """

    __tablename__ = "session_dependency"
    __table_args__ = (
        Index("session_dependency_open", "parent_id", postgresql_where=text("NOT settled")),
        Index("session_dependency_parent", "parent_id"),
    )

    child_id: uuid.UUID = Field(primary_key=True, foreign_key="session.id", ondelete="CASCADE")
    parent_id: uuid.UUID = Field(primary_key=True)
    position: int
    settled: bool
    # A DependencyKind.
    kind: str = Field(default="SUCCESS", sa_column_kwargs={"server_default": text("'SUCCESS'")})


class Kernel(SQLModel, table=True):
    """A kernel. The main kernel's id is its session's. `agent_id` and `epoch` are those of its newest attempt."""

    __tablename__ = "kernel"
    __table_args__ = (Index("kernel_place", "session_id", "local_rank", unique=True), OFTEN_UPDATED)

    id: uuid.UUID = Field(primary_key=True)
    session_id: uuid.UUID = Field(foreign_key="session.id", ondelete="CASCADE")
    role: str
    role_index: int
    local_rank: int
    hostname: str
    slots: dict[str, int] = json_column()
    # The reference of its image, empty for none, and its Isolation.
    image: str = Field(default="", sa_column_kwargs={"server_default": text("''")})
    isolation: str = Field(default="PROCESS", sa_column_kwargs={"server_default": text("'PROCESS'")})
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
    service_ports: list[dict[str, Any]] = json_column("[]")
    # While it is PULLING: bytes and total.
    pull: dict[str, int] = json_column()


class Attempt(SQLModel, table=True):
    """One try to run a kernel; live until its agent confirmed its end. `goal` is HELD, RUNNING or STOPPED."""

    __tablename__ = "attempt"
    __table_args__ = (
        Index("attempt_live_agent", "agent_id", postgresql_where=text("end_time IS NULL OR log_pending")),
        Index("attempt_live_session", "session_id", postgresql_where=text("end_time IS NULL")),
        OFTEN_UPDATED,
    )

    # Goes with the kernel, from whose row it is made: by a trigger, not by a reference.
    kernel_id: uuid.UUID = Field(primary_key=True)
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
    create_time: dt.datetime = time_column(nullable=False, default_now=True)
    # When its end was committed, and when it ended as its agent says: at most the former,
    # None when the agent does not know.
    end_time: dt.datetime | None = time_column()
    observed_end_time: dt.datetime | None = time_column()
    # What it had used at its end, as `FinalUsage`; empty: not measured.
    usage: dict[str, Any] = json_column("{}")


class KernelLog(SQLModel, table=True):
    """The kept tail of an ended attempt's output; of each kernel, that of the newest attempts."""

    __tablename__ = "kernel_log"

    kernel_id: uuid.UUID = Field(primary_key=True, foreign_key="kernel.id", ondelete="CASCADE")
    epoch: int = Field(primary_key=True)
    start_offset: int = Field(sa_column=Column(BigInteger, nullable=False))
    data: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    # Which of its bytes came from which stream, as `StreamRuns` writes it; empty: not known.
    streams: bytes = Field(default=b"", sa_column=Column(LargeBinary, nullable=False, server_default=text("''::bytea")))


class Template(SQLModel, table=True):
    """A stored partial session request; no project: of all projects. What it is, is in its versions;
    `version` is the newest.
    """

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
    create_time: dt.datetime = time_column(nullable=False, default_now=True)
    # Deleted ones stay readable by their ids.
    delete_time: dt.datetime | None = time_column()


class TemplateVersion(SQLModel, table=True):
    """One version of a template; never changed. `spec` is a SessionSpec in proto JSON."""

    __tablename__ = "template_version"

    template_id: uuid.UUID = Field(primary_key=True, foreign_key="template.id", ondelete="CASCADE")
    version: int = Field(primary_key=True)
    description: str
    spec: dict[str, Any] = json_column()
    # Size of `spec` as text: what is read of large ones is bounded without reading them.
    spec_bytes: int = Field(
        default=None, sa_column=Column(Integer, Computed("octet_length(spec::text)", persisted=True), nullable=False)
    )
    author: str
    create_time: dt.datetime = time_column(nullable=False, default_now=True)
