"""Columns that many tables have."""

from __future__ import annotations

from typing import Any

from sqlalchemy import CheckConstraint, Column, DateTime, text
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


def one_row(table: str) -> CheckConstraint:
    """Keeps a table to the row whose `id` is 1."""
    return CheckConstraint("id = 1", name=f"{table}_one_row")


def json_column(default: str = "{}") -> Any:
    """JSON, never null; `default` is JSON, too."""
    return Field(sa_column=Column(JSONB, nullable=False, server_default=text(f"'{default}'::jsonb")))


# Half of each page stays free for new versions of rows: rows that move through states often find room on theirs, and no
# index is written (HOT updates).
OFTEN_UPDATED = {"postgresql_with": {"fillfactor": 50}}
