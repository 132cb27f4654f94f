"""Conditions of sessions that follow from their agents."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import text

from retinue.manager.domain.reasons import ConditionType
from retinue.manager.domain.session.events import Condition, ReasonChanged, parse_conditions
from retinue.manager.store.journal import journal
from retinue.manager.store.postgres.database import Transaction
from retinue.manager.store.postgres.recordset import Row, fetched
from retinue.manager.store.sessions import sessions

AGENT_LOST = ConditionType.AGENT_LOST
AGENT_NOT_REACHED = ConditionType.AGENT_NOT_REACHED
OUTPUT_LOST = ConditionType.OUTPUT_LOST


async def set_agent_lost(tx: Transaction, agent_id: str, *, lost: bool) -> None:
    """Puts the condition AGENT_LOST on the live sessions with a live attempt on an agent, or takes it off them."""

    def what(row: Row) -> str:
        if row["revoked"]:
            return f"agent {agent_id} was revoked; the session ends, or runs elsewhere, once the agent is lost"
        return f"agent {agent_id} has not been heard of; its kernels are kept for its return"

    await _set_of_agent(tx, agent_id, AGENT_LOST, what if lost else None)


async def set_agent_held(tx: Transaction, agent_id: str, why: str) -> None:
    """Puts the condition AGENT_LOST on the live sessions with a live attempt on an agent whose loss is held."""
    message = (
        f"agent {agent_id} has not been heard of, and its kernels are kept: {why}, so that nothing is ended there or run"
        " again elsewhere until it is back or an administrator confirms that it is lost"
    )
    await _set_of_agent(tx, agent_id, AGENT_LOST, lambda _: message)


async def set_agent_not_reached(tx: Transaction, agent_id: str, why: str) -> None:
    """Puts the condition AGENT_NOT_REACHED on the live sessions with a live attempt on an agent, or takes it off them
    when there is no `why`.
    """
    message = f"agent {agent_id} is not reached, nor is what runs there: {why}"
    await _set_of_agent(tx, agent_id, AGENT_NOT_REACHED, (lambda _: message) if why else None)


async def set_output_lost(tx: Transaction, agent_id: str, why: str) -> None:
    """Puts the condition OUTPUT_LOST on the live sessions with a live attempt on an agent, or takes it off them when
    there is no `why`.
    """
    message = f"what is printed on agent {agent_id} is lost: {why}"
    await _set_of_agent(tx, agent_id, OUTPUT_LOST, (lambda _: message) if why else None)


async def _set_of_agent(tx: Transaction, agent_id: str, kind: str, what: Callable[[Row], str] | None) -> None:
    """Puts a condition that says `what` on the live sessions with a live attempt on an agent, in place of the one of
    that kind; None takes it off them.
    """
    rows = await tx.execute(
        text("""
            SELECT s.id, s.owner, s.project, s.reason, s.message, s.conditions, now() AS now,
                EXISTS (SELECT FROM agent g WHERE g.id = :agent AND g.revoked) AS revoked
            FROM session s
            WHERE s.state NOT IN ('PENDING', 'TERMINATED', 'CANCELLED')
              AND EXISTS (SELECT FROM attempt a WHERE a.session_id = s.id AND a.agent_id = :agent AND a.end_time IS NULL)
              AND (:put OR s.conditions @> CAST(:mark AS jsonb))
            ORDER BY s.id FOR UPDATE OF s
        """),
        {"agent": agent_id, "put": what is not None, "mark": json.dumps([{"agent": agent_id, "type": kind}])},
    )
    changed = []
    for row in fetched(rows):
        new = [] if what is None else [Condition(kind, what(row), row["now"], agent_id)]
        gone = [(known.agent, known.type) == (agent_id, kind) for known in parse_conditions(row["conditions"])]
        changed.append(_Change(row, gone, new))
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
    changed = []
    for row in fetched(rows):
        wanted = texts[row["id"]]
        new = [Condition(kind, message, row["now"]) for kind, message in wanted.items() if message]
        changed.append(_Change(row, [known.type in wanted for known in parse_conditions(row["conditions"])], new))
    await _write(tx, changed)


class _Change(NamedTuple):
    """A session, which of its conditions are taken off, and those that are put on."""

    row: Row
    gone: Sequence[bool]
    new: Sequence[Condition]


async def _write(tx: Transaction, changes: Iterable[_Change]) -> None:
    changed = [change for change in changes if change.new or any(change.gone)]
    if not changed:
        return
    # Those that this version cannot read stay as they are stored.
    conditions = [
        [*(stored for stored, gone in zip(row["conditions"], gone, strict=True) if not gone), *new]
        for row, gone, new in changed
    ]
    await sessions.set_conditions(tx, [row["id"] for row, _, _ in changed], conditions)
    await journal.append(
        tx,
        [
            journal.Entry(
                session_id=row["id"],
                owner=row["owner"],
                project=row["project"],
                what=ReasonChanged(
                    row["reason"], row["message"], parse_conditions(now), tuple(item.type for item in new)
                ),
            )
            for (row, _, new), now in zip(changed, conditions, strict=True)
        ],
    )
