"""Columns that many tables have."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, DateTime, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field


def time_column(*, nullable: bool = True, default_now: bool = False) -> Any:
    """A moment; with `default_now`, that of the commit that makes the row unless another is given."""
    return Field(
        default=None,
        sa_type=DateTime(timezone=True),
        nullable=nullable,
        sa_column_kwargs={"server_default": text("now()")} if default_now else {},
    )


def json_column(default: str = "{}") -> Any:
    """JSON, never null; `default` is JSON, too."""
    return Field(sa_column=Column(JSONB, nullable=False, server_default=text(f"'{default}'::jsonb")))
