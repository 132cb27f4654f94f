"""Handles the end of a session for those that depend on it: the end that they need releases them, any other cancels
them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from retinue.manager.domain.reasons import SessionReason
from retinue.manager.domain.session.dependency_graph import DependencyKind
from retinue.manager.session.transaction import load_for_update, save
from retinue.manager.store.leadership import leadership
from retinue.manager.store.sessions import dependencies
from retinue.manager.supervision import all_or_each

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from retinue.manager.dispatch.desired_state import Affected
    from retinue.manager.store.postgres.database import Database, Transaction
    from retinue.manager.store.sessions.dependencies import UnsatisfiableDependency

# Sessions cancelled in one commit.
_PORTION = 500
REASON = SessionReason.DEPENDENCY_FAILED


async def settle(database: Database, term: int, committed: Callable[[Affected], None]) -> int:
    """Takes in the ends of sessions that others depend on; done with each end, and in case one was missed.
    Returns how many dependencies were settled and sessions cancelled.

    Only the leader does this, in transactions of its own: the transaction that ends one
    session need not lock those that depend on it.
    """
    async with database.transaction() as tx:
        if not await dependencies.anything_to_settle(tx):
            return 0
        settling, finding = dependencies.settling(), dependencies.finding_unsatisfiable()
        answers = await tx.pipeline(leadership.checking(term), settling, finding)
    done, unsatisfiable = answers.of(settling), answers.of(finding)
    for begin in range(0, len(unsatisfiable), _PORTION):
        # Nothing else releases a session that waits for one that failed: it stays unsatisfiable between the commits.
        portion = unsatisfiable[begin : begin + _PORTION]
        await all_or_each("the cancellation of a session", portion, partial(_cancel_portion, database, term))
    done += len(unsatisfiable)
    if done:
        committed({})
    return done


async def _cancel_portion(database: Database, term: int, unsatisfiable: Collection[UnsatisfiableDependency]) -> None:
    async with database.transaction() as tx:
        await leadership.check(tx, term)
        await _cancel(tx, unsatisfiable)


async def _cancel(tx: Transaction, unsatisfiable: Collection[UnsatisfiableDependency]) -> None:
    taken = await load_for_update(tx, [one.session_id for one in unsatisfiable])
    for one in unsatisfiable:
        if (machine := taken.machines.get(one.session_id)) is not None:
            machine.terminate(REASON, why(one))
    await save(tx, taken)


def why(unsatisfiable: UnsatisfiableDependency) -> str:
    """In words."""
    if not unsatisfiable.parent_state:
        return f"session {unsatisfiable.parent_id}, which it depends on, was purged"
    if unsatisfiable.kind == DependencyKind.FAILURE:
        return f"{unsatisfiable.parent_name}, whose failure it depends on, succeeded"
    ended = "failed" if unsatisfiable.parent_result == "FAILED" else "was ended without a result"
    how = ended if unsatisfiable.parent_state == "TERMINATED" else "was cancelled"
    # One that still waits is cancelled together with this one.
    reason = REASON if unsatisfiable.parent_state == "PENDING" else unsatisfiable.parent_reason
    because = f" ({reason})" if reason else ""
    return f"{unsatisfiable.parent_name}, which it depends on, {how}{because}"
