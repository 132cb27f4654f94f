"""Terminates sessions on request."""

from __future__ import annotations

import uuid

from retinue.manager.reasons import SessionReason
from retinue.manager.session.core.state_machine import SessionMoved
from retinue.manager.session.transaction import UnreadableSessionError, load_for_update, save
from retinue.manager.store.database import Transaction


async def terminate(tx: Transaction, session_id: uuid.UUID, *, by: str, force: bool) -> bool:
    """Terminates a session; returns whether anything changed. Raises UnreadableSessionError."""
    work = await load_for_update(tx, [session_id])
    if session_id in work.unreadable:
        raise UnreadableSessionError(session_id)
    machine = work.machines.get(session_id)
    if machine is None:
        return False
    machine.terminate(SessionReason.TERMINATED_BY_USER, f"terminated by {by}")
    changed = any(isinstance(move, SessionMoved) for move in machine.moves)
    if force and machine.session.state == "TERMINATING" and not work.records[session_id].force:
        # Also shortens the grace of one that is ending already.
        work.forced.add(session_id)
        changed = True
    await save(tx, work)
    return changed
