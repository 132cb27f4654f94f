"""Conditions of sessions that follow from their agents."""

from __future__ import annotations

import datetime as dt

from sqlalchemy import text

from manager.store import journal, sessions
from manager.store.database import Transaction

AGENT_LOST = "AGENT_LOST"


async def set_agent_lost(tx: Transaction, agent_id: str, *, lost: bool) -> None:
    """Puts the condition AGENT_LOST on the live sessions with a live attempt on an agent, or takes it off them."""
    rows = await tx.execute(
        text("""
            SELECT s.id, s.owner, s.project, s.reason, s.message, s.conditions, now() AS now FROM session s
            WHERE s.state NOT IN ('PENDING', 'TERMINATED', 'CANCELLED')
              AND EXISTS (SELECT FROM attempt a WHERE a.session_id = s.id AND a.agent_id = :agent AND a.end_time IS NULL)
              AND (:lost OR s.conditions @> CAST(:mark AS jsonb))
            ORDER BY s.id FOR UPDATE OF s
        """),
        {"agent": agent_id, "lost": lost, "mark": f'[{{"agent": "{agent_id}"}}]'},
    )
    changed, entries = [], []
    for row in rows.mappings():
        others = [condition for condition in row["conditions"] if condition.get("agent") != agent_id]
        now: dt.datetime = row["now"]
        mine = {
            "type": AGENT_LOST,
            "agent": agent_id,
            "message": f"agent {agent_id} has not been heard of; its kernels are kept for its return",
            "since": now.isoformat(),
        }
        conditions = [*others, mine] if lost else others
        if conditions != row["conditions"]:
            changed.append({"id": row["id"], "conditions": conditions})
            payload = {"reason": row["reason"], "message": row["message"], "conditions": conditions}
            entries.append(
                journal.Entry(
                    session_id=row["id"], owner=row["owner"], project=row["project"], kind="NOTED", payload=payload
                )
            )
    if changed:
        await sessions.set_conditions(tx, changed)
        await journal.append(tx, entries)
