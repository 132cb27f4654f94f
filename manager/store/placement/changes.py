"""Reads what the leader's scheduler caches, and drains the marks by which the cache follows the rows.

A term begins by reading everything that is live once. From then on triggers mark, in the commit of each change, which
sessions, agents, groups and quotas have changed, and by how much what is held of agents and by owners has; the author
of the change, on any replica, need not know of it. Draining the marks deletes them in the same transaction, so each is
applied exactly once, and only after its commit. Sums are marked as differences (nothing is summed again), everything
else by its key alone (the row is read again as it is by then).

Only what a scheduling pass itself writes is not marked (`UNMARKED`): the leader knows it already.

Whatever `read_waiting` reads must be marked when it changes. A table added to it needs a
trigger like those in `scheduling_changes.sql` of the first migration.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlalchemy import BigInteger, Text, and_, cast, delete, exists, false, func, select, text

from retinue.manager.domain.scheduling.records import AgentRecord, AgentState, GroupRecord, PendingSession, QuotaRecord
from retinue.manager.domain.session.quota_subjects import Account
from retinue.manager.domain.session.spec_codec import VERSION
from retinue.manager.domain.session.spec_columns import PlacementColumns
from retinue.manager.store.leadership import leadership
from retinue.manager.store.postgres.constructs import (
    Construct,
    columns_of,
    lists,
    one_of,
    seconds,
    table_of,
    word,
    words,
)
from retinue.manager.store.postgres.database import Database, Query, Statement, Transaction, fetch
from retinue.manager.store.tables import (
    Agent,
    Attempt,
    Claim,
    Kernel,
    Network,
    Quota,
    ResourceGroup,
    Session,
    scheduling_change,
)

if TYPE_CHECKING:
    from sqlmodel.ext.asyncio.session import AsyncSession

    from retinue.manager.store.postgres.recordset import Row

# Sessions read at once: what is read takes more memory for a moment than what is kept of it.
PAGE = 1000


@dataclass(slots=True)
class Changes:
    """The changes since the last time, at `now` (seconds since 1970, by the database's clock)."""

    now: float
    sessions: set[uuid.UUID] = field(default_factory=set)
    agents: set[str] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    # Kind and name.
    quotas: set[tuple[str, str]] = field(default_factory=set)
    # Differences: agent, account, slot, amount; account, number of placed sessions; agent, number of live kernels.
    claims: list[tuple[str, Account, str, int]] = field(default_factory=list)
    placed: list[tuple[Account, int]] = field(default_factory=list)
    kernels: list[tuple[str, int]] = field(default_factory=list)
    # Subnet and VNI.
    freed: list[tuple[str, int]] = field(default_factory=list)
    taken: list[tuple[str, int]] = field(default_factory=list)


_DRAIN_MARKS = """
    WITH gone AS (DELETE FROM scheduling_change RETURNING kind, key, resource_group, owner, project, system, slot, amount)
    -- Nothing is lost that a crash of the database would leave: the marks are not written ahead.
    SELECT 'now' AS kind, set_config('synchronous_commit', 'off', TRUE) AS key, NULL AS resource_group, NULL AS owner, NULL AS project,
        NULL AS system, NULL AS slot, NULL AS amount, extract(epoch FROM clock_timestamp())::float8 AS now
    UNION ALL SELECT *, 0 FROM gone
"""


_ANY_MARKS = select(exists().select_from(scheduling_change))


async def drain_changes(tx: Transaction, term: int) -> Changes:
    """Removes and returns all marks of committed changes. Only the leader calls it, and applies all of them.
    Raises NotLeader.
    """
    draining = Query(_DRAIN_MARKS, read=_changes)
    return (await tx.pipeline(leadership.checking(term), draining)).of(draining)


async def any_marks(tx: AsyncSession) -> bool:
    """Returns whether there are marks to drain; writes nothing."""
    return bool((await tx.execute(_ANY_MARKS)).scalar_one())


def _changes(rows: Iterable[Row]) -> Changes:
    changes = Changes(0.0)
    for row in rows:
        kind, key, group, owner, project, system, slot, amount, now = row.values()
        match kind:
            case "now":
                changes.now = now
            case "session":
                changes.sessions.add(uuid.UUID(key))
            case "claim":
                changes.claims.append((key, Account(group, owner, project, system or False), slot, amount))
            case "sessions":
                changes.placed.append((Account(group, owner, project, system or False), amount))
            case "kernels":
                changes.kernels.append((key, amount))
            case "agent":
                changes.agents.add(key)
            case "group":
                changes.groups.add(key)
            case "quota":
                changes.quotas.add((slot, key))
            case "network freed":
                changes.freed.append((slot, amount))
            case "network taken":
                changes.taken.append((slot, amount))
    return changes


# What a transaction writes from here on is not marked: the scheduler takes it in by itself.
UNMARKED = Statement("SELECT set_config('retinue.marked', 'no', TRUE)")


@asynccontextmanager
async def consistent_snapshot(database: Database, term: int) -> AsyncIterator[AsyncSession]:
    """Opens a transaction that sees one state of the database, marks included,
    from after every commit of this leader that was under way.

    Raises NotLeader.
    """
    # Abandoned commits may still be under way: they hold the lock on the term, and are waited for.
    async with database.transaction() as barrier:
        await leadership.check(barrier, term, alone=True)
        async with database.transaction() as tx:
            await tx.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
            await tx.execute(delete(scheduling_change))
            yield tx


async def read_now(tx: AsyncSession) -> float:
    """Returns the time in seconds since 1970, by the database's clock."""
    now: float = (await tx.execute(select(seconds(func.clock_timestamp())))).scalar_one()
    return now


async def read_groups(tx: AsyncSession, names: Collection[str] | None = None) -> list[GroupRecord]:
    """Returns groups with their policies, all of them or those named."""
    return await fetch(tx, _groups(names))


async def read_agents(tx: AsyncSession, ids: Collection[str] | None = None) -> list[AgentRecord]:
    """Returns agents as the scheduler sees them, all of them or those named, whatever their state."""
    return await fetch(tx, _agents(ids))


async def read_quotas(tx: AsyncSession, subjects: Collection[tuple[str, str]] | None = None) -> list[QuotaRecord]:
    """Returns quotas, all of them or those of subjects (kind, name)."""
    return await fetch(tx, _quotas(subjects))


@dataclass(frozen=True, slots=True)
class Changed:
    """Rows that have changed, as they are by now."""

    waiting: Sequence[PendingSession]
    agents: Sequence[AgentRecord]
    groups: Sequence[GroupRecord]
    quotas: Sequence[QuotaRecord]


async def read_rest(tx: Transaction, ids: Collection[uuid.UUID], changed: Changes) -> Changed:
    """Reads what has changed and ends the transaction: those of the sessions that wait (as `read_waiting`), and the
    agents, groups and quotas that are named in `changed`.
    """
    waiting, agents = _waiting(ids), _agents(changed.agents)
    groups, quotas = _groups(changed.groups), _quotas(changed.quotas)
    wanted = ((waiting, ids), (agents, changed.agents), (groups, changed.groups), (quotas, changed.quotas))
    answers = await tx.pipeline(*(query for query, keys in wanted if keys), commit=True)
    return Changed(
        answers.of(waiting) if ids else (),
        answers.of(agents) if changed.agents else (),
        answers.of(groups) if changed.groups else (),
        answers.of(quotas) if changed.quotas else (),
    )


_agent, _attempt, _claim = table_of(Agent), table_of(Attempt), table_of(Claim)
_kernel, _network, _quota, _session = table_of(Kernel), table_of(Network), table_of(Quota), table_of(Session)
_asked = lists("asked", kind=Text(), name=Text())
_GROUPS = select(*columns_of(ResourceGroup, GroupRecord))
_AGENTS = select(*columns_of(Agent, AgentRecord))
_QUOTAS = select(*columns_of(Quota, QuotaRecord))
_ALL_GROUPS, _ALL_AGENTS, _ALL_QUOTAS = Construct(_GROUPS), Construct(_AGENTS), Construct(_QUOTAS)
_SOME_GROUPS = Construct(_GROUPS.where(table_of(ResourceGroup).c.name == one_of("names")))
_SOME_AGENTS = Construct(_AGENTS.where(_agent.c.id == one_of("ids")))
_SOME_QUOTAS = Construct(
    _QUOTAS.join_from(_quota, _asked, and_(_quota.c.kind == _asked.c.kind, _quota.c.name == _asked.c.name))
)


def _groups(names: Collection[str] | None) -> Query[list[GroupRecord]]:
    return Query(
        _ALL_GROUPS if names is None else _SOME_GROUPS,
        {} if names is None else {"names": list(names)},
        read=lambda rows: [GroupRecord(**row) for row in rows],
    )


def _agents(ids: Collection[str] | None) -> Query[list[AgentRecord]]:
    return Query(
        _ALL_AGENTS if ids is None else _SOME_AGENTS,
        {} if ids is None else {"ids": list(ids)},
        read=lambda rows: [AgentRecord(**{**row, "state": AgentState.of(row["state"])}) for row in rows],
    )


def _quotas(subjects: Collection[tuple[str, str]] | None) -> Query[list[QuotaRecord]]:
    return Query(
        _ALL_QUOTAS if subjects is None else _SOME_QUOTAS,
        {} if subjects is None else {"kind": [kind for kind, _ in subjects], "name": [name for _, name in subjects]},
        read=lambda rows: [QuotaRecord(**row) for row in rows],
    )


_IS_SYSTEM = _session.c.type == word("SYSTEM")
_HELD_BY = (
    _claim.c.agent_id,
    _claim.c.resource_group,
    _claim.c.owner,
    func.coalesce(_session.c.project, word("")),
    func.coalesce(_IS_SYSTEM, false()),
    _claim.c.slot,
)
_CLAIMS = (
    select(*_HELD_BY, cast(func.sum(_claim.c.amount), BigInteger))
    .outerjoin_from(_claim, _kernel, _kernel.c.id == _claim.c.kernel_id)
    .outerjoin(_session, _session.c.id == _kernel.c.session_id)
    .where(_claim.c.release_time.is_(None))
    .group_by(*_HELD_BY)
)
_PLACED_BY = (_session.c.resource_group, _session.c.owner, _session.c.project, _IS_SYSTEM)
_PLACED = (
    select(*_PLACED_BY, func.count())
    # In two, as the index of those that are not over has it.
    .where(_session.c.state.not_in(words("TERMINATED", "CANCELLED")), _session.c.state != word("PENDING"))
    .group_by(*_PLACED_BY)
)


async def read_claims(tx: AsyncSession) -> list[tuple[str, Account, str, int]]:
    """Returns what live claims hold: agent, account, slot, sum of the amounts."""
    return [(agent, Account(*account), slot, amount) for agent, *account, slot, amount in await tx.execute(_CLAIMS)]


async def read_placed(tx: AsyncSession) -> list[tuple[Account, int]]:
    """Returns how many placed sessions each account has, without those that have ended."""
    return [(Account(*account), number) for *account, number in await tx.execute(_PLACED)]


async def read_kernels(tx: AsyncSession) -> list[tuple[str, int]]:
    """Returns how many live kernels each agent has."""
    live = select(_attempt.c.agent_id, func.count()).where(_attempt.c.end_time.is_(None))
    return [(agent, number) for agent, number in await tx.execute(live.group_by(_attempt.c.agent_id))]


async def read_networks(tx: AsyncSession) -> list[tuple[str, int]]:
    """Returns the subnets and VNIs in use; 0 is none."""
    return [(subnet, vni) for subnet, vni in await tx.execute(select(cast(_network.c.subnet, Text), _network.c.vni))]


# In the order of the fields of PendingSession.
# ruff: noqa: S608  # our own words
_WAITING = f"""
    SELECT {", ".join(f"s.{column.name}" for column in columns_of(Session, PlacementColumns))},
        s.id, s.owner, s.project, s.resource_group, s.type = 'SYSTEM' AS system, s.priority, s.number AS sequence,
        s.cluster_mode, s.cluster_size, s.endpoint,
        (SELECT jsonb_agg(jsonb_build_object('hostname', k.hostname, 'slots', k.slots, 'image', k.image <> '', 'isolation', k.isolation)
            ORDER BY k.local_rank)::text FROM kernel k WHERE k.session_id = s.id) AS kernels,
        (SELECT count(*) FROM session_dependency d WHERE d.child_id = s.id AND NOT d.settled) AS open_dependencies,
        ARRAY(SELECT coalesce(p.name, d.parent_id::text) FROM session_dependency d LEFT JOIN session p ON p.id = d.parent_id
              WHERE d.child_id = s.id AND NOT d.settled ORDER BY d.position LIMIT 3) AS waits_for,
        extract(epoch FROM s.create_time)::float8 AS created, s.tries, s.failed_agents, s.last_failure, s.retries, s.failed_starts,
        s.nomination->'agents' AS nominated,
        CASE WHEN jsonb_typeof(s.nomination->'until') = 'number' THEN (s.nomination->'until')::float8 ELSE 0 END AS nominated_until,
        s.reason, s.message, coalesce(extract(epoch FROM s.next_try_time), 0)::float8 AS next_try,
        coalesce(s.spec_version <= {VERSION}, FALSE) AS readable,
        s.schedule_time IS NOT NULL AND (
            EXISTS (SELECT FROM attempt a WHERE a.session_id = s.id AND (a.end_time IS NULL OR a.log_pending))
            OR EXISTS (SELECT FROM network n WHERE n.session_id = s.id)
        -- Only a restored database knows less than agents do: elsewhere, their word about sessions of others keeps none from being placed.
        ) OR EXISTS (SELECT FROM orphan JOIN cluster ON cluster.restore_time IS NOT NULL WHERE orphan.session_id = s.id) AS clearing
    FROM session s WHERE s.state = 'PENDING'
"""


async def read_waiting(tx: AsyncSession, ids: Collection[uuid.UUID]) -> list[PendingSession]:
    """Returns those of the sessions that wait: with their kernels by rank (JSON, as text: most sessions have the same),
    the times of the next try and of the start asked for (seconds since 1970), what they depend on that has not
    succeeded, and whether attempts or networks of an earlier placement are still being cleared away,
    or run unknown to the database.
    """
    return await fetch(tx, _waiting(ids))


def _waiting(ids: Collection[uuid.UUID]) -> Query[list[PendingSession]]:
    return Query(
        f"{_WAITING} AND s.id = ANY(:ids) ORDER BY s.number",
        {"ids": list(ids)},
        read=lambda rows: [PendingSession(**row) for row in rows],
    )


_wanted = lists("wanted", project=Text(), endpoint=Text())
_BY_AGENT = (_session.c.project, _session.c.endpoint, _attempt.c.agent_id)
_REPLICAS = (
    select(*_BY_AGENT, func.count())
    .join_from(
        _wanted,
        _session,
        and_(
            _session.c.project == _wanted.c.project,
            _session.c.endpoint == _wanted.c.endpoint,
            # As the index of those has it.
            _session.c.endpoint != word(""),
            _session.c.state.not_in(words("TERMINATED", "CANCELLED")),
        ),
    )
    .join(_attempt, and_(_attempt.c.session_id == _session.c.id, _attempt.c.end_time.is_(None)))
    .group_by(*_BY_AGENT)
)


async def read_replicas(
    tx: AsyncSession, endpoints: Collection[tuple[str, str]]
) -> dict[tuple[str, str], dict[str, int]]:
    """Returns for endpoints (project, name) how many of their live kernels are on each agent."""
    given = {"project": [project for project, _ in endpoints], "endpoint": [name for _, name in endpoints]}
    rows = await tx.execute(_REPLICAS, given)
    replicas: dict[tuple[str, str], dict[str, int]] = {}
    for project, endpoint, agent, kernels in rows:
        replicas.setdefault((project, endpoint), {})[agent] = kernels
    return replicas


async def read_all_waiting(tx: AsyncSession, group: str) -> AsyncIterator[list[PendingSession]]:
    """Yields as `read_waiting`, all of a group, page by page."""
    after = 0
    while True:
        rows = await tx.execute(
            text(f"{_WAITING} AND s.resource_group = :group AND s.number > :after ORDER BY s.number LIMIT :limit"),
            {"group": group, "after": after, "limit": PAGE},
        )
        page = [PendingSession(*row) for row in rows]
        if page:
            after = page[-1].sequence
            yield page
        if len(page) < PAGE:
            return
