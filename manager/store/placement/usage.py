"""Past usage: what owners held, times how long, by day. Released claims are counted in the
commit that releases them (see `attempts`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Date, Float, Integer, cast, extract, type_coerce, union_all
from sqlmodel import col, delete, func, select

from retinue.manager.store.tables import Claim, Usage

if TYPE_CHECKING:
    from collections.abc import Collection

    from sqlmodel.ext.asyncio.session import AsyncSession

# No group may look back further.
LONGEST_LOOK_BACK_DAYS = 365
_TODAY = cast(func.timezone("UTC", func.now()), Date)


async def read_decayed(
    tx: AsyncSession, group: str, owners: Collection[str], *, half_life_days: int, look_back_days: int
) -> dict[str, dict[str, float]]:
    """Usage in amount times seconds by owner and slot, that of a day halved for every half-life since.

    Live claims count with what they have used so far, which fades from second to second.
    """
    half_life, look_back = float(half_life_days), float(look_back_days)
    age = type_coerce(col(Usage.day) - _TODAY, Integer)
    past = select(
        Usage.owner,
        Usage.slot,
        (cast(Usage.amount_seconds, Float) * func.power(2.0, cast(age, Float) / half_life)).label("decayed"),
    ).where(Usage.resource_group == group, col(Usage.owner).in_(owners), age > -look_back_days)
    days = cast(extract("epoch", func.now() - col(Claim.claim_time)), Float) / 86400.0
    # The integral of what fades from second to second.
    faded = half_life / func.ln(cast(2.0, Float)) * (1.0 - func.power(2.0, -func.least(days, look_back) / half_life))
    live = select(Claim.owner, Claim.slot, (cast(Claim.amount, Float) * 86400.0 * faded).label("decayed")).where(
        col(Claim.release_time).is_(None), Claim.resource_group == group, col(Claim.owner).in_(owners)
    )
    used = union_all(past, live).subquery("used")
    rows = await tx.execute(
        select(used.c.owner, used.c.slot, func.sum(used.c.decayed)).group_by(used.c.owner, used.c.slot)
    )
    usage: dict[str, dict[str, float]] = {}
    for owner, slot, decayed in rows:
        usage.setdefault(owner, {})[slot] = decayed
    return usage


async def forget(tx: AsyncSession) -> None:
    """Removes days that no group looks back to."""
    await tx.exec(delete(Usage).where(col(Usage.day) <= _TODAY - LONGEST_LOOK_BACK_DAYS))


async def forget_group(tx: AsyncSession, group: str) -> None:
    """Removes what is known of a group."""
    await tx.exec(delete(Usage).where(col(Usage.resource_group) == group))
