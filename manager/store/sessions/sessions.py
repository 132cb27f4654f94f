"""Inserts, reads, lists and updates sessions and kernels."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import psycopg
from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    ColumnElement,
    Float,
    FromClause,
    Integer,
    Select,
    Text,
    Uuid,
    and_,
    case,
    cast,
    delete,
    distinct,
    func,
    literal,
    literal_column,
    not_,
    null,
    or_,
    select,
    true,
    tuple_,
    union_all,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB, JSONPATH, aggregate_order_by
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
from retinue.manager.store.postgres.constructs import (
    EMPTY_LIST,
    EMPTY_OBJECT,
    Construct,
    columns_of,
    definitions,
    json_parameter,
    lists,
    objects,
    one_of,
    parameter,
    span,
    table_of,
    value_of,
    word,
    words,
)
from retinue.manager.store.postgres.database import Query, Statement, Transaction, fetch, run
from retinue.manager.store.postgres.recordset import Row, fetched, json_text, recordset
from retinue.manager.store.sessions import session_records
from retinue.manager.store.sessions.session_records import KernelRecord, SessionRecord
from retinue.manager.store.tables import Attempt, Kernel, Project, Quota, ResourceGroup, Session, UserAccount
from retinue.rpc.loop_slices import in_slices

# What a page takes at most of the database, the stored requests and so much for each kernel:
# what is shown of them is less.
_PAGE_BYTES, _FULL_PAGE_BYTES, _KERNEL_BYTES = 4 * 1024 * 1024, 1024 * 1024, 1024
_UUID_DIGITS = 32
# So many fit a bigint whatever they are.
_NUMBER_DIGITS = 18
_SHORTEST_PREFIX = 8


_attempt, _group, _kernel = table_of(Attempt), table_of(ResourceGroup), table_of(Kernel)
_project, _quota, _session, _user = table_of(Project), table_of(Quota), table_of(Session), table_of(UserAccount)
# As indexes have it.
_IS_OVER = _session.c.state.in_(words("TERMINATED", "CANCELLED"))
_IS_LIVE = _session.c.state.not_in(words("TERMINATED", "CANCELLED"))
_IS_ASKED = _session.c.id == one_of("ids", Uuid())


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

    def condition(self, table: FromClause) -> ColumnElement[bool]:
        """Returns the condition on a table of what has an owner and a project, with the parameters of `parameters`."""
        if self.everything:
            return true()
        is_own = table.c.owner == parameter("visible_owner", Text())
        return or_(is_own, table.c.project == one_of("visible_projects"))

    def parameters(self) -> dict[str, Any]:
        """Returns the values that `condition` needs."""
        return {} if self.everything else {"visible_owner": self.owner, "visible_projects": list(self.administered)}

    def can_read(self, owner: str, project: str) -> bool:
        """Returns whether the caller may read a session of `owner` in `project`."""
        return self.everything or owner == self.owner or project in self.administered


# To a caller who does not see everything.
_IS_VISIBLE = Visibility(everything=False, owner="").condition(_session)


async def take_numbers(tx: Transaction, amount: int) -> int:
    """Returns the first of so many consecutive numbers for new sessions, which no other transaction gets,
    whatever becomes of this one. No one waits for them until the commit.
    """
    query = taking_numbers(amount)
    return (await tx.pipeline(query)).of(query)


_TAKING_NUMBERS = Construct(select(func.take_session_numbers(parameter("amount", Integer())).label("first")))


def taking_numbers(amount: int) -> Query[int]:
    """Returns `take_numbers` as a query among others."""
    return Query(_TAKING_NUMBERS, {"amount": amount}, read=lambda rows: int(rows[0]["first"]))


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
_COLUMNS_OF_SPEC = [_session.c.spec, *columns_of(Session, SpecColumns)]
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
    await tx.execute(delete(_session).where(_IS_ASKED), {"ids": list(session_ids)})


_asked = lists("asked", project=Text(), name=Text())
_TAKEN = (
    select(_session.c.project, _session.c.name)
    .join_from(_session, _asked, and_(_session.c.project == _asked.c.project, _session.c.name == _asked.c.name))
    .where(_session.c.owner == parameter("owner", Text()), _IS_LIVE)
)


async def names_taken(tx: AsyncSession, owner: str, names: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
    """Returns those (project, name) that live sessions of an owner have."""
    given = {"project": [project for project, _ in names], "name": [name for _, name in names]}
    rows = await tx.execute(_TAKEN, {"owner": owner, **given})
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


def _making_references() -> Construct:
    """Projects, groups and the owner, locked; and whether there are any quotas."""
    owner = select(_user.c.name).where(_user.c.name == parameter("owner", Text()))
    projects = select(_project.c.name).where(_project.c.name == one_of("projects")).order_by(_project.c.name)
    taking = [_group.c[name] for name in ("session_types", "isolations", "default_isolation", "max_grace_seconds")]
    groups = (
        select(_group.c.name, *taking, _group.c.default_pull_policy)
        .where(_group.c.name == one_of("groups"))
        .order_by(_group.c.name)
    )
    u, p, g = (
        each.with_for_update(read=True, key_share=True).cte(name)
        for each, name in ((owner, "u"), (projects, "p"), (groups, "g"))
    )
    of_owner = select(p.c.name).where(select(u.c.name).exists())
    policies = select(func.coalesce(func.jsonb_object_agg(g.c.name, func.to_jsonb(g.table_valued())), EMPTY_OBJECT))
    return Construct(
        select(
            func.array(of_owner.scalar_subquery()).label("projects"),
            policies.scalar_subquery().label("groups"),
            select(_quota.c.name).exists().label("quotas"),
        )
    )


_REFERENCES = _making_references()


def references_query(owner: str, projects: Collection[str], groups: Collection[str]) -> Query[References]:
    """Locks projects and groups until the commit, so that they cannot be deleted, and reads them."""
    return Query(
        _REFERENCES,
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


def _making_found(visible: ColumnElement[bool]) -> Construct:
    """Sessions that references may mean, by what each way finds."""
    rows = objects(
        "given",
        "rows",
        reference=Text(),
        named_owner=Text(),
        name=Text(),
        number=BigInteger(),
        low=Uuid(),
        high=Uuid(),
    )
    r = select(*rows.c).cte("r").prefix_with("MATERIALIZED")
    is_named = and_(_session.c.owner == r.c.named_owner, _session.c.name == r.c.name)

    def way(by: str) -> Select[tuple[str, str]]:
        return select(r.c.reference, literal_column(f"'{by}'", Text()).label("by"))

    ids = select(_session.c.id).where(_session.c.id.between(r.c.low, r.c.high), visible).limit(2)
    ended = select(_session.c.id).where(is_named, _IS_OVER, visible).order_by(_session.c.number.desc()).limit(1)
    by_id, newest = ids.lateral("by_id"), ended.lateral("newest")
    return Construct(
        union_all(
            way("live").add_columns(_session.c.id).join_from(r, _session, is_named).where(_IS_LIVE, visible),
            way("number")
            .add_columns(_session.c.id)
            .join_from(r, _session, _session.c.number == r.c.number)
            .where(visible),
            way("id").add_columns(by_id.c.id).join_from(r, by_id, true()),
            way("ended").add_columns(newest.c.id).join_from(r, newest, true()),
        )
    )


_FOUND_AMONG_ALL = _making_found(true())
_FOUND = _making_found(_IS_VISIBLE)


def finding(references: Collection[str], visibility: Visibility, caller: str) -> Query[dict[str, uuid.UUID]]:
    """Returns `find` as a query among others."""
    meanings = [_meaning(reference, caller) for reference in references if "\0" not in reference]
    return Query(
        _FOUND_AMONG_ALL if visibility.everything else _FOUND,
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
    owners = func.array_agg(aggregate_order_by(distinct(_session.c.owner), _session.c.owner), type_=ARRAY(Text))
    query = (
        select(_session.c.name, owners[1:limit])
        .where(_IS_LIVE, _session.c.name == one_of("names"), visibility.condition(_session))
        .group_by(_session.c.name)
    )
    readable = [name for name in names if "\0" not in name]
    rows = await tx.execute(query, {"names": readable, **visibility.parameters()})
    return {name: list(first) for name, first in rows}


async def pending_among(tx: AsyncSession, session_ids: Collection[uuid.UUID]) -> set[uuid.UUID]:
    """Returns those of the sessions that wait."""
    query = select(_session.c.id).where(_IS_ASKED, _session.c.state == word("PENDING"))
    rows = await tx.execute(query, {"ids": list(session_ids)})
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


_BY_ID = select(*columns_of(Session, SessionRecord)).where(_IS_ASKED).order_by(_session.c.id)
_VISIBLE = _BY_ID.where(_IS_VISIBLE)
_READ, _LOCKED = Construct(_BY_ID), Construct(_BY_ID.with_for_update())
_READ_VISIBLE, _LOCKED_VISIBLE = Construct(_VISIBLE), Construct(_VISIBLE.with_for_update())
_KERNELS = Construct(
    select(
        *(_kernel.c[name] for name in session_records.KERNEL_COLUMNS),
        _attempt.c.goal,
        _attempt.c.observed,
        or_(_attempt.c.kernel_id.is_(None), _attempt.c.end_time.is_not(None)).label("attempt_ended"),
        func.coalesce(_attempt.c.observed_end_time, _attempt.c.end_time).label("attempt_end_time"),
        _attempt.c.usage.label("attempt_usage"),
    )
    .outerjoin_from(_kernel, _attempt, and_(_attempt.c.kernel_id == _kernel.c.id, _attempt.c.epoch == _kernel.c.epoch))
    .where(_kernel.c.session_id == one_of("ids", Uuid()))
    .order_by(_kernel.c.session_id, _kernel.c.local_rank)
)


def reading(
    session_ids: Collection[uuid.UUID], *, lock: bool = False, visibility: Visibility | None = None
) -> Query[dict[uuid.UUID, SessionRecord]]:
    """Returns `read` as a query among others; with `visibility`, without the sessions that the caller may not read."""
    is_all = visibility is None or visibility.everything
    return Query(
        (_LOCKED if lock else _READ) if is_all else (_LOCKED_VISIBLE if lock else _READ_VISIBLE),
        {"ids": list(session_ids), **({} if visibility is None else visibility.parameters())},
        read=lambda rows: {row["id"]: session_records.session(row) for row in rows},
    )


def reading_kernels(session_ids: Collection[uuid.UUID]) -> Query[dict[uuid.UUID, list[KernelRecord]]]:
    """Returns `read_kernels` as a query among others."""
    return Query(_KERNELS, {"ids": list(session_ids)}, read=session_records.kernels_by_session)


_LISTED = columns_of(Session, SessionRecord)
# Details are not read for lists.
_LISTED = _LISTED[: [item.name for item in _LISTED].index("end_time") + 1]


def _ordered_by(table: FromClause) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
    return table.c.create_time, table.c.id


def _order(table: FromClause, *, newest_first: bool) -> list[ColumnElement[Any]]:
    return [item.desc() if newest_first else item.asc() for item in _ordered_by(table)]


@lru_cache(maxsize=256)
def _page(
    everything: bool, ended: bool, newest_first: bool, continues: bool, shape: tuple[tuple[str, str], ...]
) -> Select[*tuple[Any, ...]]:
    """A page of what a caller may read, of live sessions or of all; made once for each kind of question."""
    page = select(*_LISTED, _session.c.spec_bytes, _session.c.cluster_size).where(*_comparisons(shape))
    if not everything:
        page = page.where(_IS_VISIBLE)
    if not ended:
        page = page.where(_IS_LIVE)
    if continues:
        names = ("after_time", "after_id")
        place = tuple_(*_ordered_by(_session))
        last = tuple_(*(parameter(name, item.type) for name, item in zip(names, _ordered_by(_session), strict=True)))
        page = page.where(place < last if newest_first else place > last)
    limited = page.limit(parameter("rows", Integer()))
    one = limited.order_by(*_order(_session, newest_first=newest_first)).subquery("one")
    size = one.c.spec_bytes + _KERNEL_BYTES * one.c.cluster_size
    counted = select(
        *one.c,
        func.count().over().label("found"),
        size.label("size"),
        func.sum(size).over(order_by=_order(one, newest_first=newest_first), rows=(None, 0)).label("bytes"),
    ).subquery("counted")
    return (
        select(*(counted.c[item.name] for item in _LISTED), counted.c.found)
        .where(or_(counted.c.bytes <= parameter("most", BigInteger()), counted.c.bytes == counted.c.size))
        .order_by(*_order(counted, newest_first=newest_first))
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
    shape = tuple((field, operator) for field, operator, _ in terms)
    query = _page(visibility.everything, ended, newest_first, after is not None, shape)
    place = {} if after is None else {"after_time": after[0], "after_id": after[1]}
    most = _FULL_PAGE_BYTES if full else _PAGE_BYTES
    given = {**visibility.parameters(), **_values(terms), **place, "rows": limit, "most": most}
    found = await tx.execute(query, given)
    rows = fetched(found)
    return await in_slices(rows, session_records.listed_session), rows[0]["found"] if rows else 0


def _comparisons(shape: Iterable[tuple[str, str]]) -> list[ColumnElement[bool]]:
    """Returns the conditions of terms, (field, operator), on the parameters of `_values`."""
    conditions = []
    for position, (field, operator) in enumerate(shape):
        differs, name = operator == "!=", f"value{position}"
        if field == "number":
            # It is never NULL, and an index serves plain comparisons only.
            number = parameter(name, BigInteger())
            conditions.append(_session.c.number != number if differs else _session.c.number == number)
            continue
        label = field.removeprefix("labels.")
        compared = cast(_session.c[field], Text) if label == field else value_of(_session.c.labels, literal(label))
        value = parameter(name, Text())
        conditions.append(compared.is_distinct_from(value) if differs else compared.is_not_distinct_from(value))
    return conditions


def _values(terms: Iterable[tuple[str, str, str]]) -> dict[str, str]:
    return {f"value{position}": value for position, (_, _, value) in enumerate(terms)}


async def matching(
    tx: AsyncSession, terms: Sequence[tuple[str, str, str]], session_ids: Iterable[uuid.UUID]
) -> set[uuid.UUID]:
    """Returns those of some sessions that are there and match; `terms` are as in `list_page`."""
    compared = _comparisons((field, operator) for field, operator, _ in terms)
    query = select(_session.c.id).where(_IS_ASKED, *compared)
    found = await tx.execute(query, {"ids": list(session_ids), **_values(terms)})
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


def _making_updated_sessions() -> Construct:
    """Sessions that moved, with all that follows from their new states."""
    columns = _session.c
    of = {name: columns[name].type for name in _MOVED if name != "delay"}
    r = objects("r", "rows", **of, delay=Float())
    waits, runs, ends = (r.c.state == word(state) for state in ("PENDING", "RUNNING", "CANCELLED"))
    is_over = r.c.state.in_(words("TERMINATED", "CANCELLED"))
    begin = func.coalesce(columns.start_time, func.now())
    oom = cast(literal_column(f"'$[*] ? (@.type == \"{ConditionType.OOM_KILLED}\")'"), JSONPATH)
    return Construct(
        update(_session)
        .where(columns.id == r.c.id)
        .values(
            state=r.c.state,
            result=r.c.result,
            exit_code=r.c.exit_code,
            reason=r.c.reason,
            message=r.c.message,
            failed_starts=r.c.failed_starts,
            retries=r.c.retries,
            failed_agents=r.c.failed_agents,
            force=or_(columns.force, r.c.force),
            version=columns.version + literal_column("1"),
            state_time=case((r.c.state != columns.state, func.now()), else_=columns.state_time),
            start_time=case((runs, begin), (waits, null()), else_=columns.start_time),
            expire_time=case((runs, begin + span(columns.time_limit_seconds))),
            end_time=case((is_over, func.now())),
            last_failure=case(
                (r.c.delay.is_not(None), r.c.reason + literal_column("': '", Text()) + r.c.message),
                else_=columns.last_failure,
            ),
            network=case((waits, word("")), else_=columns.network),
            nomination=case((waits, columns.nomination), else_=EMPTY_OBJECT),
            explanation=case((waits, columns.explanation), else_=EMPTY_OBJECT),
            conditions=case(
                (or_(ends, waits), EMPTY_LIST),
                (r.c.state == word("TERMINATED"), func.jsonb_path_query_array(columns.conditions, oom)),
                else_=columns.conditions,
            ),
            next_try_time=case((r.c.delay.is_(None), columns.next_try_time), else_=func.now() + span(r.c.delay)),
        )
    )


def _making_updated_kernels() -> Construct:
    columns = _kernel.c
    r = objects(
        "r",
        "rows",
        **{name: columns[name].type for name in ("id", "state", "agent_id", "exit_code", "reason", "pull")},
        image=JSONB(),
    )
    waits, pulls = r.c.state == word("PENDING"), r.c.state == word("PULLING")
    return Construct(
        update(_kernel)
        .where(columns.id == r.c.id)
        .values(
            state=r.c.state,
            agent_id=r.c.agent_id,
            exit_code=r.c.exit_code,
            reason=r.c.reason,
            address=case((waits, word("")), else_=columns.address),
            image_digest=value_of(r.c.image, literal_column("'digest'")),
            image_id=value_of(r.c.image, literal_column("'id'")),
            service_ports=r.c.image[literal_column("'service_ports'", Text())],
            pull=case((pulls, func.coalesce(r.c.pull, columns.pull)), else_=EMPTY_OBJECT),
        )
    )


_MOVED = [field.name for field in fields(SessionUpdate)]
_UPDATED_SESSIONS, _UPDATED_KERNELS = _making_updated_sessions(), _making_updated_kernels()


def update_statements(
    sessions: Iterable[SessionUpdate], kernels: Iterable[KernelUpdate]
) -> tuple[Statement, Statement]:
    """Returns the statements that update sessions and kernels which moved."""
    return (
        Statement(_UPDATED_SESSIONS, {"rows": recordset(sessions)}),
        Statement(_UPDATED_KERNELS, {"rows": recordset(kernels)}),
    )


def _making_changed() -> Construct:
    columns, holds = _session.c, parameter("holds", Boolean())
    changeable = cast(parameter("changeable", ARRAY(Text)), ARRAY(Text))
    return Construct(
        update(_session)
        .where(columns.id == parameter("changed_id", Uuid()))
        .values(
            name=parameter("new_name", Text()),
            priority=parameter("new_priority", Integer()),
            hold=holds,
            spec=columns.spec.op("-")(changeable).op("||")(json_parameter("members")),
            nomination=case((holds, EMPTY_OBJECT), else_=columns.nomination),
            state_time=case((and_(columns.hold, not_(holds)), func.now()), else_=columns.state_time),
            version=columns.version + literal_column("1"),
        )
    )


_CHANGED = _making_changed()


async def change(tx: Transaction, session_id: uuid.UUID, spec: SessionSpec) -> None:
    """Gives a locked session the name, priority and hold of a changed spec; one that is released begins to wait.
    Raises NameTaken, and then the transaction has failed.
    """
    # All else in the document stays: a newer manager may have written members that are not known here.
    changed = {name: value for name, value in encode(spec).items() if name in _CHANGEABLE}
    try:
        await tx.pipeline(
            Statement(
                _CHANGED,
                {
                    "changed_id": session_id,
                    "new_name": spec.name,
                    "new_priority": spec.priority,
                    "holds": spec.hold,
                    "changeable": list(_CHANGEABLE),
                    "members": json_text(changed),
                },
            )
        )
    except psycopg.errors.UniqueViolation as error:
        raise NameTaken("session", spec.name) from error


_PULLED = Construct(update(_session).where(_IS_ASKED).values(pull_time=func.now()))
_of = objects("r", "rows", id=Uuid(), conditions=JSONB())
_CONDITIONS = Construct(
    update(_session)
    .where(_session.c.id == _of.c.id)
    .values(conditions=_of.c.conditions, version=_session.c.version + literal_column("1"))
)


def pull_statement(session_ids: Collection[uuid.UUID]) -> Statement:
    """Records that image pulls of these sessions progressed."""
    return Statement(_PULLED, {"ids": list(session_ids)})


async def set_conditions(
    tx: AsyncSession, session_ids: Iterable[uuid.UUID], conditions: Iterable[Sequence[object]]
) -> None:
    """Replaces the conditions of sessions; each is a Condition, or as it is stored."""
    await run(tx, condition_statement(dict(zip(session_ids, conditions, strict=True))))


def condition_statement(conditions: Mapping[uuid.UUID, Sequence[object]]) -> Statement:
    """Returns the statement that replaces the conditions of sessions; each is a Condition, or as it is stored."""
    return Statement(_CONDITIONS, {"rows": recordset({"id": id_, "conditions": of} for id_, of in conditions.items())})


async def queue_length(tx: AsyncSession, group: str) -> int:
    """Returns the number of sessions that wait in a group."""
    query = select(func.count()).where(_session.c.state == word("PENDING"), _session.c.resource_group == group)
    number = await tx.execute(query)
    return int(number.scalar_one())
