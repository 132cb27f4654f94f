"""Conditions of agents: what they report themselves, and what managers have found."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import orjson
from sqlalchemy import text
from sqlmodel.ext.asyncio.session import AsyncSession

from retinue.manager.store.tables import Agent

Conditions: TypeAlias = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class AgentConditionRecord:
    """A condition of an agent; `blocks` says whether it keeps kernels from being placed there."""

    type: str
    reason: str
    message: str
    since: dt.datetime
    blocks: bool


def conditions_of(agent: Agent) -> list[AgentConditionRecord]:
    """Returns what managers have found of an agent, then what it reports. Raises LookupError, TypeError and ValueError on what another version
    wrote.
    """
    return [
        AgentConditionRecord(
            stored["type"],
            stored["reason"],
            stored["message"],
            dt.datetime.fromisoformat(stored["since"]),
            stored["blocks"],
        )
        for stored in (*agent.found_conditions, *agent.reported_conditions)
    ]


async def change(
    tx: AsyncSession,
    agent_id: str,
    which: Literal["reported", "found"],
    changed: Callable[[Conditions, dt.datetime], Conditions],
) -> bool:
    """Replaces the conditions of an agent by what `changed` makes of them and the time; returns whether they differ."""
    column = f"{which}_conditions"
    rows = await tx.execute(
        text(f"SELECT {column}, now() FROM agent WHERE id = :id FOR NO KEY UPDATE"),  # noqa: S608  # one of two words
        {"id": agent_id},
    )
    row = rows.one_or_none()
    if row is None:
        return False
    conditions = changed(_readable(row[0]), row[1])
    if list(conditions) == row[0]:
        return False
    await tx.execute(
        text(f"UPDATE agent SET {column} = CAST(:conditions AS jsonb) WHERE id = :id"),  # noqa: S608  # as above
        {"id": agent_id, "conditions": orjson.dumps(list(conditions)).decode()},
    )
    return True


def _readable(stored: object) -> Conditions:
    """Returns the conditions that this version can read: others are replaced, and keep no agent from being heard."""
    return [known for known in stored if _is_condition(known)] if isinstance(stored, list) else []


def _is_condition(stored: object) -> bool:
    return isinstance(stored, dict) and all(isinstance(stored.get(name), str) for name in ("type", "reason"))
