"""Reads from the journal who accessed a session's kernels."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

from sqlalchemy import text

from retinue.manager.store import journal
from retinue.manager.store.database import Transaction

KIND = "ENTERED"


async def record(tx: Transaction, session_id: uuid.UUID, payload: Mapping[str, Any], within: float | None) -> bool:
    """Appends an access to the journal, unless the same one was appended in the last `within` seconds; returns whether it was.

    With None every one is appended. The session is there.
    """
    found = await tx.execute(
        text("""
            SELECT owner, project, EXISTS (
                SELECT FROM journal WHERE session_id = :id AND kind = :kind AND payload = CAST(:payload AS jsonb)
                    AND create_time > clock_timestamp() - make_interval(secs => :within)
            ) AS known FROM session WHERE id = :id
        """),
        {"id": session_id, "kind": KIND, "payload": json.dumps(payload), "within": within or 0.0},
    )
    owner, project, known = found.one()
    if known and within is not None:
        return False
    await journal.append(tx, [journal.Entry(session_id, owner, project, KIND, payload)])
    return True
