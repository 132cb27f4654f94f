"""What users may do to sessions: create and terminate. Any replica does it; the leader finds out from the journal."""

from __future__ import annotations

import uuid
from typing import Any

from sqlmodel.ext.asyncio.session import AsyncSession

from manager.lifecycle.machine import SessionMoved
from manager.lifecycle.spec import SessionSpec, kernel_plans
from manager.lifecycle.working_set import put_back, take_out
from manager.scheduling.amounts import parse_amount
from manager.store import journal, sessions

QUEUED = "QUEUED"


def new_rows(session_id: uuid.UUID, owner: str, spec: SessionSpec) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The rows of a session that was just accepted, and of its kernels; amounts in smallest units."""
    session = {
        "id": session_id,
        "name": spec.name,
        "owner": owner,
        "project": spec.project,
        "resource_group": spec.resource_group,
        "type": spec.type,
        "cluster_mode": "SINGLE_NODE" if spec.single_node else "MULTI_NODE",
        "cluster_size": spec.cluster_size,
        "priority": spec.priority,
        "spec": spec.to_json(),
        "state": "PENDING",
        "result": "UNDEFINED",
        "reason": QUEUED,
        "message": "no pass of the scheduler has looked at it yet",
        "version": 1,
    }
    amounts = {
        role: {slot: parse_amount(slot, text) for slot, text in spec.of_role(role).slots.items()}
        for role in ("main", "sub")
    }
    kernels = [
        {
            "id": plan.id,
            "session_id": session_id,
            "role": plan.role,
            "role_index": plan.index,
            "local_rank": plan.local_rank,
            "hostname": plan.hostname,
            "slots": amounts[plan.role],
            "state": "PENDING",
        }
        for plan in kernel_plans(session_id, spec.cluster_size)
    ]
    return session, kernels


async def create(tx: AsyncSession, session: dict[str, Any], kernels: list[dict[str, Any]]) -> int:
    """Writes a new session with its journal entry; returns the entry's revision. Raises IntegrityError when the name is taken."""
    await sessions.insert(tx, [session], kernels)
    return await journal.append(
        tx,
        [
            journal.Entry(
                session_id=session["id"],
                owner=session["owner"],
                project=session["project"],
                kind="CREATED",
                payload={"session": _recorded(session), "kernels": [_recorded(kernel) for kernel in kernels]},
            )
        ],
    )


async def terminate(tx: AsyncSession, session_id: uuid.UUID, *, by: str, force: bool) -> bool:
    """Ends a session on request; returns whether anything changed."""
    taken = await take_out(tx, [session_id])
    machine = taken.machines.get(session_id)
    if machine is None:
        return False
    machine.terminate("TERMINATED_BY_USER", f"terminated by {by}")
    changed = any(isinstance(move, SessionMoved) for move in machine.moves)
    if force and machine.session.state == "TERMINATING" and not taken.rows[session_id]["force"]:
        # Also shortens the grace of one that is ending already.
        taken.forced.add(session_id)
        changed = True
    await put_back(tx, taken)
    return changed


def _recorded(row: dict[str, Any]) -> dict[str, Any]:
    return {key: str(value) if isinstance(value, uuid.UUID) else value for key, value in row.items()}
