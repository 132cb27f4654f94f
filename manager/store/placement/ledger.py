"""The ledger verified: claims against attempts, shares against claims, groups against agents, claims against capacity,
all from rows.

This reads all that is live, and is for administrators and tests; nothing on the way of a session does it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy
from sqlalchemy import BigInteger, and_, cast, or_, text, true, tuple_
from sqlmodel import col, func, select

from retinue.manager.store.placement.shares import dominant, read_capacity
from retinue.manager.store.postgres.constructs import entries, table_of, value_of
from retinue.manager.store.postgres.recordset import Row, fetched
from retinue.manager.store.tables import Agent, Attempt, Claim, DrfShare, Kernel, ResourceGroup, Session

if TYPE_CHECKING:
    from sqlmodel.ext.asyncio.session import AsyncSession

_agent, _attempt, _claim = table_of(Agent), table_of(Attempt), table_of(Claim)
_kernel, _session = table_of(Kernel), table_of(Session)

MAX_MISMATCHES = 1000
CLAIM, SHARE, CAPACITY = "CLAIM", "SHARE", "CAPACITY"

# Group and owner.
ShareKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A difference between what is kept and what the rows come to: amounts of `slot`, or words, or None for nothing."""

    kind: str
    resource_group: str
    recorded: int | str | None
    derived: int | str | None
    agent: str = ""
    owner: str = ""
    attempt: str = ""
    slot: str = ""


@dataclass(frozen=True, slots=True)
class Ledger:
    """The differences found, and how many rows were checked."""

    mismatches: Sequence[Mismatch]
    claims: int
    shares: int
    agents: int


async def freeze(tx: AsyncSession) -> None:
    """Makes a transaction look at one state of the database from its first query on;
    it must not have queried yet, and writes nothing.
    """
    await tx.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))


async def verify(tx: AsyncSession, group: str) -> Ledger:
    """Looks through a group, or through all for the empty name, in a transaction that was frozen."""
    live, of_agents = col(Claim.release_time).is_(None), select(func.count()).select_from(Agent)
    of_claims = select(func.count()).select_from(Claim).where(live)
    if group:
        of_claims, of_agents = (
            of_claims.where(Claim.resource_group == group),
            of_agents.where(Agent.resource_group == group),
        )
    claims, agents = (await tx.exec(of_claims)).one(), (await tx.exec(of_agents)).one()
    shares = select(DrfShare).where(col(DrfShare.resource_group) == group) if group else select(DrfShare)
    recorded = {(share.resource_group, share.owner): share for share in (await tx.exec(shares)).all()}
    held = await _read_held(tx, group)
    groups = sorted({name for name, _ in (*recorded, *held)})
    kept = select(ResourceGroup.name, ResourceGroup.owner_weights, ResourceGroup.capacity)
    weights, existing = dict[str, Mapping[str, int]](), dict[str, Mapping[str, int]]()
    for name, given, amounts in await tx.exec(kept.where(ResourceGroup.name == group) if group else kept):
        weights[name], existing[name] = given, amounts
    capacity = await read_capacity(tx, sorted({*groups, *existing}))
    found = [
        *await _claim_mismatches(tx, group),
        *share_mismatches(recorded, held, capacity, weights),
        *group_mismatches(existing, capacity),
        *await _capacity_mismatches(tx, group),
    ]
    return Ledger(found[:MAX_MISMATCHES], claims, len(recorded), agents)


def share_mismatches(
    recorded: Mapping[ShareKey, DrfShare],
    held: Mapping[ShareKey, Mapping[str, int]],
    capacity: Mapping[str, Mapping[str, int]],
    weights: Mapping[str, Mapping[str, int]],
) -> list[Mismatch]:
    """Shares as kept that are not what is held comes to; an owner who holds nothing has none."""
    found = []
    for group, owner in sorted({*recorded, *held}):
        row, amounts = recorded.get((group, owner)), held.get((group, owner), {})
        kept: Mapping[str, int] = {} if row is None else row.held
        found += [
            Mismatch(SHARE, group, kept.get(slot), amounts.get(slot), owner=owner, slot=slot)
            for slot in sorted({*kept, *amounts})
            if kept.get(slot) != amounts.get(slot)
        ]
        weight = weights.get(group, {}).get(owner, 1)
        slot, numerator, denominator = dominant(amounts, capacity.get(group, {}))
        derived = _share(numerator, denominator, slot, weight) if amounts else None
        said = None
        if row is not None:
            said = _share(row.numerator, row.denominator, row.dominant_slot, row.weight)
        if said != derived:
            found.append(Mismatch(SHARE, group, said, derived, owner=owner))
    return found


def group_mismatches(
    recorded: Mapping[str, Mapping[str, int]], derived: Mapping[str, Mapping[str, int]]
) -> list[Mismatch]:
    """Returns groups whose capacity as kept is not what their agents come to."""
    return [
        Mismatch(CAPACITY, group, kept.get(slot), existing.get(slot), slot=slot)
        for group, kept in sorted(recorded.items())
        for existing in (derived.get(group, {}),)
        for slot in sorted({*kept, *existing})
        if kept.get(slot) != existing.get(slot)
    ]


def _share(numerator: int, denominator: int, slot: str, weight: int) -> str:
    return f"{numerator}/{denominator} of {slot or 'nothing'}, weight {weight}"


async def _read_held(tx: AsyncSession, group: str) -> dict[ShareKey, dict[str, int]]:
    by, amount = (col(Claim.resource_group), col(Claim.owner), col(Claim.slot)), func.sum(Claim.amount)
    rows = (
        select(*by, cast(amount, BigInteger)).where(col(Claim.release_time).is_(None)).group_by(*by).having(amount != 0)
    )
    held: dict[ShareKey, dict[str, int]] = {}
    for name, owner, slot, total in await tx.exec(rows.where(Claim.resource_group == group) if group else rows):
        held.setdefault((name, owner), {})[slot] = total
    return held


async def _claim_mismatches(tx: AsyncSession, group: str) -> list[Mismatch]:
    """Live claims that are not those of live attempts: the kernel's amounts, on the attempt's agent,
    for the session's owner and group.
    """
    slot = entries("slot", _kernel.c.slots)
    due = (
        sqlalchemy.select(
            _attempt.c.kernel_id,
            _attempt.c.epoch,
            slot.c.key.label("slot"),
            cast(slot.c.value, BigInteger).label("amount"),
            _attempt.c.agent_id,
            _session.c.owner,
            _session.c.resource_group,
        )
        .join_from(_attempt, _kernel, _kernel.c.id == _attempt.c.kernel_id)
        .join(_session, _session.c.id == _attempt.c.session_id)
        .join(slot, true())
        .where(_attempt.c.end_time.is_(None))
        .cte("due")
    )
    kept = (
        sqlalchemy.select(*(_claim.c[column.name] for column in due.c))
        .where(_claim.c.release_time.is_(None))
        .cte("kept")
    )
    keys = ("kernel_id", "epoch", "slot")
    same = and_(*(due.c[name] == kept.c[name] for name in keys))
    held, held_due = (
        tuple_(side.c.amount, side.c.agent_id, side.c.owner, side.c.resource_group) for side in (kept, due)
    )
    either = [func.coalesce(due.c[name], kept.c[name]).label(name) for name in keys]
    query = (
        sqlalchemy.select(
            *either,
            kept.c.amount.label("recorded"),
            due.c.amount.label("derived"),
            kept.c.agent_id.label("recorded_agent"),
            due.c.agent_id.label("derived_agent"),
            kept.c.owner.label("recorded_owner"),
            due.c.owner.label("derived_owner"),
            kept.c.resource_group.label("recorded_group"),
            due.c.resource_group.label("derived_group"),
        )
        .join_from(due, kept, same, full=True)
        .where(held_due.is_distinct_from(held))
        .order_by(*either)
        .limit(MAX_MISMATCHES)
    )
    if group:
        query = query.where(or_(kept.c.resource_group == group, due.c.resource_group == group))
    rows = await tx.execute(query)
    return [_claim_mismatch(row) for row in fetched(rows)]


def _claim_mismatch(row: Row) -> Mismatch:
    recorded: int | str | None = row["recorded"]
    derived: int | str | None = row["derived"]
    if recorded == derived:
        # The amounts agree, and whose or where they are does not.
        recorded, derived = (
            f"{row[f'{side}_owner']} on {row[f'{side}_agent']} in {row[f'{side}_group']}"
            for side in ("recorded", "derived")
        )
    return Mismatch(
        CLAIM,
        row["recorded_group"] or row["derived_group"],
        recorded,
        derived,
        agent=row["recorded_agent"] or row["derived_agent"],
        owner=row["recorded_owner"] or row["derived_owner"],
        attempt=f"{row['kernel_id']}.{row['epoch']}",
        slot=row["slot"],
    )


async def _capacity_mismatches(tx: AsyncSession, group: str) -> list[Mismatch]:
    """Returns agents whose live claims are more than they have, or that are not there at all."""
    by = (_claim.c.agent_id, _claim.c.slot)
    held = (
        sqlalchemy.select(
            *by,
            func.min(_claim.c.resource_group).label("resource_group"),
            cast(func.sum(_claim.c.amount), BigInteger).label("held"),
        )
        .where(_claim.c.release_time.is_(None))
        .group_by(*by)
        .subquery("held")
    )
    existing = cast(value_of(_agent.c.capacity, held.c.slot), BigInteger)
    name = func.coalesce(_agent.c.resource_group, held.c.resource_group)
    query = (
        sqlalchemy.select(held.c.agent_id, held.c.slot, held.c.held, existing.label("existing"), name.label("name"))
        .outerjoin_from(held, _agent, _agent.c.id == held.c.agent_id)
        .where(held.c.held > func.coalesce(existing, 0))
        .order_by(held.c.agent_id, held.c.slot)
        .limit(MAX_MISMATCHES)
    )
    rows = await tx.execute(query.where(name == group) if group else query)
    return [
        Mismatch(CAPACITY, row["name"], row["held"], row["existing"], agent=row["agent_id"], slot=row["slot"])
        for row in fetched(rows)
    ]
