"""Conditions of sessions that follow from their agents."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping
from typing import Any

from sqlalchemy import text

from retinue.manager.reasons import ConditionType
from retinue.manager.store import journal, sessions
from retinue.manager.store.database import Transaction
from retinue.manager.store.recordset import Row, fetched

AGENT_LOST = ConditionType.AGENT_LOST


async def set_agent_lost(tx: Transaction, agent_id: str, *, lost: bool) -> None:
    """Puts the condition AGENT_LOST on the live sessions with a live attempt on an agent, or takes it off them."""
    rows = await tx.execute(
        text("""
            SELECT s.id, s.owner, s.project, s.reason, s.message, s.conditions, now() AS now,
                EXISTS (SELECT FROM agent g WHERE g.id = :agent AND g.revoked) AS revoked
            FROM session s
            WHERE s.state NOT IN ('PENDING', 'TERMINATED', 'CANCELLED')
              AND EXISTS (SELECT FROM attempt a WHERE a.session_id = s.id AND a.agent_id = :agent AND a.end_time IS NULL)
              AND (:lost OR s.conditions @> CAST(:mark AS jsonb))
            ORDER BY s.id FOR UPDATE OF s
        """),
        {"agent": agent_id, "lost": lost, "mark": f'[{{"agent": "{agent_id}"}}]'},
    )
    changed: dict[uuid.UUID, tuple[Row, list[dict[str, Any]]]] = {}
    for row in fetched(rows):
        others = [condition for condition in row["conditions"] if condition.get("agent") != agent_id]
        now: dt.datetime = row["now"]
        mine = {
            "type": AGENT_LOST,
            "agent": agent_id,
            "message": f"agent {agent_id} was revoked; the session ends, or runs elsewhere, once the agent is lost"
            if row["revoked"]
            else f"agent {agent_id} has not been heard of; its kernels are kept for its return",
            "since": now.isoformat(),
        }
        conditions = [*others, mine] if lost else others
        if conditions != row["conditions"]:
            changed[row["id"]] = (row, conditions)
    await _write(tx, changed)


async def set_texts(tx: Transaction, texts: Mapping[uuid.UUID, Mapping[str, str]]) -> None:
    """Puts conditions on running sessions by type and text, or with an empty text takes them off."""
    rows = await tx.execute(
        text("""
            SELECT s.id, s.owner, s.project, s.reason, s.message, s.conditions, now() AS now FROM session s
            WHERE s.id = ANY(:ids) AND s.state = 'RUNNING' ORDER BY s.id FOR UPDATE
        """),
        {"ids": list(texts)},
    )
    changed: dict[uuid.UUID, tuple[Row, list[dict[str, Any]]]] = {}
    for row in fetched(rows):
        wanted, since = texts[row["id"]], row["now"].isoformat()
        others = [condition for condition in row["conditions"] if condition["type"] not in wanted]
        new = [{"type": kind, "message": message, "since": since} for kind, message in wanted.items() if message]
        if others + new != row["conditions"]:
            changed[row["id"]] = (row, others + new)
    await _write(tx, changed)


async def _write(tx: Transaction, changed: Mapping[uuid.UUID, tuple[Row, list[dict[str, Any]]]]) -> None:
    if not changed:
        return
    await sessions.set_conditions(
        tx, [{"id": session_id, "conditions": conditions} for session_id, (_, conditions) in changed.items()]
    )
    await journal.append(
        tx,
        [
            journal.Entry(
                session_id=session_id,
                owner=row["owner"],
                project=row["project"],
                kind="NOTED",
                payload={
                    "reason": row["reason"],
                    "message": row["message"],
                    "conditions": conditions,
                    "new": [condition["type"] for condition in conditions if condition not in row["conditions"]],
                },
            )
            for session_id, (row, conditions) in changed.items()
        ],
    )
