"""Endpoints, their revisions, shares, rollouts and replicas."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

from sqlalchemy import BigInteger, Column, Identity, Index, text
from sqlmodel import Field, SQLModel

from retinue.manager.store.tables.columns import json_column, time_column


class Endpoint(SQLModel, table=True):
    """An endpoint. `lifecycle` is ACTIVE, DELETING or DELETED; `version` counts changes of what is asked for."""

    __tablename__ = "endpoint"
    __table_args__ = (
        Index("endpoint_name", "project", "name", unique=True, postgresql_where=text("lifecycle <> 'DELETED'")),
        Index("endpoint_live", "lifecycle", postgresql_where=text("lifecycle <> 'DELETED'")),
        Index("endpoint_newest", text("create_time DESC"), text("id DESC")),
    )

    id: uuid.UUID = Field(primary_key=True)
    name: str
    project: str
    owner: str = Field(index=True)
    resource_group: str
    # First label of its host name, never given to another.
    host_label: str = Field(unique=True)
    lifecycle: str = "ACTIVE"
    settings: dict[str, Any] = json_column()
    version: int = 1
    newest_revision: int = 1
    target: int
    target_reason: str = ""
    # The newest decision that changed the target, with its inputs.
    decision: dict[str, Any] = json_column()
    conditions: list[dict[str, Any]] = json_column("[]")
    # When a replica was ready for the first time, and since when fewer are ready than wanted.
    first_ready_time: dt.datetime | None = time_column()
    short_time: dt.datetime | None = time_column()
    create_time: dt.datetime = time_column(nullable=False, default_now=True)
    delete_time: dt.datetime | None = time_column()


class EndpointRevision(SQLModel, table=True):
    """A revision, which never changes but for what its images were found to be and how its starts fail."""

    __tablename__ = "endpoint_revision"

    endpoint_id: uuid.UUID = Field(primary_key=True, foreign_key="endpoint.id", ondelete="CASCADE")
    number: int = Field(primary_key=True)
    spec: dict[str, Any] = json_column()
    # By reference: digest and id.
    found_images: dict[str, Any] = json_column()
    failures: int = 0
    retry_time: dt.datetime | None = time_column()
    # When it first had all requests, with all replicas ready: a rollback may go to it.
    serve_time: dt.datetime | None = time_column()
    author: str
    create_time: dt.datetime = time_column(nullable=False, default_now=True)


class EndpointTraffic(SQLModel, table=True):
    """The share of a revision in percent."""

    __tablename__ = "endpoint_traffic"

    endpoint_id: uuid.UUID = Field(primary_key=True, foreign_key="endpoint.id", ondelete="CASCADE")
    revision: int = Field(primary_key=True)
    percent: int


class Rollout(SQLModel, table=True):
    """The newest rollout of an endpoint. `state` is PROGRESSING, PAUSED, DONE, ROLLING_BACK or ROLLED_BACK."""

    __tablename__ = "rollout"

    endpoint_id: uuid.UUID = Field(primary_key=True, foreign_key="endpoint.id", ondelete="CASCADE")
    from_revision: int
    to_revision: int
    state: str
    step: int = 0
    promoted: bool = False
    message: str = ""
    policy: dict[str, Any] = json_column()
    since_time: dt.datetime = time_column(nullable=False, default_now=True)


class EndpointReplica(SQLModel, table=True):
    """A replica: its session, and what became of it. `state` is STARTING, READY, UNREADY, DRAINING, STOPPING or GONE.

    `health`, `address` and `port` are its agent's: what its probes say, empty without any, and where routers reach it.
    """

    __tablename__ = "endpoint_replica"
    __table_args__ = (Index("endpoint_replica_live", "endpoint_id", postgresql_where=text("state <> 'GONE'")),)

    session_id: uuid.UUID = Field(primary_key=True, foreign_key="session.id", ondelete="CASCADE")
    endpoint_id: uuid.UUID = Field(foreign_key="endpoint.id", ondelete="CASCADE", index=True)
    revision: int
    serial: int = Field(default=None, sa_column=Column(BigInteger, Identity(always=True), nullable=False))
    state: str = "STARTING"
    since_time: dt.datetime = time_column(nullable=False, default_now=True)
    drain_time: dt.datetime | None = time_column()
    was_ready: bool = False
    message: str = ""
    health: str = ""
    health_message: str = ""
    address: str = ""
    port: int = 0


class ScalingFloor(SQLModel, table=True):
    """A floor under the number of replicas of an endpoint, until a time."""

    __tablename__ = "scaling_floor"

    endpoint_id: uuid.UUID = Field(primary_key=True, foreign_key="endpoint.id", ondelete="CASCADE")
    replicas: int
    end_time: dt.datetime = time_column(nullable=False)
