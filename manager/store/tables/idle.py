"""The recorded use of sessions, and the overrides of idle policies for a user."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

from sqlalchemy import Column, SmallInteger, text
from sqlmodel import Field, SQLModel

from retinue.manager.store.tables.columns import json_column, time_column


class SessionIdle(SQLModel, table=True):
    """The recorded use of a session, for the idle policy; no row: nothing yet."""

    __tablename__ = "session_idle"

    session_id: uuid.UUID = Field(primary_key=True, foreign_key="session.id", ondelete="CASCADE")
    # When something was last exchanged with it, to some seconds.
    interaction_time: dt.datetime | None = time_column()
    # Seconds since then, or since its start, in which no user could have been heard; and until when that was counted.
    paused_seconds: float = Field(default=0.0, sa_column_kwargs={"server_default": text("0")})
    pause_time: dt.datetime | None = time_column()
    # Kept by its owner until then.
    extended_until: dt.datetime | None = time_column()
    # When each checker warned of the end, in seconds since 1970.
    warned: dict[str, float] = json_column()
    # What it used, and what that came to when it was last written.
    window: dict[str, Any] = json_column()
    reading: dict[str, Any] = json_column()


class IdleOverride(SQLModel, table=True):
    """An override of the idle policies of resource groups for the sessions of a user."""

    __tablename__ = "idle_override"

    user_name: str = Field(primary_key=True, foreign_key="user_account.name", ondelete="CASCADE")
    policy: dict[str, Any] = json_column()
    version: int = 1


class IdleLook(SQLModel, table=True):
    """The one row that says when a leader last evaluated idle sessions: what came after is not known."""

    __tablename__ = "idle_look"

    id: int = Field(default=1, sa_column=Column(SmallInteger, primary_key=True, autoincrement=False))
    time: dt.datetime | None = time_column()
