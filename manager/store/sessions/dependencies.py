"""Dependencies: sessions that wait for the success of others, for their failure, or for any end of them."""

from __future__ import annotations

import datetime as dt
import hashlib
import uuid
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import BigInteger, Boolean, Integer, Text, Uuid, and_, func, not_, or_, select, text, true, update
from sqlalchemy import insert as insert_into

from retinue.manager.domain.session.states import Result, SessionState, SessionType
from retinue.manager.store.postgres.constructs import (
    Construct,
    lists,
    one_of,
    parameter,
    table_of,
    value_of,
    word,
    words,
)
from retinue.manager.store.postgres.database import Query
from retinue.manager.store.postgres.recordset import Row, fetched
from retinue.manager.store.sessions.session_records import RESULTS, STATES, TYPES
from retinue.manager.store.tables import Session, SessionDependency

if TYPE_CHECKING:
    from sqlmodel.ext.asyncio.session import AsyncSession

    from retinue.manager.domain.session.dependency_graph import DependencyKind


@dataclass(frozen=True, slots=True)
class UnsatisfiableDependency:
    """A waiting session that depends on one that has had another end than it needs."""

    session_id: uuid.UUID
    parent_id: uuid.UUID
    # Empty when it was purged.
    parent_name: str
    parent_state: str
    parent_result: str
    parent_reason: str
    kind: str


@dataclass(frozen=True, slots=True)
class ResolvedSession:
    """A session that another one is to depend on."""

    id: uuid.UUID
    name: str
    type: SessionType | None
    state: SessionState | None
    result: Result | None


@dataclass(frozen=True, slots=True)
class ParentRecord:
    """A session that another one depends on; without name, state and result when it was purged."""

    id: uuid.UUID
    number: int
    name: str
    is_purged: bool
    state: SessionState | None
    result: Result | None
    priority: int | None = None


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A session among those that are connected by dependencies."""

    id: uuid.UUID
    number: int
    name: str
    state: SessionState | None
    result: Result | None
    reason: str
    retries: int
    start_time: dt.datetime | None
    end_time: dt.datetime | None
    depends_on: Sequence[uuid.UUID]


# The number of the first session of the array that a session `s` is of; 0 when its labels do not say.
_FIRST = """
    coalesce(s.number - CASE WHEN s.labels->>'array.offset' ~ '^[0-9]{1,9}$' THEN (s.labels->>'array.offset')::bigint END, 0)
"""


async def resolve(
    tx: AsyncSession, owner: str, references: Collection[tuple[str, str]]
) -> dict[tuple[str, str], list[ResolvedSession]]:
    """Returns the owner's sessions that (project, reference) refer to: an id, a number, or a name; of an array all, in
    their order. Of several with the name, the live one counts, before a number, else the newest; a name of none is that
    of the newest array. They are locked until the commit.
    """
    found = await tx.execute(
        text(f"""
            WITH wanted AS (
                SELECT DISTINCT project, reference,
                    CASE WHEN reference ~ '^[0-9a-f]{{8}}-([0-9a-f]{{4}}-){{3}}[0-9a-f]{{12}}$' THEN reference::uuid END AS id,
                    CASE WHEN reference ~ '^[1-9][0-9]{{0,17}}$' THEN reference::bigint END AS number,
                    CASE WHEN reference ~ '^[1-9][0-9]{{0,17}}_[0-9]{{1,9}}$' THEN split_part(reference, '_', 1)::bigint END AS of_array,
                    split_part(reference, '_', 2) AS index
                FROM unnest(CAST(:projects AS text[]), CAST(:references AS text[])) AS r(project, reference)
            ), single AS MATERIALIZED (
                SELECT w.project, w.reference, s.id, FALSE AS by_number FROM wanted w JOIN session s ON s.id = w.id AND s.owner = :owner
                UNION
                SELECT w.project, w.reference, named.id, rank = 1 FROM wanted w CROSS JOIN LATERAL (
                    (SELECT s.id, 0 AS rank FROM session s
                    WHERE w.id IS NULL AND s.owner = :owner AND s.project = w.project AND s.name = w.reference
                        AND s.state NOT IN ('TERMINATED', 'CANCELLED'))
                    UNION ALL
                    (SELECT s.id, 1 FROM session s WHERE s.owner = :owner AND s.number = w.number)
                    UNION ALL
                    (SELECT s.id, 2 FROM session s
                    WHERE w.id IS NULL AND s.owner = :owner AND s.project = w.project AND s.name = w.reference
                        AND s.state IN ('TERMINATED', 'CANCELLED')
                    ORDER BY s.number DESC LIMIT 1)
                    ORDER BY rank LIMIT 1
                ) named
            ), of_array AS (
                SELECT w.project, w.reference, f.labels->>'array' AS name, f.number AS first, w.of_array IS NULL AS whole, w.index
                FROM wanted w JOIN session f ON f.owner = :owner AND f.labels->>'array.offset' = '0'
                    AND (f.number = w.of_array OR f.id = (SELECT id FROM single o
                        WHERE o.project = w.project AND o.reference = w.reference AND o.by_number))
                UNION ALL
                SELECT w.project, w.reference, w.reference, newest.first, TRUE, '' FROM wanted w CROSS JOIN LATERAL (
                    SELECT max({_FIRST}) AS first FROM session s
                    WHERE s.owner = :owner AND s.project = w.project AND s.labels->>'array' = w.reference
                ) newest
                WHERE NOT EXISTS (SELECT FROM single o WHERE o.project = w.project AND o.reference = w.reference)
            ), meant AS (
                SELECT project, reference, id FROM single
                UNION
                SELECT a.project, a.reference, s.id FROM of_array a JOIN session s ON s.owner = :owner
                    AND s.labels->>'array' = a.name AND {_FIRST} = a.first AND (a.whole OR s.labels->>'array.index' = a.index)
            )
            SELECT m.project AS wanted_project, m.reference, s.number, s.id, s.name, s.type, s.state, s.result
            FROM meant m JOIN session s ON s.id = m.id ORDER BY s.id FOR SHARE OF s
        """),  # noqa: S608  # our own words
        {
            "owner": owner,
            "projects": [project for project, _ in references],
            "references": [reference for _, reference in references],
        },
    )
    resolved: dict[tuple[str, str], list[ResolvedSession]] = {}
    for row in sorted(fetched(found), key=lambda row: int(row["number"])):
        resolved.setdefault((row["wanted_project"], row["reference"]), []).append(_resolved(row))
    return resolved


def _resolved(row: Row) -> ResolvedSession:
    return ResolvedSession(
        row["id"], row["name"], TYPES.get(row["type"]), STATES.get(row["state"]), RESULTS.get(row["result"])
    )


_dependency, _session = table_of(SessionDependency), table_of(Session)
_numbers = lists("l", numbers=BigInteger())
_LOCKED_LABELS = select(func.pg_advisory_xact_lock(_numbers.c.numbers))
_labels = lists("r", project=Text(), key=Text(), value=Text())
_LABELLED = (
    select(
        _labels.c.project.label("of_project"),
        _labels.c.key,
        _labels.c.value,
        _session.c.id,
        _session.c.name,
        _session.c.type,
        _session.c.state,
        _session.c.result,
    )
    .join_from(_labels, _session, _session.c.project == _labels.c.project)
    .where(
        _session.c.owner == parameter("owner", Text()),
        _session.c.type == word("BATCH"),
        _session.c.state.not_in(words("TERMINATED", "CANCELLED")),
        value_of(_session.c.labels, _labels.c.key) == _labels.c.value,
    )
    .order_by(_session.c.number)
)


async def live_with_labels(
    tx: AsyncSession, owner: str, labels: Collection[tuple[str, str, str]]
) -> dict[tuple[str, str, str], list[ResolvedSession]]:
    """Returns the owner's live batch sessions that have a label, by (project, key, value), in their order. Others that
    ask for the same wait until the commit: what one creates the next one finds.
    """
    projects, keys, values = map(list, zip(*sorted(labels), strict=True))
    numbers = sorted(_lock_number(owner, *label) for label in labels)
    await tx.execute(_LOCKED_LABELS, {"numbers": numbers})
    found = await tx.execute(_LABELLED, {"owner": owner, "project": projects, "key": keys, "value": values})
    live: dict[tuple[str, str, str], list[ResolvedSession]] = {}
    for row in fetched(found):
        live.setdefault((row["of_project"], row["key"], row["value"]), []).append(_resolved(row))
    return live


def _lock_number(*words: str) -> int:
    return int.from_bytes(hashlib.sha256("\0".join(words).encode()).digest()[:8], signed=True)


async def insert(tx: AsyncSession, rows: Iterable[tuple[uuid.UUID, uuid.UUID, int, bool, DependencyKind]]) -> None:
    """Writes dependencies: (child, parent, position among the child's, whether it is settled already, kind)."""
    columns = list(zip(*rows, strict=True)) or [()] * 5
    new = lists("new", child=Uuid(), parent=Uuid(), place=Integer(), done=Boolean(), needs=Text())
    names = ["child_id", "parent_id", "position", "settled", "kind"]
    made = insert_into(_dependency).from_select(names, select(*new.c), include_defaults=False)
    await tx.execute(made, dict(zip(new.c.keys(), map(list, columns), strict=True)))


# Of a dependency `d` on the session `p`, which may be gone: its end has come, and is not the one that is needed.
_UNMEETABLE = """
    d.kind <> 'END' AND (p.id IS NULL OR (p.state IN ('TERMINATED', 'CANCELLED')
        AND (p.state = 'TERMINATED' AND p.result = 'SUCCESS') <> (d.kind = 'SUCCESS')))
"""


# Nothing else is written by `settling`, or found by `finding_unsatisfiable`.
_ANYTHING_TO_SETTLE = f"""
    SELECT EXISTS (
        SELECT FROM session_dependency d LEFT JOIN session p ON p.id = d.parent_id
        WHERE NOT d.settled AND (p.id IS NULL OR p.state IN ('TERMINATED', 'CANCELLED')) AND (
            NOT ({_UNMEETABLE}) OR EXISTS (SELECT FROM session s WHERE s.id = d.child_id AND s.state = 'PENDING')
        )
    )
"""  # noqa: S608  # our own words


async def anything_to_settle(tx: AsyncSession) -> bool:
    """Returns whether any dependency can be settled, or makes a waiting session unsatisfiable; writes nothing."""
    return bool((await tx.execute(text(_ANYTHING_TO_SETTLE))).scalar_one())


def _making_settled() -> Construct:
    # With sessions that are gone.
    of = _dependency.alias("of")
    p = _session.alias("p")
    has_parent = select(of.c.child_id, of.c.parent_id, p.c.id, p.c.state, p.c.result).outerjoin_from(
        of, p, p.c.id == of.c.parent_id
    )
    o = has_parent.where(not_(of.c.settled)).subquery("o")
    any_end = _dependency.c.kind == word("END")
    success = and_(o.c.state == word("TERMINATED"), o.c.result == word("SUCCESS"))
    is_met = or_(any_end, success == (_dependency.c.kind == word("SUCCESS")))
    return Construct(
        update(_dependency)
        .where(
            not_(_dependency.c.settled),
            _dependency.c.child_id == o.c.child_id,
            _dependency.c.parent_id == o.c.parent_id,
            or_(and_(any_end, o.c.id.is_(None)), and_(o.c.state.in_(words("TERMINATED", "CANCELLED")), is_met)),
        )
        .values(settled=true())
        .returning(_dependency.c.child_id)
    )


_SETTLED = _making_settled()


def settling() -> Query[int]:
    """Marks dependencies on sessions that have ended as it takes; finds how many.
    Costs as much as there are open dependencies.
    """
    return Query(_SETTLED, read=len)


def finding_unsatisfiable() -> Query[list[UnsatisfiableDependency]]:
    """Finds waiting sessions with a dependency, direct or not, that had another end than it needs or was purged; each
    once, with one that it depends on.
    """
    # A session that is cancelled for this is a failure to those that wait for one.
    sql = f"""
        WITH RECURSIVE unsatisfiable(id) AS (
            SELECT d.child_id FROM session_dependency d LEFT JOIN session p ON p.id = d.parent_id
            WHERE NOT d.settled AND {_UNMEETABLE}
            UNION
            SELECT d.child_id FROM unsatisfiable JOIN session_dependency d ON d.parent_id = unsatisfiable.id AND NOT d.settled AND d.kind = 'SUCCESS'
        ), members AS (
            SELECT s.id FROM unsatisfiable JOIN session s ON s.id = unsatisfiable.id AND s.state = 'PENDING'
        )
        SELECT m.id AS session_id, cause.* FROM members m CROSS JOIN LATERAL (
            SELECT d.parent_id, coalesce(p.name, '') AS parent_name, coalesce(p.state, '') AS parent_state,
                coalesce(p.result, '') AS parent_result, coalesce(p.reason, '') AS parent_reason, d.kind
            FROM session_dependency d LEFT JOIN session p ON p.id = d.parent_id
            WHERE d.child_id = m.id AND NOT d.settled
              AND ({_UNMEETABLE} OR (d.kind = 'SUCCESS' AND p.id IN (SELECT id FROM members)))
            ORDER BY p.id IS NULL DESC, p.state IN ('TERMINATED', 'CANCELLED') DESC, d.position LIMIT 1
        ) cause
    """  # noqa: S608  # our own words
    return Query(sql, read=lambda rows: [UnsatisfiableDependency(**row) for row in rows])


_PARENTS = (
    select(
        _dependency.c.child_id,
        _dependency.c.parent_id,
        func.coalesce(_session.c.number, 0).label("number"),
        *(func.coalesce(_session.c[name], word("")).label(name) for name in ("name", "state", "result")),
        _session.c.priority,
    )
    .outerjoin_from(_dependency, _session, _session.c.id == _dependency.c.parent_id)
    .where(_dependency.c.child_id == one_of("ids", Uuid()))
    .order_by(_dependency.c.child_id, _dependency.c.position)
)
_READ = Construct(_PARENTS)


async def read(
    tx: AsyncSession, session_ids: Collection[uuid.UUID], *, unsettled: bool = False, limit: int | None = None
) -> dict[uuid.UUID, list[ParentRecord]]:
    """Returns, by session, those it depends on in the order asked for."""
    query = _PARENTS.where(not_(_dependency.c.settled)) if unsettled else _PARENTS
    limited = query if limit is None else query.limit(limit)
    return _parents(fetched(await tx.execute(limited, {"ids": list(session_ids)})))


def reading(session_ids: Collection[uuid.UUID]) -> Query[dict[uuid.UUID, list[ParentRecord]]]:
    """Returns `read` as a query among others."""
    return Query(_READ, {"ids": list(session_ids)}, read=_parents)


def _parents(rows: Iterable[Row]) -> dict[uuid.UUID, list[ParentRecord]]:
    dependencies: dict[uuid.UUID, list[ParentRecord]] = {}
    for row in rows:
        parent = ParentRecord(
            row["parent_id"],
            row["number"],
            row["name"],
            not row["state"],
            STATES.get(row["state"]),
            RESULTS.get(row["result"]),
            row["priority"],
        )
        dependencies.setdefault(row["child_id"], []).append(parent)
    return dependencies


async def read_graph(tx: AsyncSession, session_id: uuid.UUID, nodes: int, edges: int) -> tuple[list[GraphNode], bool]:
    """Returns sessions that are connected with one by dependencies, in order of arrival, at most so many with at most
    so many dependencies, and whether there are more.
    """
    found = await tx.execute(
        text("""
            WITH RECURSIVE reach(id) AS (
                SELECT CAST(:id AS uuid)
                UNION
                SELECT next.id FROM reach CROSS JOIN LATERAL (
                    SELECT parent_id AS id FROM session_dependency WHERE child_id = reach.id
                    UNION ALL SELECT child_id FROM session_dependency WHERE parent_id = reach.id
                ) next
            ), members AS (SELECT id FROM reach LIMIT :nodes + 1), node AS (
                SELECT s.id, s.number, s.name, s.state, s.result, s.reason, s.retries, s.start_time, s.end_time,
                    ARRAY(SELECT d.parent_id FROM session_dependency d WHERE d.child_id = s.id ORDER BY d.position) AS depends_on
                FROM members JOIN session s ON s.id = members.id
            )
            SELECT * FROM (
                SELECT *, count(*) OVER () AS found, sum(cardinality(depends_on)) OVER (ORDER BY number) AS edges FROM node
            ) n WHERE edges <= :edges ORDER BY number LIMIT :nodes
        """),
        {"id": session_id, "nodes": nodes, "edges": edges},
    )
    rows = fetched(found)
    found_nodes = [
        GraphNode(
            row["id"],
            row["number"],
            row["name"],
            STATES.get(row["state"]),
            RESULTS.get(row["result"]),
            row["reason"],
            row["retries"],
            row["start_time"],
            row["end_time"],
            row["depends_on"],
        )
        for row in rows
    ]
    return found_nodes, bool(rows) and rows[0]["found"] > len(rows)
