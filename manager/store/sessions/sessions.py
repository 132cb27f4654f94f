"""Inserts, reads, lists and updates sessions and kernels."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import orjson
import psycopg
from sqlalchemy import text
from sqlmodel.ext.asyncio.session import AsyncSession

from retinue.manager.domain.errors import NameTaken
from retinue.manager.domain.reasons import ConditionType
from retinue.manager.domain.session.events import PulledBytes
from retinue.manager.domain.session.images import SeenImage
from retinue.manager.domain.session.isolation_policy import IsolationPolicy
from retinue.manager.domain.session.new_session import NewKernel, NewSession
from retinue.manager.domain.session.spec import SessionSpec
from retinue.manager.domain.session.spec_codec import encode
from retinue.manager.domain.session.spec_columns import KernelColumns, SpecColumns, members
from retinue.manager.domain.session.states import KernelState, Result, SessionState
from retinue.manager.store.postgres.constructs import columns_of, definitions, table_of
from retinue.manager.store.postgres.database import Query, Statement, Transaction, fetch, run
from retinue.manager.store.postgres.recordset import Row, fetched, recordset
from retinue.manager.store.sessions import session_records
from retinue.manager.store.sessions.session_records import KernelRecord, SessionRecord
from retinue.manager.store.tables import Session
from retinue.rpc.loop_slices import in_slices

_SESSION_COLUMNS = """
    s.id, s.number, s.name, s.owner, s.project, s.resource_group, s.type, s.priority,
    s.spec, s.state, s.result, s.exit_code, s.reason, s.message,
    s.explanation, s.conditions, s.network, s.tries, s.failed_starts, s.retries, s.failed_agents, s.force, s.version, s.create_time,
    s.evaluate_time, s.next_try_time, s.schedule_time, s.start_time, s.end_time, s.expire_time
"""
_LISTED_COLUMNS = """
    s.id, s.number, s.name, s.owner, s.project, s.resource_group, s.type,
    s.spec, s.state, s.result, s.exit_code, s.reason, s.message, s.conditions, s.network,
    s.retries, s.version, s.create_time, s.schedule_time, s.start_time, s.end_time
"""
# What a page takes at most of the database, the stored requests and so much for each kernel:
# what is shown of them is less.
_PAGE_BYTES, _FULL_PAGE_BYTES, _KERNEL_BYTES = 4 * 1024 * 1024, 1024 * 1024, 1024
_KERNEL_COLUMNS = """
    k.id, k.session_id, k.role, k.role_index, k.local_rank, k.hostname, k.slots, k.state, k.agent_id, k.epoch, k.address, k.exit_code, k.reason,
    k.image_digest, k.image_id, k.service_ports, k.pull
"""

_UUID_DIGITS = 32
# So many fit a bigint whatever they are.
_NUMBER_DIGITS = 18
_SHORTEST_PREFIX = 8


@dataclass(frozen=True, slots=True)
class Visibility:
    """The sessions that a caller may read: all, or the own ones and those of the projects administered."""

    everything: bool
    owner: str
    administered: tuple[str, ...] = ()

    @property
    def sees_others(self) -> bool:
        """Returns whether the caller may read sessions of other owners."""
        return self.everything or bool(self.administered)

    def condition(self, table: str) -> str:
        """Returns the condition as SQL over the parameters of `parameters`."""
        return (
            "TRUE"
            if self.everything
            else f"({table}.owner = :visible_owner OR {table}.project = ANY(:visible_projects))"
        )

    def parameters(self) -> dict[str, Any]:
        """Returns the values that `condition` needs."""
        return {} if self.everything else {"visible_owner": self.owner, "visible_projects": list(self.administered)}

    def can_read(self, owner: str, project: str) -> bool:
        """Returns whether the caller may read a session of `owner` in `project`."""
        return self.everything or owner == self.owner or project in self.administered


async def take_numbers(tx: Transaction, amount: int) -> int:
    """Returns the first of so many consecutive numbers for new sessions, which no other transaction gets,
    whatever becomes of this one. No one waits for them until the commit.
    """
    query = taking_numbers(amount)
    return (await tx.pipeline(query)).of(query)


def taking_numbers(amount: int) -> Query[int]:
    """Returns `take_numbers` as a query among others."""
    return Query(
        "SELECT take_session_numbers(:amount) AS first", {"amount": amount}, read=lambda rows: int(rows[0]["first"])
    )


@dataclass(frozen=True, slots=True)
class Inserted:
    """A session that was inserted: its number, and when."""

    number: int
    create_time: dt.datetime


class Insertion(NamedTuple):
    """A session to be inserted, with its spec and its kernels."""

    session: NewSession
    spec: SessionSpec
    kernels: Sequence[NewKernel]


# Every column that is written from a spec.
_COLUMNS_OF_SPEC = [table_of(Session).c.spec, *columns_of(Session, SpecColumns)]
_OF_SPEC = [item.name for item in _COLUMNS_OF_SPEC]
_OF_SPEC_DEFINED = definitions(_COLUMNS_OF_SPEC)
# What a session's spec may change in.
_CHANGEABLE = ("name", "priority", "hold")


def insert_statement(
    insertions: Sequence[Insertion], *, first: int, reason: str, message: str
) -> Query[dict[uuid.UUID, Inserted]]:
    """Inserts sessions with their kernels, in order of arrival and with numbers from `first`, waiting for `reason`.
    One whose name a live session of the owner has, or an earlier one of these, is left out with its kernels.
    """
    of_spec = ", ".join(f"p.{name}" for name in _OF_SPEC if name != "spec")
    return Query(
        f"""
            WITH made AS (
                INSERT INTO session (number,
                    id, name, owner, project, resource_group, type, cluster_mode, cluster_size, priority, endpoint,
                    spec, {of_spec.replace("p.", "")},
                    explanation, conditions, failed_agents, last_failure, state, result, reason, message, network, tries, failed_starts, force,
                    version)
                OVERRIDING SYSTEM VALUE
                SELECT :first + r.n - 1,
                    r.id, r.name, r.owner, r.project, r.resource_group, r.type, r.cluster_mode, r.cluster_size, r.priority, r.endpoint,
                    p.spec || jsonb_build_object('name', r.name), {of_spec},
                    '{{}}', '[]', '[]', '', 'PENDING', 'UNDEFINED', CAST(:reason AS text), CAST(:message AS text), '', 0, 0, FALSE, 1
                FROM ROWS FROM (jsonb_to_recordset(CAST(:sessions AS jsonb)) AS (id uuid, name text, owner text, project text,
                    resource_group text, type text, cluster_mode text, cluster_size int, priority int, endpoint text, of_spec int))
                    WITH ORDINALITY AS r(id, name, owner, project, resource_group, type, cluster_mode, cluster_size, priority, endpoint,
                        of_spec, n)
                JOIN jsonb_to_recordset(CAST(:specs AS jsonb)) AS p(position int, {_OF_SPEC_DEFINED}) ON p.position = r.of_spec
                ORDER BY r.n
                ON CONFLICT DO NOTHING RETURNING id, number, create_time
            ), of_kernels AS (
                INSERT INTO kernel (id, session_id, role, role_index, local_rank, hostname, slots, image, isolation, state, epoch, address,
                    reason)
                SELECT r.id, r.session_id, r.role, r.role_index, r.local_rank, r.hostname, r.slots, r.image, r.isolation, 'PENDING', 0, '', ''
                FROM jsonb_to_recordset(CAST(:kernels AS jsonb)) AS r(id uuid, session_id uuid, role text, role_index int, local_rank int,
                    hostname text, slots jsonb, image text, isolation text)
                JOIN made ON made.id = r.session_id
            )
            SELECT id, number, create_time FROM made
        """,  # noqa: S608  # names of our columns
        {**_rows(insertions), "first": first, "reason": reason, "message": message},
        read=lambda rows: {row["id"]: Inserted(row["number"], row["create_time"]) for row in rows},
    )


def _rows(insertions: Sequence[Insertion]) -> dict[str, str]:
    """Returns the specs, sessions and kernels to be inserted as sets of rows; a spec that sessions share is in one."""
    # By identity.
    position_of: dict[int, int] = {}
    of_roles: dict[tuple[int, str], dict[str, object]] = {}
    specs: list[dict[str, object]] = []
    rows, kernels = [], []
    for session, spec, of_session in insertions:
        if (position := position_of.get(id(spec))) is None:
            position = position_of[id(spec)] = len(specs)
            specs.append({**members(SpecColumns.of(spec)), "spec": encode(spec), "position": position})
        rows.append({**members(session), "of_spec": position})
        for kernel in of_session:
            if (of_role := of_roles.get((position, kernel.role))) is None:
                of_role = of_roles[position, kernel.role] = members(KernelColumns.of(spec, kernel.role))
            kernels.append({**members(kernel), **of_role})
    return {"specs": recordset(specs), "sessions": recordset(rows), "kernels": recordset(kernels)}


async def remove(tx: AsyncSession, session_ids: Collection[uuid.UUID]) -> None:
    """Deletes sessions and all that belongs to them: only for those inserted in the same transaction."""
    await tx.execute(text("DELETE FROM session WHERE id = ANY(:ids)"), {"ids": list(session_ids)})


async def names_taken(tx: AsyncSession, owner: str, names: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
    """Returns those (project, name) that live sessions of an owner have."""
    rows = await tx.execute(
        text("""
            SELECT s.project, s.name FROM session s JOIN unnest(CAST(:projects AS text[]), CAST(:names AS text[])) AS r(project, name)
                ON s.project = r.project AND s.name = r.name
            WHERE s.owner = :owner AND s.state NOT IN ('TERMINATED', 'CANCELLED')
        """),
        {"owner": owner, "projects": [project for project, _ in names], "names": [name for _, name in names]},
    )
    return {(project, name) for project, name in rows}


@dataclass(frozen=True, slots=True)
class AdmissionPolicy:
    """The sessions that a resource group takes: their types, none for all, the isolations of their kernels, and their
    longest grace in seconds; and the pull policy of kernels that ask for none, empty for none.
    """

    types: Sequence[str]
    isolation: IsolationPolicy
    max_grace_seconds: int
    pull_policy: str


References: TypeAlias = tuple[set[str], dict[str, AdmissionPolicy], bool]
"""Projects and groups that exist, none of the projects without the owner, the groups with what they take; and whether
there are any quotas.
"""


async def lock_references(
    tx: Transaction, owner: str, projects: Collection[str], groups: Collection[str]
) -> References:
    """Locks projects and groups until the commit, so that they cannot be deleted."""
    query = references_query(owner, projects, groups)
    return (await tx.pipeline(query)).of(query)


def references_query(owner: str, projects: Collection[str], groups: Collection[str]) -> Query[References]:
    """Locks projects and groups until the commit, so that they cannot be deleted, and reads them."""
    return Query(
        """
            WITH u AS (SELECT name FROM user_account WHERE name = :owner FOR KEY SHARE),
                p AS (SELECT name FROM project WHERE name = ANY(:projects) ORDER BY name FOR KEY SHARE),
                g AS (SELECT name, session_types, isolations, default_isolation, max_grace_seconds, default_pull_policy
                    FROM resource_group WHERE name = ANY(:groups)
                    ORDER BY name FOR KEY SHARE)
            SELECT ARRAY(SELECT name FROM p WHERE EXISTS (SELECT FROM u)) AS projects,
                (SELECT coalesce(jsonb_object_agg(name, to_jsonb(g)), '{}') FROM g) AS groups,
                EXISTS (SELECT FROM quota) AS quotas
        """,
        {"owner": owner, "projects": list(projects), "groups": list(groups)},
        read=_references,
    )


def _references(rows: Sequence[Row]) -> References:
    found = rows[0]
    policies = {
        name: AdmissionPolicy(
            group["session_types"],
            IsolationPolicy(group["isolations"], group["default_isolation"]),
            group["max_grace_seconds"],
            group["default_pull_policy"],
        )
        for name, group in found["groups"].items()
    }
    return set(found["projects"]), policies, found["quotas"]


async def find(
    tx: Transaction, references: Collection[str], visibility: Visibility, caller: str
) -> dict[str, uuid.UUID]:
    """Returns the sessions that references mean, without those that mean none or several: an id, a unique prefix of one
    (8 characters or more), a number, the name of a session of the caller, or owner and name as `OWNER/NAME`: the live
    one, else the newest that ended. A live name of digits comes before a number, and a number before all else.
    """
    return await fetch(tx, finding(references, visibility, caller))


def finding(references: Collection[str], visibility: Visibility, caller: str) -> Query[dict[str, uuid.UUID]]:
    """Returns `find` as a query among others."""
    meanings = [_meaning(reference, caller) for reference in references if "\0" not in reference]
    visible = visibility.condition("s")
    return Query(
        f"""
            WITH r AS MATERIALIZED (
                SELECT * FROM jsonb_to_recordset(CAST(:rows AS jsonb))
                    AS r(reference text, named_owner text, name text, number bigint, low uuid, high uuid)
            )
            SELECT r.reference, 'live' AS by, s.id FROM r JOIN session s ON s.owner = r.named_owner AND s.name = r.name
            WHERE s.state NOT IN ('TERMINATED', 'CANCELLED') AND {visible}
            UNION ALL
            SELECT r.reference, 'number', s.id FROM r JOIN session s ON s.number = r.number WHERE {visible}
            UNION ALL
            SELECT r.reference, 'id', s.id FROM r CROSS JOIN LATERAL (
                SELECT s.id FROM session s WHERE s.id BETWEEN r.low AND r.high AND {visible} LIMIT 2
            ) s
            UNION ALL
            SELECT r.reference, 'ended', s.id FROM r CROSS JOIN LATERAL (
                SELECT s.id FROM session s
                WHERE s.owner = r.named_owner AND s.name = r.name AND s.state IN ('TERMINATED', 'CANCELLED') AND {visible}
                ORDER BY s.number DESC LIMIT 1
            ) s
        """,  # noqa: S608  # the condition is ours, its values are parameters
        {"rows": recordset(meanings), **visibility.parameters()},
        read=_meant_by_each,
    )


def _meant_by_each(rows: Iterable[Row]) -> dict[str, uuid.UUID]:
    candidates = _candidates(rows)
    meant = {reference: _meant(reference, found) for reference, found in candidates.items()}
    return {reference: next(iter(ids)) for reference, ids in meant.items() if len(ids) == 1}


def _candidates(rows: Iterable[Row]) -> dict[str, dict[str, set[uuid.UUID]]]:
    """Returns the sessions that may be meant, by reference and by the way they were found."""
    candidates: dict[str, dict[str, set[uuid.UUID]]] = {}
    for row in rows:
        candidates.setdefault(row["reference"], {}).setdefault(row["by"], set()).add(row["id"])
    return candidates


def _meant(reference: str, found: Mapping[str, set[uuid.UUID]]) -> set[uuid.UUID]:
    """Returns the sessions that a reference may mean, of those found by each way."""
    exact = found.get("live") or found.get("number") or set()
    is_exact = bool(exact) and as_number(reference) is not None
    return (exact if is_exact else exact | found.get("id", set())) or found.get("ended", set())


async def owners_of(
    tx: AsyncSession, names: Collection[str], visibility: Visibility, limit: int
) -> dict[str, list[str]]:
    """Returns the first owners, in their order, of live sessions of each name that the caller may read."""
    rows = await tx.execute(
        text(f"""
            SELECT s.name, (array_agg(DISTINCT s.owner ORDER BY s.owner))[1 : CAST(:limit AS int)] FROM session s
            WHERE s.state NOT IN ('TERMINATED', 'CANCELLED') AND s.name = ANY(:names) AND {visibility.condition("s")}
            GROUP BY s.name
        """),  # noqa: S608  # the condition is ours, its values are parameters
        {"names": [name for name in names if "\0" not in name], "limit": limit, **visibility.parameters()},
    )
    return {name: list(owners) for name, owners in rows}


async def pending_among(tx: AsyncSession, session_ids: Collection[uuid.UUID]) -> set[uuid.UUID]:
    """Returns those of the sessions that wait."""
    rows = await tx.execute(
        text("SELECT id FROM session WHERE id = ANY(:ids) AND state = 'PENDING'"), {"ids": list(session_ids)}
    )
    return set(rows.scalars())


def as_number(reference: str) -> int | None:
    """Returns the number of a session that a reference may be."""
    is_number = reference.isascii() and reference.isdecimal() and not reference.startswith("0")
    return int(reference) if is_number and len(reference) <= _NUMBER_DIGITS else None


def _meaning(reference: str, caller: str) -> dict[str, Any]:
    """Returns what a reference may mean: a name of an owner, a number, a range of ids; None where it means no such."""
    owner, slash, name = reference.partition("/")
    # Neither ids nor names have a slash.
    named = {"named_owner": owner, "name": name} if slash else {"named_owner": caller, "name": reference}
    digits = reference.replace("-", "").lower()
    is_id = _SHORTEST_PREFIX <= len(digits) <= _UUID_DIGITS and all(digit in "0123456789abcdef" for digit in digits)
    return {
        "reference": reference,
        **named,
        "number": as_number(reference),
        "low": uuid.UUID(digits.ljust(_UUID_DIGITS, "0")) if is_id else None,
        "high": uuid.UUID(digits.ljust(_UUID_DIGITS, "f")) if is_id else None,
    }


async def read(
    tx: AsyncSession, session_ids: Collection[uuid.UUID], *, lock: bool = False
) -> dict[uuid.UUID, SessionRecord]:
    """Returns sessions by id; with `lock`, locked in the order of their ids until the commit."""
    return await fetch(tx, reading(session_ids, lock=lock))


async def read_kernels(tx: AsyncSession, session_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, list[KernelRecord]]:
    """Returns kernels by session, in the order of their rank."""
    return await fetch(tx, reading_kernels(session_ids))


async def lock(
    tx: Transaction, session_ids: Collection[uuid.UUID]
) -> tuple[dict[uuid.UUID, SessionRecord], dict[uuid.UUID, list[KernelRecord]]]:
    """Locks sessions until the commit; returns them by id, and their kernels: `read` and `read_kernels` at once."""
    records, kernels = reading(session_ids, lock=True), reading_kernels(session_ids)
    answers = await tx.pipeline(records, kernels)
    return answers.of(records), answers.of(kernels)


def reading(
    session_ids: Collection[uuid.UUID], *, lock: bool = False, visibility: Visibility | None = None
) -> Query[dict[uuid.UUID, SessionRecord]]:
    """Returns `read` as a query among others; with `visibility`, without the sessions that the caller may not read."""
    visible = "TRUE" if visibility is None else visibility.condition("s")
    return Query(
        f"SELECT {_SESSION_COLUMNS} FROM session s WHERE s.id = ANY(:ids) AND {visible} ORDER BY s.id {'FOR UPDATE' if lock else ''}",  # noqa: S608
        {"ids": list(session_ids), **({} if visibility is None else visibility.parameters())},
        read=lambda rows: {row["id"]: session_records.session(row) for row in rows},
    )


def reading_kernels(session_ids: Collection[uuid.UUID]) -> Query[dict[uuid.UUID, list[KernelRecord]]]:
    """Returns `read_kernels` as a query among others."""
    return Query(
        f"""
            SELECT {_KERNEL_COLUMNS}, a.goal, a.observed, (a.kernel_id IS NULL OR a.end_time IS NOT NULL) AS attempt_ended,
                coalesce(a.observed_end_time, a.end_time) AS attempt_end_time, a.usage AS attempt_usage
            FROM kernel k LEFT JOIN attempt a ON a.kernel_id = k.id AND a.epoch = k.epoch
            WHERE k.session_id = ANY(:ids) ORDER BY k.session_id, k.local_rank
        """,  # noqa: S608
        {"ids": list(session_ids)},
        read=session_records.kernels_by_session,
    )


async def list_page(
    tx: AsyncSession,
    visibility: Visibility,
    *,
    terms: Sequence[tuple[str, str, str]],
    ended: bool,
    newest_first: bool,
    after: tuple[str, str] | None,
    limit: int,
    full: bool = False,
) -> tuple[list[SessionRecord], int]:
    """Returns one page by creation time and id, with as many rows of at most `limit` as the bytes of a page hold, and
    how many there were up to `limit`. `terms` are (field, `=` or `!=`, value);
    `after` is the last row of the page before; with `full`, requests are whole.
    """
    conditions, values = [visibility.condition("s")], dict[str, Any](visibility.parameters())
    if not ended:
        conditions.append("s.state NOT IN ('TERMINATED', 'CANCELLED')")
    compared, parameters = _comparisons(terms)
    conditions += compared
    values |= parameters
    direction, beyond = ("DESC", "<") if newest_first else ("ASC", ">")
    if after is not None:
        conditions.append(f"(s.create_time, s.id) {beyond} (CAST(:after_time AS timestamptz), CAST(:after_id AS uuid))")
        values["after_time"], values["after_id"] = after
    order = f"s.create_time {direction}, s.id {direction}"
    found = await tx.execute(
        text(f"""
            SELECT {_LISTED_COLUMNS}, s.found FROM (
                SELECT s.*, count(*) OVER () AS found,
                    sum(s.spec_bytes + :of_kernel * s.cluster_size) OVER (ORDER BY {order} ROWS UNBOUNDED PRECEDING) AS bytes
                FROM (SELECT * FROM session s WHERE {" AND ".join(conditions)} ORDER BY {order} LIMIT :limit) s
            ) s
            WHERE s.bytes <= :bytes OR s.bytes = s.spec_bytes + :of_kernel * s.cluster_size ORDER BY {order}
        """),  # noqa: S608  # conditions are made of our own words, all values are parameters
        {
            **values,
            "limit": limit,
            "bytes": _FULL_PAGE_BYTES if full else _PAGE_BYTES,
            "of_kernel": _KERNEL_BYTES,
        },
    )
    rows = fetched(found)
    return await in_slices(rows, session_records.listed_session), rows[0]["found"] if rows else 0


def _comparisons(terms: Sequence[tuple[str, str, str]]) -> tuple[list[str], dict[str, str]]:
    """Conditions on the session `s`, and the values of their parameters."""
    conditions, values = [], {}
    for number, (field, operator, value) in enumerate(terms):
        comparison = "IS DISTINCT FROM" if operator == "!=" else "IS NOT DISTINCT FROM"
        compared = f":value{number}"
        if field.startswith("labels."):
            values[f"key{number}"] = field.removeprefix("labels.")
            column = f"s.labels->>:key{number}"
        elif field == "number":
            # It is never NULL, and an index serves plain comparisons only.
            column, compared = "s.number", f"CAST({compared} AS bigint)"
            comparison = "<>" if operator == "!=" else "="
        else:
            column = f"s.{field}::text"
        conditions.append(f"{column} {comparison} {compared}")
        values[f"value{number}"] = value
    return conditions, values


async def matching(
    tx: AsyncSession, terms: Sequence[tuple[str, str, str]], session_ids: Iterable[uuid.UUID]
) -> set[uuid.UUID]:
    """Returns those of some sessions that are there and match; `terms` are as in `list_page`."""
    conditions, values = _comparisons(terms)
    query = f"SELECT s.id FROM session s WHERE {' AND '.join(['s.id = ANY(:ids)', *conditions])}"  # noqa: S608  # our own words
    found = await tx.execute(text(query), {**values, "ids": list(session_ids)})
    return set(found.scalars())


@dataclass(frozen=True, slots=True)
class SessionUpdate:
    """A session after it moved. `delay` is in seconds until the next try, None to leave that alone;
    `force` shortens its grace.
    """

    id: uuid.UUID
    state: SessionState
    result: Result
    exit_code: int | None
    reason: str
    message: str
    failed_starts: int
    retries: int
    failed_agents: Sequence[str]
    delay: float | None
    force: bool


@dataclass(frozen=True, slots=True)
class KernelUpdate:
    """A kernel after it moved. `pull` is None to leave the progress of a pull as it is while the kernel is PULLING."""

    id: uuid.UUID
    state: KernelState
    agent_id: str | None
    exit_code: int | None
    reason: str
    image: SeenImage
    pull: PulledBytes | None


def update_statements(
    sessions: Iterable[SessionUpdate], kernels: Iterable[KernelUpdate]
) -> tuple[Statement, Statement]:
    """Returns the statements that update sessions and kernels which moved."""
    of_sessions = Statement(
        f"""
            UPDATE session SET state = r.state, result = r.result, exit_code = r.exit_code, reason = r.reason, message = r.message,
                failed_starts = r.failed_starts, retries = r.retries, failed_agents = r.failed_agents, force = session.force OR r.force,
                version = version + 1,
                state_time = CASE WHEN r.state <> session.state THEN now() ELSE state_time END,
                start_time = CASE r.state WHEN 'RUNNING' THEN coalesce(start_time, now()) WHEN 'PENDING' THEN NULL ELSE start_time END,
                expire_time = CASE WHEN r.state = 'RUNNING'
                    THEN coalesce(start_time, now()) + make_interval(secs => time_limit_seconds) END,
                end_time = CASE WHEN r.state IN ('TERMINATED', 'CANCELLED') THEN now() END,
                last_failure = CASE WHEN r.delay IS NOT NULL THEN r.reason || ': ' || r.message ELSE last_failure END,
                network = CASE WHEN r.state = 'PENDING' THEN '' ELSE network END,
                nomination = CASE WHEN r.state = 'PENDING' THEN nomination ELSE '{{}}' END,
                explanation = CASE WHEN r.state = 'PENDING' THEN explanation ELSE '{{}}' END,
                conditions = CASE WHEN r.state IN ('CANCELLED', 'PENDING') THEN '[]'
                    WHEN r.state = 'TERMINATED' THEN jsonb_path_query_array(conditions, '$[*] ? (@.type == "{ConditionType.OOM_KILLED}")')
                    ELSE conditions END,
                next_try_time = CASE WHEN r.delay IS NULL THEN next_try_time ELSE now() + make_interval(secs => r.delay) END
            FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(id uuid, state text, result text, exit_code int, reason text, message text,
                failed_starts int, retries int, failed_agents jsonb, delay double precision, force boolean)
            WHERE session.id = r.id
        """,  # noqa: S608  # our own words
        {"rows": recordset(sessions)},
    )
    of_kernels = Statement(
        """
            UPDATE kernel SET state = r.state, agent_id = r.agent_id, exit_code = r.exit_code, reason = r.reason,
                address = CASE WHEN r.state = 'PENDING' THEN '' ELSE address END,
                image_digest = r.image->>'digest', image_id = r.image->>'id', service_ports = r.image->'service_ports',
                pull = CASE WHEN r.state = 'PULLING' THEN coalesce(r.pull, kernel.pull) ELSE '{}' END
            FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(id uuid, state text, agent_id text, exit_code int, reason text,
                image jsonb, pull jsonb)
            WHERE kernel.id = r.id
        """,
        {"rows": recordset(kernels)},
    )
    return of_sessions, of_kernels


async def change(tx: Transaction, session_id: uuid.UUID, spec: SessionSpec) -> None:
    """Gives a locked session the name, priority and hold of a changed spec; one that is released begins to wait.
    Raises NameTaken, and then the transaction has failed.
    """
    # All else in the document stays: a newer manager may have written members that are not known here.
    changed = {name: value for name, value in encode(spec).items() if name in _CHANGEABLE}
    try:
        await tx.pipeline(
            Statement(
                """
                UPDATE session SET name = :name, priority = :priority, hold = :hold,
                    spec = (spec - CAST(:changeable AS text[])) || CAST(:changed AS jsonb),
                    nomination = CASE WHEN :hold THEN '{}' ELSE nomination END,
                    state_time = CASE WHEN hold AND NOT :hold THEN now() ELSE state_time END, version = version + 1
                WHERE id = :id
                """,
                {
                    "id": session_id,
                    "name": spec.name,
                    "priority": spec.priority,
                    "hold": spec.hold,
                    "changeable": list(_CHANGEABLE),
                    "changed": orjson.dumps(changed).decode(),
                },
            )
        )
    except psycopg.errors.UniqueViolation as error:
        raise NameTaken("session", spec.name) from error


def pull_statement(session_ids: Collection[uuid.UUID]) -> Statement:
    """Records that image pulls of these sessions progressed."""
    return Statement("UPDATE session SET pull_time = now() WHERE id = ANY(:ids)", {"ids": list(session_ids)})


async def set_conditions(
    tx: AsyncSession, session_ids: Iterable[uuid.UUID], conditions: Iterable[Sequence[object]]
) -> None:
    """Replaces the conditions of sessions; each is a Condition, or as it is stored."""
    await run(tx, condition_statement(dict(zip(session_ids, conditions, strict=True))))


def condition_statement(conditions: Mapping[uuid.UUID, Sequence[object]]) -> Statement:
    """Returns the statement that replaces the conditions of sessions; each is a Condition, or as it is stored."""
    return Statement(
        """
            UPDATE session SET conditions = r.conditions, version = version + 1
            FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(id uuid, conditions jsonb) WHERE session.id = r.id
        """,
        {"rows": recordset({"id": id_, "conditions": of} for id_, of in conditions.items())},
    )


async def queue_length(tx: AsyncSession, group: str) -> int:
    """Returns the number of sessions that wait in a group."""
    number = await tx.execute(
        text("SELECT count(*) FROM session WHERE state = 'PENDING' AND resource_group = :group"), {"group": group}
    )
    return int(number.scalar_one())
