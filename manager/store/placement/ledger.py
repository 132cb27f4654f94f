"""The ledger verified: claims against attempts, shares against claims, groups against agents, claims against capacity,
all from rows.

This reads all that is live, and is for administrators and tests; nothing on the way of a session does it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import BigInteger, cast, text
from sqlmodel import col, func, select
from sqlmodel.ext.asyncio.session import AsyncSession

from retinue.manager.store.placement.shares import dominant, read_capacity
from retinue.manager.store.postgres.recordset import Row, fetched
from retinue.manager.store.tables import Agent, Claim, DrfShare, ResourceGroup

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
    rows = await tx.execute(
        text("""
            WITH due AS (
                SELECT a.kernel_id, a.epoch, slot.key AS slot, slot.value::bigint AS amount, a.agent_id, s.owner, s.resource_group
                FROM attempt a JOIN kernel k ON k.id = a.kernel_id JOIN session s ON s.id = a.session_id
                CROSS JOIN LATERAL jsonb_each_text(k.slots) AS slot WHERE a.end_time IS NULL
            ), kept AS (
                SELECT kernel_id, epoch, slot, amount, agent_id, owner, resource_group FROM claim WHERE release_time IS NULL
            )
            SELECT kernel_id, epoch, slot, kept.amount AS recorded, due.amount AS derived,
                kept.agent_id AS recorded_agent, due.agent_id AS derived_agent, kept.owner AS recorded_owner, due.owner AS derived_owner,
                kept.resource_group AS recorded_group, due.resource_group AS derived_group
            FROM due FULL JOIN kept USING (kernel_id, epoch, slot)
            WHERE (due.amount, due.agent_id, due.owner, due.resource_group)
                    IS DISTINCT FROM (kept.amount, kept.agent_id, kept.owner, kept.resource_group)
                AND (:group = '' OR :group IN (kept.resource_group, due.resource_group))
            ORDER BY kernel_id, epoch, slot LIMIT :most
        """),
        {"group": group, "most": MAX_MISMATCHES},
    )
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
    rows = await tx.execute(
        text("""
            SELECT c.agent_id, c.slot, c.held, (a.capacity->>c.slot)::bigint AS existing, coalesce(a.resource_group, c.resource_group) AS name
            FROM (
                SELECT agent_id, slot, min(resource_group) AS resource_group, sum(amount)::bigint AS held FROM claim
                WHERE release_time IS NULL GROUP BY agent_id, slot
            ) c LEFT JOIN agent a ON a.id = c.agent_id
            WHERE c.held > coalesce((a.capacity->>c.slot)::bigint, 0) AND (:group = '' OR coalesce(a.resource_group, c.resource_group) = :group)
            ORDER BY c.agent_id, c.slot LIMIT :most
        """),
        {"group": group, "most": MAX_MISMATCHES},
    )
    return [
        Mismatch(CAPACITY, row["name"], row["held"], row["existing"], agent=row["agent_id"], slot=row["slot"])
        for row in fetched(rows)
    ]
