"""Dominant shares in the database: always the sums of live claims, changed by differences in
the commit that changes those.

What exists in a group is in the group's row, which triggers keep equal to its agents (`group_capacity.sql` of the
first migration).
`ledger` recomputes both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from sqlalchemy import BigInteger, Text, and_, cast, true
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import col, delete, func, not_, select

from retinue.manager.domain.scheduling.policy import NOT_IN_SHARES
from retinue.manager.store.postgres.constructs import EMPTY_OBJECT, Construct, entries, lists, objects, one_of, table_of
from retinue.manager.store.postgres.database import Query, Statement, fetch, run
from retinue.manager.store.postgres.recordset import Row, recordset
from retinue.manager.store.tables import Agent, DrfShare, ResourceGroup

if TYPE_CHECKING:
    from sqlmodel.ext.asyncio.session import AsyncSession

# The rows of a group's agents, one for each slot that is there.
_of_agent = entries("slot", col(Agent.capacity))
_total = func.sum(cast(_of_agent.c.value, BigInteger))
_CAPACITY = (
    select(Agent.resource_group, _of_agent.c.key, cast(_total, BigInteger))
    .join(_of_agent, true())
    .where(
        col(Agent.resource_group) == one_of("groups"),
        col(Agent.state).in_(["ALIVE", "SUSPECT"]),
        not_(Agent.revoked),
    )
    .group_by(col(Agent.resource_group), _of_agent.c.key)
    .having(_total != 0)
)

_LOCKED_GROUPS = Construct(
    select(ResourceGroup.name, ResourceGroup.capacity, ResourceGroup.owner_weights)
    .where(col(ResourceGroup.name) == one_of("names"))
    .order_by(ResourceGroup.name)
    .with_for_update(key_share=True)
)
_asked = lists("asked", resource_group=Text(), owner=Text())
_HELD = Construct(
    select(DrfShare.resource_group, DrfShare.owner, DrfShare.held).join(
        _asked,
        and_(col(DrfShare.resource_group) == _asked.c.resource_group, col(DrfShare.owner) == _asked.c.owner),
    )
)


def _making_written() -> Construct:
    """The shares of the owners in `rows` as they are there, and none of those who hold nothing."""
    table = table_of(DrfShare)
    columns = table.columns
    rows = objects("given", "rows", **{column.name: column.type for column in columns})
    given = select(*(rows.c[column.name] for column in columns)).cte("given").prefix_with("MATERIALIZED")
    gone = delete(table).where(
        table.c.resource_group == given.c.resource_group,
        table.c.owner == given.c.owner,
        given.c.held == EMPTY_OBJECT,
    )
    kept = select(*given.c).where(given.c.held != EMPTY_OBJECT)
    written = insert(table).from_select(list(columns), kept, include_defaults=False).add_cte(gone.cte("gone"))
    return Construct(
        written.on_conflict_do_update(
            index_elements=[column for column in columns if column.primary_key],
            set_={column.name: written.excluded[column.name] for column in columns if not column.primary_key},
        )
    )


_WRITTEN = _making_written()


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
    that do not exist or count in no share are left out, equal ratios go to the first name. `("", 0, 0)` when nothing
    counts.
    """
    best = ("", 0, 0)
    for slot in sorted(held.keys() - NOT_IN_SHARES):
        amount, total = held[slot], capacity.get(slot, 0)
        if total > 0 and amount > 0 and (best[2] == 0 or amount * best[2] > best[1] * total):
            best = (slot, amount, total)
    return best


async def read_capacity(tx: AsyncSession, groups: Collection[str]) -> dict[str, dict[str, int]]:
    """Returns what exists in each group, from its agents: the sums over those that were heard of and are not lost.
    For verification.
    """
    rows = await tx.execute(_CAPACITY, {"groups": list(groups)})
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
    return _locking_groups(set(groups)), Query(_HELD, {"resource_group": groups, "owner": names}, read=_held)


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
    found = await tx.exec(select(DrfShare.owner, DrfShare.held).where(DrfShare.resource_group == group))
    await run(tx, _writing(groups, {(group, owner): held for owner, held in found}))


def _locking_groups(names: Collection[str]) -> Query[Mapping[str, GroupTotals]]:
    # One at a time per group, to the commit: sums that do not see each other would overwrite each other.
    return Query(_LOCKED_GROUPS, {"names": sorted(names)}, read=_groups)


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
    return Statement(_WRITTEN, {"rows": recordset(rows)})
