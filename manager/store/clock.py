"""The database's clock, and the times of live sessions when it was set."""

from __future__ import annotations

from sqlalchemy import text
from sqlmodel.ext.asyncio.session import AsyncSession

# Of the former clock: see `ClockStep`.
_IS_FORMER = "({0} <= to_timestamp(:former) AND NOT {0} BETWEEN now() - make_interval(secs => :window) AND now())"
_STEP = "make_interval(secs => :seconds)"


async def read_clock(tx: AsyncSession) -> float:
    """Returns when the transaction began, in seconds since 1970; bounds that are read in it are judged by that."""
    return float((await tx.execute(text("SELECT extract(epoch FROM now())::float8"))).scalar_one())


async def shift_times(tx: AsyncSession, *, seconds: float, window: float, former: float) -> int:
    """Moves the times of the former clock, by which live sessions are bounded, to the present one; returns how many sessions have moved.

    A session that began to run by the former clock ends by the present one.
    """
    params = {"seconds": seconds, "window": window, "former": former}
    moved = ", ".join(
        f"{column} = CASE WHEN {_IS_FORMER.format(column)} THEN {column} + {_STEP} ELSE {column} END"
        for column in ("schedule_time", "pull_time", "start_time", "state_time")
    )
    # These are ahead: they are as old as the state that they were set with.
    ahead = ", ".join(
        f"{column} = CASE WHEN {_IS_FORMER.format('state_time')} THEN {column} + {_STEP} ELSE {column} END"
        for column in ("expire_time", "next_try_time")
    )
    found = await tx.execute(
        text(f"UPDATE session SET {moved}, {ahead} WHERE state NOT IN ('TERMINATED', 'CANCELLED') RETURNING 1"),  # noqa: S608  # our own words
        params,
    )
    # What waits for another session waits from its end on.
    await tx.execute(
        text(f"""
            UPDATE session SET end_time = end_time + {_STEP}
            WHERE {_IS_FORMER.format("end_time")} AND id IN (
                SELECT d.parent_id FROM session_dependency d JOIN session c ON c.id = d.child_id AND c.state = 'PENDING'
            )
        """),  # noqa: S608  # our own words
        params,
    )
    return len(found.all())
