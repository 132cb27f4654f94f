"""Deletes what has passed its retention: journal entries, answers to repeated requests, used-up join tokens, old access
to ports, old usage, and sessions that ended long ago. Records of the audit are removed by `audit`.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from sqlalchemy import Select, and_, delete, func, or_, select

from retinue.manager.store.access import console_tickets, port_access
from retinue.manager.store.endpoints import endpoints
from retinue.manager.store.journal import journal
from retinue.manager.store.placement import usage
from retinue.manager.store.postgres.constructs import table_of, words
from retinue.manager.store.tables import (
    Attempt,
    Claim,
    JoinToken,
    Journal,
    Kernel,
    KernelLog,
    Network,
    Request,
    Session,
)

if TYPE_CHECKING:
    import uuid

    from sqlmodel.ext.asyncio.session import AsyncSession

# Watchers may resume within this time, unless more than so many entries were made since.
JOURNAL_SECONDS = 7 * 86_400
JOURNAL_ENTRIES = 1_000_000
REQUEST_SECONDS = 86_400
# One commit does not hold up others: rows of output are up to 1 MiB each.
_OUTPUT_PORTION, _SESSION_PORTION = 100, 500

_attempt, _claim, _join_token, _journal = table_of(Attempt), table_of(Claim), table_of(JoinToken), table_of(Journal)
_kernel, _log, _network = table_of(Kernel), table_of(KernelLog), table_of(Network)
_request, _session = table_of(Request), table_of(Session)


def _past(age: dt.timedelta) -> Select[tuple[uuid.UUID]]:
    """Sessions that ended longer ago, by the clock that ended them, and of which nothing is still on an agent."""
    of_session = _attempt.c.session_id == _session.c.id
    on_agent = select(_attempt.c.kernel_id).where(
        of_session, or_(_attempt.c.end_time.is_(None), _attempt.c.log_pending)
    )
    network = select(_network.c.id).where(_network.c.session_id == _session.c.id)
    held = (
        select(_kernel.c.id)
        .join_from(_kernel, _claim, _claim.c.kernel_id == _kernel.c.id)
        .where(_kernel.c.session_id == _session.c.id, _claim.c.release_time.is_(None))
    )
    return select(_session.c.id).where(
        _session.c.end_time < func.now() - age,
        _session.c.state.in_(words("TERMINATED", "CANCELLED")),
        ~on_agent.exists(),
        ~network.exists(),
        ~held.exists(),
    )


async def forget(tx: AsyncSession) -> None:
    """Removes what is past its time, but for sessions."""
    await tx.execute(
        delete(_request).where(_request.c.create_time < func.now() - dt.timedelta(seconds=REQUEST_SECONDS))
    )
    await tx.execute(
        delete(_join_token).where(or_(_join_token.c.expire_time < func.now(), _join_token.c.uses_left <= 0))
    )
    await port_access.forget(tx)
    await console_tickets.forget(tx)
    await usage.forget(tx)
    await endpoints.purge(tx)
    newest, oldest, _ = await journal.head(tx)
    old = func.now() - dt.timedelta(seconds=JOURNAL_SECONDS)
    past = await tx.execute(
        select(func.coalesce(func.max(_journal.c.revision), oldest)).where(
            _journal.c.revision > oldest, _journal.c.create_time < old
        )
    )
    await journal.compact(tx, max(int(past.scalar_one()), newest - JOURNAL_ENTRIES))


async def purge_outputs(tx: AsyncSession, age: dt.timedelta) -> int:
    """Removes some of the kept output of sessions that ended longer ago than `age`;
    returns how much of it, 0 when there is none left.
    """
    past = _past(age).cte("past").prefix_with("MATERIALIZED")
    picked = (
        select(_log.c.kernel_id, _log.c.epoch)
        .join_from(past, _kernel, _kernel.c.session_id == past.c.id)
        .join(_log, _log.c.kernel_id == _kernel.c.id)
        .limit(_OUTPUT_PORTION)
        .cte("picked")
    )
    is_picked = and_(_log.c.kernel_id == picked.c.kernel_id, _log.c.epoch == picked.c.epoch)
    outputs = delete(_log).where(is_picked).returning(_log.c.epoch).cte("gone")
    gone = await tx.execute(select(func.count()).select_from(outputs))
    return int(gone.scalar_one())


async def purge_sessions(tx: AsyncSession, age: dt.timedelta) -> int:
    """Removes some of the sessions that ended longer ago than `age`, oldest first, with all that belongs to them but
    the journal; returns how many, 0 when there are none left.
    """
    portion = _past(age).order_by(_session.c.end_time).limit(_SESSION_PORTION)
    picked = portion.with_for_update(of=_session, skip_locked=True).cte("picked").prefix_with("MATERIALIZED")
    of_kernels = delete(_claim).where(_kernel.c.session_id == picked.c.id, _claim.c.kernel_id == _kernel.c.id)
    removed = delete(_session).where(_session.c.id == picked.c.id).returning(_session.c.id).cte("gone")
    gone = await tx.execute(select(func.count()).select_from(removed).add_cte(of_kernels.cte("claims")))
    return int(gone.scalar_one())
