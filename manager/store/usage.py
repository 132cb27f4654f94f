"""Past usage: what owners held, times how long, by day. Released claims are counted in the
commit that releases them (see `attempts`).
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import text
from sqlmodel.ext.asyncio.session import AsyncSession

# No group may look back further.
LONGEST_LOOK_BACK_DAYS = 365


async def read_decayed(
    tx: AsyncSession, group: str, owners: Collection[str], *, half_life_days: int, look_back_days: int
) -> dict[str, dict[str, float]]:
    """Usage in amount times seconds by owner and slot, that of a day halved for every half-life since.

    Live claims count with what they have used so far, which fades from second to second.
    """
    rows = await tx.execute(
        text("""
            SELECT owner, slot, sum(decayed) FROM (
                SELECT owner, slot, amount_seconds::float8 * power(2.0::float8, (day - (now() AT TIME ZONE 'UTC')::date) / :half_life) AS decayed
                FROM usage
                WHERE resource_group = :group AND owner = ANY(:owners) AND day > (now() AT TIME ZONE 'UTC')::date - CAST(:look_back AS int)
                UNION ALL
                SELECT owner, slot, amount * 86400 * :half_life / ln(2.0::float8) * (1 - power(2.0::float8, -least(
                    extract(epoch FROM now() - claim_time)::float8 / 86400, :look_back) / :half_life))
                FROM claim WHERE release_time IS NULL AND resource_group = :group AND owner = ANY(:owners)
            ) AS used GROUP BY owner, slot
        """),
        {
            "group": group,
            "owners": list(owners),
            "half_life": float(half_life_days),
            "look_back": float(look_back_days),
        },
    )
    usage: dict[str, dict[str, float]] = {}
    for owner, slot, decayed in rows:
        usage.setdefault(owner, {})[slot] = decayed
    return usage


async def forget(tx: AsyncSession) -> None:
    """Removes days that no group looks back to."""
    await tx.execute(
        text("DELETE FROM usage WHERE day <= (now() AT TIME ZONE 'UTC')::date - CAST(:days AS int)"),
        {"days": LONGEST_LOOK_BACK_DAYS},
    )


async def forget_group(tx: AsyncSession, group: str) -> None:
    """Removes what is known of a group."""
    await tx.execute(text("DELETE FROM usage WHERE resource_group = :group"), {"group": group})
