"""Dominant shares in the database: always the sums of live claims, changed by differences in
the commit that changes those.

What exists in a group is in the group's row, which triggers keep equal to its agents (migration 0012).
`ledger` recomputes both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from sqlalchemy import text
from sqlmodel.ext.asyncio.session import AsyncSession

from retinue.manager.store.database import Query, Statement, fetch
from retinue.manager.store.recordset import Row, recordset


@dataclass(frozen=True, slots=True)
class Difference:
    """The change in how much of a slot an owner holds in a group; negative when it holds less."""

    resource_group: str
    owner: str
    slot: str
    amount: int


@dataclass(frozen=True, slots=True)
class GroupTotals:
    """The capacity of a group by slot, and the weights of its owners."""

    capacity: Mapping[str, int]
    weights: Mapping[str, int]


def dominant(held: Mapping[str, int], capacity: Mapping[str, int]) -> tuple[str, int, int]:
    """Returns the slot with the largest ratio of held to existing, and that ratio as (numerator, denominator); slots
    that do not exist are left out, equal ratios go to the first name. `("", 0, 0)` when nothing counts.
    """
    best = ("", 0, 0)
    for slot in sorted(held):
        amount, total = held[slot], capacity.get(slot, 0)
        if total > 0 and amount > 0 and (best[2] == 0 or amount * best[2] > best[1] * total):
            best = (slot, amount, total)
    return best


async def read_capacity(tx: AsyncSession, groups: Collection[str]) -> dict[str, dict[str, int]]:
    """Returns what exists in each group, from its agents: the sums over those that were heard of and are not lost.
    For verification.
    """
    rows = await tx.execute(
        text("""
            SELECT a.resource_group, slot.key, sum(slot.value::bigint)::bigint
            FROM agent a CROSS JOIN LATERAL jsonb_each_text(a.capacity) AS slot
            WHERE a.resource_group = ANY(:groups) AND a.state IN ('ALIVE', 'SUSPECT') AND NOT a.revoked
            GROUP BY a.resource_group, slot.key HAVING sum(slot.value::bigint) <> 0
        """),
        {"groups": list(groups)},
    )
    capacity: dict[str, dict[str, int]] = {}
    for group, slot, total in rows:
        capacity.setdefault(group, {})[slot] = total
    return capacity


# What owners (group, owner) hold, by slot.
Held: TypeAlias = Mapping[tuple[str, str], Mapping[str, int]]


def reading(owners: Sequence[tuple[str, str]]) -> tuple[Query[Mapping[str, GroupTotals]], Query[Held]]:
    """Reads what `writing` has to know of owners (group, owner): locks the groups, then reads the shares. Sessions and
    agents are locked before, the journal after.
    """
    groups, names = [group for group, _ in owners], [owner for _, owner in owners]
    held = """
        SELECT resource_group, owner, held FROM drf_share
        JOIN unnest(CAST(:groups AS text[]), CAST(:owners AS text[])) AS r(resource_group, owner) USING (resource_group, owner)
    """
    return _locking_groups(set(groups)), Query(held, {"groups": groups, "owners": names}, read=_held)


def _held(rows: Iterable[Row]) -> Held:
    return {(row["resource_group"], row["owner"]): row["held"] for row in rows}


def writing(differences: Iterable[Difference], groups: Mapping[str, GroupTotals], held: Held) -> Statement:
    """Adds differences of what owners hold to their shares, by what `reading` has found;
    an owner who holds nothing any more has no row.
    """
    changed: dict[tuple[str, str], dict[str, int]] = {}
    for change in differences:
        owner = (change.resource_group, change.owner)
        amounts = changed.setdefault(owner, dict(held.get(owner, {})))
        amounts[change.slot] = amounts.get(change.slot, 0) + change.amount
    return _writing(groups, changed)


async def refresh_group(tx: AsyncSession, group: str) -> None:
    """Works out all shares of a group again from what its owners hold, after its capacity or its weights changed."""
    groups = await fetch(tx, _locking_groups({group}))
    found = await tx.execute(text("SELECT owner, held FROM drf_share WHERE resource_group = :group"), {"group": group})
    statement = _writing(groups, {(group, owner): held for owner, held in found})
    await tx.execute(text(statement.sql), dict(statement.params))


def _locking_groups(names: Collection[str]) -> Query[Mapping[str, GroupTotals]]:
    # One at a time per group, to the commit: sums that do not see each other would overwrite each other.
    sql = """
        SELECT name, capacity, owner_weights FROM resource_group WHERE name = ANY(:names) ORDER BY name FOR NO KEY UPDATE
    """
    return Query(sql, {"names": sorted(names)}, read=_groups)


def _groups(rows: Iterable[Row]) -> Mapping[str, GroupTotals]:
    return {row["name"]: GroupTotals(row["capacity"], row["owner_weights"]) for row in rows}


def _writing(groups: Mapping[str, GroupTotals], held: Held) -> Statement:
    rows = []
    for (name, owner), sums in held.items():
        # A group is there as long as anything is held in it.
        group = groups.get(name, GroupTotals({}, {}))
        amounts = {slot: amount for slot, amount in sums.items() if amount}
        slot, numerator, denominator = dominant(amounts, group.capacity)
        rows.append(
            {
                "resource_group": name,
                "owner": owner,
                "weight": group.weights.get(owner, 1),
                "held": amounts,
                "dominant_slot": slot,
                "numerator": numerator,
                "denominator": denominator,
            }
        )
    return Statement(
        """
            WITH given AS MATERIALIZED (
                SELECT * FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(resource_group text, owner text, weight int, held jsonb,
                    dominant_slot text, numerator bigint, denominator bigint)
            ), gone AS (
                DELETE FROM drf_share d USING given
                WHERE d.resource_group = given.resource_group AND d.owner = given.owner AND given.held = '{}'
            )
            INSERT INTO drf_share (resource_group, owner, weight, held, dominant_slot, numerator, denominator)
            SELECT resource_group, owner, weight, held, dominant_slot, numerator, denominator FROM given WHERE held <> '{}'
            ON CONFLICT (resource_group, owner) DO UPDATE SET weight = excluded.weight, held = excluded.held,
                dominant_slot = excluded.dominant_slot, numerator = excluded.numerator, denominator = excluded.denominator
        """,
        {"rows": recordset(rows)},
    )
