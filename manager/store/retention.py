"""Deletes what has passed its retention: journal entries, answers to repeated requests, used-up join tokens, old access
to ports, old usage, and sessions that ended long ago. Records of the audit are removed by `audit`.
"""

from __future__ import annotations

import datetime as dt

from sqlalchemy import text
from sqlmodel.ext.asyncio.session import AsyncSession

from retinue.manager.store.access import console_tickets, port_access
from retinue.manager.store.endpoints import endpoints
from retinue.manager.store.journal import journal
from retinue.manager.store.placement import usage

# Watchers may resume within this time, unless more than so many entries were made since.
JOURNAL_SECONDS = 7 * 86_400
JOURNAL_ENTRIES = 1_000_000
REQUEST_SECONDS = 86_400
# One commit does not hold up others: rows of output are up to 1 MiB each.
_OUTPUT_PORTION, _SESSION_PORTION = 100, 500

# Sessions that ended longer ago than :age, by the clock that ended them, and of which nothing is still on an agent.
_PAST = """
    SELECT s.id FROM session s
    WHERE s.end_time < now() - CAST(:age AS interval) AND s.state IN ('TERMINATED', 'CANCELLED')
        AND NOT EXISTS (SELECT FROM attempt a WHERE a.session_id = s.id AND (a.end_time IS NULL OR a.log_pending))
        AND NOT EXISTS (SELECT FROM network n WHERE n.session_id = s.id)
        AND NOT EXISTS (SELECT FROM kernel k JOIN claim c ON c.kernel_id = k.id WHERE k.session_id = s.id AND c.release_time IS NULL)
"""


async def forget(tx: AsyncSession) -> None:
    """Removes what is past its time, but for sessions."""
    await tx.execute(
        text("DELETE FROM request WHERE create_time < now() - make_interval(secs => :age)"), {"age": REQUEST_SECONDS}
    )
    await tx.execute(text("DELETE FROM join_token WHERE expire_time < now() OR uses_left <= 0"))
    await port_access.forget(tx)
    await console_tickets.forget(tx)
    await usage.forget(tx)
    await endpoints.purge(tx)
    newest, oldest, _ = await journal.head(tx)
    past = await tx.execute(
        text("""
            SELECT coalesce(max(revision), :oldest) FROM journal
            WHERE revision > :oldest AND create_time < now() - make_interval(secs => :age)
        """),
        {"oldest": oldest, "age": JOURNAL_SECONDS},
    )
    await journal.compact(tx, max(int(past.scalar_one()), newest - JOURNAL_ENTRIES))


async def purge_outputs(tx: AsyncSession, age: dt.timedelta) -> int:
    """Removes some of the kept output of sessions that ended longer ago than `age`;
    returns how much of it, 0 when there is none left.
    """
    gone = await tx.execute(
        text(f"""
            WITH past AS MATERIALIZED ({_PAST}), picked AS (
                SELECT l.kernel_id, l.epoch FROM past JOIN kernel k ON k.session_id = past.id JOIN kernel_log l ON l.kernel_id = k.id
                LIMIT :portion
            ), gone AS (
                DELETE FROM kernel_log l USING picked WHERE l.kernel_id = picked.kernel_id AND l.epoch = picked.epoch RETURNING 1
            )
            SELECT count(*) FROM gone
        """),  # noqa: S608  # all of it is ours
        {"age": age, "portion": _OUTPUT_PORTION},
    )
    return int(gone.scalar_one())


async def purge_sessions(tx: AsyncSession, age: dt.timedelta) -> int:
    """Removes some of the sessions that ended longer ago than `age`, oldest first, with all that belongs to them but
    the journal; returns how many, 0 when there are none left.
    """
    gone = await tx.execute(
        text(f"""
            WITH picked AS MATERIALIZED ({_PAST} ORDER BY s.end_time LIMIT :portion FOR UPDATE OF s SKIP LOCKED), claims AS (
                DELETE FROM claim c USING kernel k, picked WHERE k.session_id = picked.id AND c.kernel_id = k.id
            ), gone AS (
                DELETE FROM session s USING picked WHERE s.id = picked.id RETURNING 1
            )
            SELECT count(*) FROM gone
        """),  # noqa: S608  # all of it is ours
        {"age": age, "portion": _SESSION_PORTION},
    )
    return int(gone.scalar_one())
