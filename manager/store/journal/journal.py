"""The journal: what happened, numbered without gaps in the order of the commits.

Numbers come from one row that every appending transaction holds to the end of its commit. So a reader that sees
revision n sees everything up to n, and a watcher that resumes after n misses nothing. Append last in a transaction:
the row is every writer's.
"""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import BigInteger, Integer, Select, Text, Uuid, cast, delete, func, or_, select, true, update

from retinue.manager.domain.endpoints.events import (
    ENDPOINT_KINDS,
    ENDPOINT_PREFIX,
    EndpointEventBody,
    parse_endpoint_event,
)
from retinue.manager.domain.errors import RevisionCompacted, RevisionInFuture, RevisionLost
from retinue.manager.domain.session.events import (
    KINDS,
    EventBody,
    KernelAccess,
    SessionCreated,
    UnreadableEvent,
    parse_event,
    stored_creation,
)
from retinue.manager.domain.session.spec_codec import Encoder
from retinue.manager.store.postgres.constructs import Construct, json_of, one_of, parameter, table_of
from retinue.manager.store.postgres.database import APPENDED, Query, Transaction, fetch
from retinue.manager.store.postgres.recordset import Row, recordset
from retinue.manager.store.tables import Cluster, Journal, JournalHead, Session

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlmodel.ext.asyncio.session import AsyncSession

_KINDS: Mapping[type, str] = {**KINDS, **ENDPOINT_KINDS}


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that happened to a session, or to an endpoint by its id, to be recorded."""

    session_id: uuid.UUID
    owner: str
    project: str
    body: EventBody | EndpointEventBody


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a session, or to an endpoint by its id, as recorded."""

    revision: int
    create_time: dt.datetime
    session_id: uuid.UUID
    owner: str
    project: str
    body: EventBody | EndpointEventBody | UnreadableEvent


class Head(NamedTuple):
    """The newest revision, the oldest that reading may resume after,
    and the incarnation of the database that both count in.
    """

    revision: int
    oldest: int
    incarnation: str


@dataclass(frozen=True, slots=True)
class Page:
    """Events, and the journal's `newest` revision and the `oldest` to resume after,
    all in one snapshot of one incarnation.
    """

    events: tuple[Event, ...]
    newest: int
    oldest: int
    incarnation: str


async def append(tx: Transaction, entries: Sequence[Entry]) -> int:
    """Records entries with consecutive revisions; returns the first, or the next one when there are no entries."""
    if not entries:
        return (await head(tx)).revision + 1
    query = appending(entries)
    return appended(tx, entries, (await tx.pipeline(query)).of(query))


def append_ahead(tx: Transaction, entries: Sequence[Entry]) -> None:
    """Records entries as `append`, with the next statements of the transaction."""
    if entries:
        tx.ahead(appending(entries), then=partial(appended, tx, entries))


@dataclass(frozen=True, slots=True)
class Numbered:
    """Where the journal took entries in: the revision of the first, and the time."""

    first: int
    time: dt.datetime


def appending(entries: Sequence[Entry]) -> Query[Numbered]:
    """Returns `append` as a query among others, for `appended`."""
    return Query(
        """
            WITH counted AS (
                UPDATE journal_head SET revision = revision + :number WHERE id = 1
                RETURNING revision - :number AS before, clock_timestamp() AS at
            ), recorded AS (
                INSERT INTO journal (revision, create_time, session_id, owner, project, kind, payload)
                SELECT before + position, at, session_id, owner, project, kind, payload
                FROM counted, ROWS FROM (jsonb_to_recordset(CAST(:rows AS jsonb)) AS (session_id uuid, owner text, project text, kind text,
                    payload jsonb)) WITH ORDINALITY AS entry(session_id, owner, project, kind, payload, position)
            )
            SELECT before + 1 AS first, at FROM counted
        """,
        {"number": len(entries), "rows": _rows(entries)},
        read=_numbered,
    )


def appending_made(entries: Sequence[Entry]) -> Query[Numbered]:
    """Does as `appending`, for those entries whose session is there by then."""
    return Query(
        """
            WITH entry AS MATERIALIZED (
                SELECT *, row_number() OVER (ORDER BY position) AS number
                FROM ROWS FROM (jsonb_to_recordset(CAST(:rows AS jsonb)) AS (session_id uuid, owner text, project text, kind text,
                    payload jsonb)) WITH ORDINALITY AS r(session_id, owner, project, kind, payload, position)
                WHERE EXISTS (SELECT FROM session WHERE session.id = r.session_id)
            ), counted AS (
                UPDATE journal_head SET revision = revision + (SELECT count(*) FROM entry) WHERE id = 1
                RETURNING revision - (SELECT count(*) FROM entry) AS before, clock_timestamp() AS at
            ), recorded AS (
                INSERT INTO journal (revision, create_time, session_id, owner, project, kind, payload)
                SELECT before + number, at, session_id, owner, project, kind, payload FROM counted, entry
            )
            SELECT before + 1 AS first, at FROM counted
        """,
        {"rows": _rows(entries)},
        read=_numbered,
    )


def _numbered(rows: Sequence[Row]) -> Numbered:
    return Numbered(rows[0]["first"], rows[0]["at"])


def appended(tx: AsyncSession, entries: Sequence[Entry], numbered: Numbered) -> int:
    """Passes entries that were appended to the tail, once they are committed; returns the first revision."""
    tx.info.setdefault(APPENDED, []).extend(
        Event(numbered.first + number, numbered.time, entry.session_id, entry.owner, entry.project, entry.body)
        for number, entry in enumerate(entries)
    )
    return numbered.first


def _rows(entries: Sequence[Entry]) -> str:
    encoder = Encoder()
    return recordset(
        {
            "session_id": entry.session_id,
            "owner": entry.owner,
            "project": entry.project,
            "kind": _KINDS[type(entry.body)],
            "payload": stored_creation(entry.body, encoder) if isinstance(entry.body, SessionCreated) else entry.body,
        }
        for entry in entries
    )


def appended_unseen(tx: AsyncSession) -> None:
    """Says that a transaction appended, last of all, entries that only the database has seen:
    the tail reads them after the commit.
    """
    tx.info[APPENDED] = ()


async def head(tx: AsyncSession) -> Head:
    """Returns where the journal ends and begins."""
    return await fetch(tx, heading())


_cluster, _journal, _head_row = table_of(Cluster), table_of(Journal), table_of(JournalHead)
_session = table_of(Session)
_HEAD = Construct(
    select(_head_row.c.revision, _head_row.c.oldest, _cluster.c.incarnation)
    .join_from(_head_row, _cluster, true())
    .where(_head_row.c.id == 1)
)


def heading() -> Query[Head]:
    """Returns `head` as a query among others: those after it find at least all that the journal says up to there."""
    return Query(_HEAD, read=_head)


def _head(rows: Sequence[Row]) -> Head:
    return Head(rows[0]["revision"], rows[0]["oldest"], str(rows[0]["incarnation"]))


@cache
def _page(of_session: bool, of_reader: bool) -> Select[*tuple[Any, ...]]:
    """The journal's ends with entries after one: all, those of a session, those that one may read."""
    columns = ("revision", "create_time", "session_id", "owner", "project", "kind")
    query = (
        select(*(_journal.c[name] for name in columns), cast(_journal.c.payload, Text).label("payload"))
        .where(_journal.c.revision > parameter("after", BigInteger()))
        .order_by(_journal.c.revision)
        .limit(parameter("most", Integer()))
    )
    if of_session:
        query = query.where(_journal.c.session_id == parameter("session", Uuid()))
    if of_reader:
        is_own = _journal.c.owner == parameter("reader", Text())
        query = query.where(or_(is_own, _journal.c.project == one_of("projects")))
    page = query.lateral("page")
    return (
        select(_head_row.c.revision.label("newest"), _head_row.c.oldest, _cluster.c.incarnation, *page.c)
        .join_from(_head_row, _cluster, true())
        .outerjoin(page, true())
        .where(_head_row.c.id == 1)
        .order_by(page.c.revision)
    )


async def read(  # what is read, and by whom
    tx: AsyncSession,
    after: int,
    limit: int,
    *,
    session_id: uuid.UUID | None = None,
    owner: str | None = None,
    projects: Sequence[str] = (),
    incarnation: str = "",
) -> Page:
    """Up to `limit` events after a revision, in order.

    Of one session when `session_id` is given; when `owner` is given, only the owner's and those of `projects`.
    Raises RevisionCompacted and RevisionInFuture, and RevisionLost when it is not of `incarnation`,
    unless that is empty.
    """
    given = {
        "after": after,
        "most": limit,
        **({} if session_id is None else {"session": session_id}),
        **({} if owner is None else {"reader": owner, "projects": list(projects)}),
    }
    rows = await tx.execute(_page(session_id is not None, owner is not None), given)
    found = rows.all()
    newest, oldest, present = found[0].newest, found[0].oldest, str(found[0].incarnation)
    if incarnation not in {"", present}:
        raise RevisionLost(present)
    if after < oldest:
        raise RevisionCompacted(oldest)
    if after > newest:
        raise RevisionInFuture(newest)
    events = tuple(
        Event(row.revision, row.create_time, row.session_id, row.owner, row.project, _parse(row.kind, row.payload))
        for row in found
        if row.revision is not None
    )
    return Page(events, newest, oldest, present)


def _parse(kind: str, stored: str) -> EventBody | EndpointEventBody | UnreadableEvent:
    if not kind.startswith(ENDPOINT_PREFIX):
        return parse_event(kind, stored)
    return parse_endpoint_event(kind, stored) or UnreadableEvent(kind, "it is not as this version writes it")


async def compact(tx: AsyncSession, before: int) -> int:
    """Forgets everything up to and including a revision; returns how many entries went.

    Reading resumes after it or later. A revision beyond the newest counts as the newest.
    """
    kept = update(_head_row).where(_head_row.c.id == 1, _head_row.c.oldest < before)
    later = func.least(before, _head_row.c.revision)
    row = await tx.execute(kept.values(oldest=later).returning(_head_row.c.oldest))
    oldest = row.scalar_one_or_none()
    if oldest is None:
        return 0
    forgotten = delete(_journal).where(_journal.c.revision <= oldest).returning(_journal.c.revision).cte("gone")
    gone = await tx.execute(select(func.count()).select_from(forgotten))
    return int(gone.scalar_one())


async def append_access(tx: Transaction, session_id: uuid.UUID, access: KernelAccess, within: float | None) -> bool:
    """Appends an access to a session's kernels, unless the same one was appended in the last `within` seconds;
    returns whether it was.

    With None every one is appended. The session is there.
    """
    same = select(_journal.c.revision).where(
        _journal.c.session_id == session_id,
        _journal.c.kind == KINDS[KernelAccess],
        _journal.c.payload == json_of(access),
        _journal.c.create_time > func.clock_timestamp() - dt.timedelta(seconds=within or 0.0),
    )
    query = select(_session.c.owner, _session.c.project, same.exists()).where(_session.c.id == session_id)
    found = await tx.execute(query)
    owner, project, known = found.one()
    if known and within is not None:
        return False
    await append(tx, [Entry(session_id, owner, project, access)])
    return True
