"""What is forgotten with time: journal entries, answers to repeated requests, used-up join tokens, old access to ports, old usage."""

from __future__ import annotations

from sqlalchemy import text
from sqlmodel.ext.asyncio.session import AsyncSession

from manager.store import journal, port_access, usage

# Watchers may resume within this time, unless more than so many entries were made since.
JOURNAL_SECONDS = 7 * 86_400
JOURNAL_ENTRIES = 1_000_000
REQUEST_SECONDS = 86_400


async def forget(tx: AsyncSession) -> None:
    """Removes what is past its time. Sessions themselves are kept."""
    await tx.execute(
        text("DELETE FROM request WHERE create_time < now() - make_interval(secs => :age)"), {"age": REQUEST_SECONDS}
    )
    await tx.execute(text("DELETE FROM join_token WHERE expire_time < now() OR uses_left <= 0"))
    await port_access.forget(tx)
    await usage.forget(tx)
    newest, oldest = await journal.head(tx)
    past = await tx.execute(
        text("""
            SELECT coalesce(max(revision), :oldest) FROM journal
            WHERE revision > :oldest AND create_time < now() - make_interval(secs => :age)
        """),
        {"oldest": oldest, "age": JOURNAL_SECONDS},
    )
    await journal.compact(tx, max(int(past.scalar_one()), newest - JOURNAL_ENTRIES))
