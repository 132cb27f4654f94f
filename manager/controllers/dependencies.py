"""Handles the end of a session for those that depend on it: the end that they need releases them, any other cancels
them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from retinue.manager.dispatch.desired_state import Affected
from retinue.manager.domain.reasons import SessionReason
from retinue.manager.domain.session.dependency_graph import DependencyKind
from retinue.manager.session.transaction import load_for_update, save
from retinue.manager.store.leadership import leadership
from retinue.manager.store.postgres.database import Database, Transaction
from retinue.manager.store.sessions import dependencies
from retinue.manager.store.sessions.dependencies import Doomed
from retinue.manager.supervision import all_or_each

# Sessions cancelled in one commit.
_PORTION = 500
REASON = SessionReason.DEPENDENCY_FAILED


async def settle(database: Database, term: int, committed: Callable[[Affected], None]) -> int:
    """Takes in the ends of sessions that others depend on; done with each end, and every second in case one was missed.
    Returns how many dependencies were settled and sessions cancelled.

    Only the leader does this, in transactions of its own: the transaction that ends one
    session need not lock those that depend on it.
    """
    async with database.transaction() as tx:
        settling, finding = dependencies.settling(), dependencies.finding_doomed()
        answers = await tx.pipeline(leadership.checking(term), settling, finding)
    done, doomed = answers.of(settling), answers.of(finding)
    for begin in range(0, len(doomed), _PORTION):
        # Nothing else releases a session that waits for one that failed: it stays doomed between the commits.
        portion = doomed[begin : begin + _PORTION]
        await all_or_each("the cancellation of a session", portion, partial(_cancel_portion, database, term))
    done += len(doomed)
    if done:
        committed({})
    return done


async def _cancel_portion(database: Database, term: int, doomed: Collection[Doomed]) -> None:
    async with database.transaction() as tx:
        await leadership.check(tx, term)
        await _cancel(tx, doomed)


async def _cancel(tx: Transaction, doomed: Collection[Doomed]) -> None:
    taken = await load_for_update(tx, [one.session_id for one in doomed])
    for one in doomed:
        if (machine := taken.machines.get(one.session_id)) is not None:
            machine.terminate(REASON, why(one))
    await save(tx, taken)


def why(doomed: Doomed) -> str:
    """In words."""
    if not doomed.parent_state:
        return f"session {doomed.parent_id}, which it depends on, was purged"
    if doomed.kind == DependencyKind.FAILURE:
        return f"{doomed.parent_name}, whose failure it depends on, succeeded"
    ended = "failed" if doomed.parent_result == "FAILED" else "was ended without a result"
    how = ended if doomed.parent_state == "TERMINATED" else "was cancelled"
    # One that still waits is cancelled together with this one.
    reason = REASON if doomed.parent_state == "PENDING" else doomed.parent_reason
    because = f" ({reason})" if reason else ""
    return f"{doomed.parent_name}, which it depends on, {how}{because}"
