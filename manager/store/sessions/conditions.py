"""Conditions of sessions that follow from their agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import Uuid, func, select

from retinue.manager.domain.reasons import ConditionType
from retinue.manager.domain.session.events import Condition, ReasonChanged, parse_conditions
from retinue.manager.store.journal import journal
from retinue.manager.store.postgres.constructs import one_of, table_of, word, words
from retinue.manager.store.postgres.recordset import Row, fetched
from retinue.manager.store.sessions import updates
from retinue.manager.store.tables import Agent, Attempt, Session

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from retinue.manager.store.postgres.database import Transaction

AGENT_LOST = ConditionType.AGENT_LOST
AGENT_NOT_REACHED = ConditionType.AGENT_NOT_REACHED
OUTPUT_LOST = ConditionType.OUTPUT_LOST

_agent, _attempt, _session = table_of(Agent), table_of(Attempt), table_of(Session)
_CONDITIONS = select(
    _session.c.id,
    _session.c.owner,
    _session.c.project,
    _session.c.reason,
    _session.c.message,
    _session.c.conditions,
    func.now().label("now"),
).order_by(_session.c.id)


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
    is_revoked = select(_agent.c.id).where(_agent.c.id == agent_id, _agent.c.revoked).exists()
    is_there = select(_attempt.c.kernel_id).where(
        _attempt.c.session_id == _session.c.id, _attempt.c.agent_id == agent_id, _attempt.c.end_time.is_(None)
    )
    query = _CONDITIONS.add_columns(is_revoked.label("revoked")).where(
        _session.c.state.not_in(words("TERMINATED", "CANCELLED")),
        _session.c.state != word("PENDING"),
        is_there.exists(),
    )
    if what is None:
        query = query.where(_session.c.conditions.contains([{"agent": agent_id, "type": kind}]))
    rows = await tx.execute(query.with_for_update(of=_session))
    changed = []
    for row in fetched(rows):
        new = [] if what is None else [Condition(kind, what(row), row["now"], agent_id)]
        gone = [(known.agent, known.type) == (agent_id, kind) for known in parse_conditions(row["conditions"])]
        changed.append(_Change(row, gone, new))
    await _write(tx, changed)


async def set_texts(tx: Transaction, texts: Mapping[uuid.UUID, Mapping[str, str]]) -> None:
    """Puts conditions on running sessions by type and text, or with an empty text takes them off."""
    query = _CONDITIONS.where(_session.c.id == one_of("ids", Uuid()), _session.c.state == word("RUNNING"))
    rows = await tx.execute(query.with_for_update(), {"ids": list(texts)})
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
    await updates.set_conditions(tx, [row["id"] for row, _, _ in changed], conditions)
    await journal.append(
        tx,
        [
            journal.Entry(
                session_id=row["id"],
                owner=row["owner"],
                project=row["project"],
                body=ReasonChanged(
                    row["reason"], row["message"], parse_conditions(now), tuple(item.type for item in new)
                ),
            )
            for (row, _, new), now in zip(changed, conditions, strict=True)
        ],
    )
