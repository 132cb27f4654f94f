"""Dominant shares in the database: always the sums of live claims, written in the commit that changes those."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import text
from sqlmodel.ext.asyncio.session import AsyncSession

from manager.store.recordset import recordset


def dominant(held: Mapping[str, int], capacity: Mapping[str, int]) -> tuple[str, int, int]:
    """The slot with the largest ratio of held to existing, and that ratio as (numerator, denominator); slots that do not exist are
    left out, equal ratios go to the first name. `("", 0, 0)` when nothing counts.
    """
    best = ("", 0, 0)
    for slot in sorted(held):
        amount, total = held[slot], capacity.get(slot, 0)
        if total > 0 and amount > 0 and (best[2] == 0 or amount * best[2] > best[1] * total):
            best = (slot, amount, total)
    return best


async def read_capacity(tx: AsyncSession, groups: Collection[str]) -> dict[str, dict[str, int]]:
    """What exists in each group: the sums over agents that were heard of and are not lost."""
    rows = await tx.execute(
        text("""
            SELECT a.resource_group, slot.key, sum(slot.value::bigint)::bigint
            FROM agent a CROSS JOIN LATERAL jsonb_each_text(a.capacity) AS slot
            WHERE a.resource_group = ANY(:groups) AND a.state IN ('ALIVE', 'SUSPECT') AND NOT a.revoked GROUP BY a.resource_group, slot.key
        """),
        {"groups": list(groups)},
    )
    capacity: dict[str, dict[str, int]] = {}
    for group, slot, total in rows:
        capacity.setdefault(group, {})[slot] = total
    return capacity


async def refresh(tx: AsyncSession, owners: Collection[tuple[str, str]]) -> None:
    """Recomputes the shares of (group, owner) pairs from the live claims; an owner without any has no row.

    Locks the groups; sessions and agents are locked before, the journal after.
    """
    if not owners:
        return
    groups = sorted({group for group, _ in owners})
    # One at a time per group, to the commit: sums that do not see each other's claims would overwrite each other.
    await tx.execute(
        text("SELECT FROM resource_group WHERE name = ANY(:groups) ORDER BY name FOR NO KEY UPDATE"), {"groups": groups}
    )
    capacity = await read_capacity(tx, groups)
    parameters = {"groups": [group for group, _ in owners], "owners": [owner for _, owner in owners]}
    sums = await tx.execute(
        text("""
            SELECT c.resource_group, c.owner, c.slot, sum(c.amount)::bigint FROM claim c
            JOIN unnest(CAST(:groups AS text[]), CAST(:owners AS text[])) AS r(resource_group, owner) USING (resource_group, owner)
            WHERE c.release_time IS NULL GROUP BY c.resource_group, c.owner, c.slot
        """),
        parameters,
    )
    held: dict[tuple[str, str], dict[str, int]] = {}
    for group, owner, slot, amount in sums:
        held.setdefault((group, owner), {})[slot] = amount
    rows = []
    for (group, owner), amounts in held.items():
        slot, numerator, denominator = dominant(amounts, capacity.get(group, {}))
        rows.append(
            {
                "resource_group": group,
                "owner": owner,
                "held": amounts,
                "dominant_slot": slot,
                "numerator": numerator,
                "denominator": denominator,
            }
        )
    await tx.execute(
        text("""
            WITH gone AS (
                DELETE FROM drf_share d USING unnest(CAST(:groups AS text[]), CAST(:owners AS text[])) AS r(resource_group, owner)
                WHERE d.resource_group = r.resource_group AND d.owner = r.owner
                  AND NOT EXISTS (SELECT FROM claim c WHERE c.resource_group = r.resource_group AND c.owner = r.owner AND c.release_time IS NULL)
            )
            INSERT INTO drf_share (resource_group, owner, weight, held, dominant_slot, numerator, denominator)
            SELECT r.resource_group, r.owner, coalesce((g.owner_weights->>r.owner)::int, 1), r.held, r.dominant_slot, r.numerator, r.denominator
            FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(resource_group text, owner text, held jsonb, dominant_slot text, numerator bigint,
                denominator bigint)
            JOIN resource_group g ON g.name = r.resource_group
            ON CONFLICT (resource_group, owner) DO UPDATE SET weight = excluded.weight, held = excluded.held,
                dominant_slot = excluded.dominant_slot, numerator = excluded.numerator, denominator = excluded.denominator
        """),
        {**parameters, "rows": recordset(rows)},
    )


async def refresh_group(tx: AsyncSession, group: str) -> None:
    """Recomputes all shares of a group, after its capacity or its weights changed."""
    owners = await tx.execute(
        text("""
            SELECT DISTINCT owner FROM claim WHERE release_time IS NULL AND resource_group = :group
            UNION SELECT owner FROM drf_share WHERE resource_group = :group
        """),
        {"group": group},
    )
    await refresh(tx, [(group, owner) for owner in owners.scalars()])
