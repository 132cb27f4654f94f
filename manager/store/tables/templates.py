"""Stored partial session requests."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

from sqlalchemy import Column, Computed, Index, Integer, text
from sqlmodel import Field, SQLModel

from retinue.manager.store.tables.columns import json_column, time_column


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
