"""The journal: what happened, numbered without gaps in the order of the commits, and its live end.

Numbers come from one row that every appending transaction holds to the end of its commit. So a reader that sees
revision n sees everything up to n, and a watcher that resumes after n misses nothing. Append last in a transaction:
the row is everybody's.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from sqlalchemy import text
from sqlmodel.ext.asyncio.session import AsyncSession

from manager.store.database import APPENDED, Database, Statement, StoreUnavailable, Transaction
from manager.store.recordset import Row, recordset

_log = logging.getLogger(__name__)

_CHANNEL = "retinue_journal"
_LONGEST_RETRY_SECONDS = 5.0
# Followers get events in portions of at most this many.
PORTION = 100


class RevisionCompacted(Exception):  # noqa: N818  # an answer to a reader, not a mistake
    """The journal no longer goes back that far; `oldest` is the lowest revision that reading may resume after."""

    def __init__(self, oldest: int) -> None:
        """`oldest` is for the reader."""
        super().__init__(f"the journal goes back to revision {oldest}")
        self.oldest = oldest


class RevisionInFuture(Exception):  # noqa: N818  # an answer to a reader, not a mistake
    """The journal has not got that far; `newest` is its last revision."""

    def __init__(self, newest: int) -> None:
        """`newest` is for the reader."""
        super().__init__(f"the journal ends at revision {newest}")
        self.newest = newest


class ReaderTooSlow(Exception):  # noqa: N818  # an answer to a reader, not a mistake
    """A follower fell out of what is kept at hand; `revision` is the last one it was given."""

    def __init__(self, revision: int) -> None:
        """`revision` is for the reader."""
        super().__init__(f"the reader fell behind after revision {revision}")
        self.revision = revision


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that happened to a session, to be recorded. `payload` is JSON and must hold no secret."""

    session_id: uuid.UUID
    owner: str
    project: str
    kind: str
    payload: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a session, as recorded."""

    revision: int
    create_time: dt.datetime
    session_id: uuid.UUID
    owner: str
    project: str
    kind: str
    payload: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Page:
    """Events, and the journal's `newest` revision and the `oldest` to resume after, all in one snapshot."""

    events: tuple[Event, ...]
    newest: int
    oldest: int


async def append(tx: Transaction, entries: Sequence[Entry]) -> int:
    """Records entries with consecutive revisions; returns the first, or the next one when there are no entries."""
    if not entries:
        newest, _ = await head(tx)
        return newest + 1
    (numbered,) = await tx.together(appending(entries))
    return appended(tx, entries, numbered)


def appending(entries: Sequence[Entry]) -> Statement:
    """`append` as a statement among others, for `appended`."""
    return Statement(
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
    )


def appending_made(entries: Sequence[Entry]) -> Statement:
    """As `appending`, of those entries whose session is there by then."""
    return Statement(
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
    )


def appended(tx: AsyncSession, entries: Sequence[Entry], numbered: Sequence[Row]) -> int:
    """Takes note of entries that were appended, by what the statement found; returns the first revision."""
    first, at = int(numbered[0]["first"]), numbered[0]["at"]
    tx.info.setdefault(APPENDED, []).extend(
        Event(first + number, at, entry.session_id, entry.owner, entry.project, entry.kind, entry.payload)
        for number, entry in enumerate(entries)
    )
    return first


def _rows(entries: Sequence[Entry]) -> str:
    return recordset(
        {
            "session_id": entry.session_id,
            "owner": entry.owner,
            "project": entry.project,
            "kind": entry.kind,
            "payload": entry.payload,
        }
        for entry in entries
    )


def appended_unseen(tx: AsyncSession) -> None:
    """Says that a transaction appended, last of all, entries that only the database has seen: the tail reads them after the commit."""
    tx.info[APPENDED] = ()


async def head(tx: AsyncSession) -> tuple[int, int]:
    """The newest revision, and the oldest that reading may resume after."""
    row = (await tx.execute(text("SELECT revision, oldest FROM journal_head WHERE id = 1"))).one()
    return row.revision, row.oldest


async def read(  # what is read, and by whom
    tx: AsyncSession,
    after: int,
    limit: int,
    *,
    session_id: uuid.UUID | None = None,
    owner: str | None = None,
    projects: Sequence[str] = (),
) -> Page:
    """Up to `limit` events after a revision, in order.

    Of one session when `session_id` is given; when `owner` is given, only the owner's and those of `projects`.
    Raises RevisionCompacted and RevisionInFuture.
    """
    rows = await tx.execute(
        text("""
            SELECT head.revision AS newest, head.oldest, page.* FROM journal_head head LEFT JOIN LATERAL (
                SELECT revision, create_time, session_id, owner, project, kind, payload FROM journal
                WHERE revision > :after AND (CAST(:session AS uuid) IS NULL OR session_id = :session)
                    AND (CAST(:owner AS text) IS NULL OR owner = :owner OR project = ANY(:projects))
                ORDER BY revision LIMIT :limit
            ) page ON TRUE
            WHERE head.id = 1 ORDER BY page.revision
        """),
        {"after": after, "limit": limit, "session": session_id, "owner": owner, "projects": list(projects)},
    )
    found = rows.all()
    newest, oldest = found[0].newest, found[0].oldest
    if after < oldest:
        raise RevisionCompacted(oldest)
    if after > newest:
        raise RevisionInFuture(newest)
    return Page(tuple(Event(*row[2:]) for row in found if row.revision is not None), newest, oldest)


async def compact(tx: AsyncSession, before: int) -> int:
    """Forgets everything up to and including a revision; returns how many entries went.

    Reading resumes after it or later. A revision beyond the newest counts as the newest.
    """
    row = await tx.execute(
        text(
            "UPDATE journal_head SET oldest = least(:before, revision) "
            "WHERE id = 1 AND oldest < :before RETURNING oldest"
        ),
        {"before": before},
    )
    oldest = row.scalar_one_or_none()
    if oldest is None:
        return 0
    gone = await tx.execute(
        text("WITH gone AS (DELETE FROM journal WHERE revision <= :oldest RETURNING 1) SELECT count(*) FROM gone"),
        {"oldest": oldest},
    )
    return int(gone.scalar_one())


class JournalTail:
    """The live end of the journal in this process: one reader of the database, any number of followers.

    Events of this process come with its commits, or are looked for after them; those of other replicas when they say so (NOTIFY), and
    every `poll_seconds` in any case: a lost wake-up costs that much latency and nothing else.
    """

    def __init__(
        self,
        database: Database,
        *,
        ring: int = 10_000,
        poll_seconds: float = 1.0,
        page: int = 500,
        coalesce_seconds: float = 0.02,
    ) -> None:
        """The newest `ring` events are kept at hand; the database is read `page` events at a time."""
        self._database = database
        self._capacity = ring
        self._poll_seconds = poll_seconds
        self._page = page
        self._coalesce_seconds = coalesce_seconds
        # Events of revisions first+1 … last, without gaps; before the first look at the database there is no last.
        self._ring: list[Event] = []
        self._last: int | None = None
        self._grown = asyncio.Event()
        self._look = asyncio.Event()
        self._tell = asyncio.Event()
        self._teller: int | None = None
        self._told: Callable[[], None] | None = None
        database.listen(self._take)

    def _take(self, events: Sequence[Event]) -> None:
        """This process has committed these events, or, if there are none, others. What follows on the last known one need not be read back; else
        it is looked for.

        Large portions are read back too: page by page, so that followers get through them before they leave the ring.
        """
        follows = bool(events) and self._last is not None and events[0].revision == self._last + 1
        if follows and len(events) <= self._capacity // 4:
            self._add(events)
        else:
            self._look.set()

    def wake(self) -> None:
        """This process has committed to the journal, or something else that a leader acts on. Never blocks; other replicas are told, many
        commits at a time.
        """
        self.tell()
        self._pass_on()

    def tell(self) -> None:
        """As `wake`, when this process's own leader knows already."""
        self._tell.set()

    def on_wake(self, told: Callable[[], None] | None) -> None:
        """What to call when this process or another replica says that it has committed something; None for nothing."""
        self._told = told

    def _pass_on(self) -> None:
        if self._told is not None:
            self._told()

    async def newest(self) -> int:
        """The newest revision in the database. Raises StoreUnavailable."""
        async with self._database.transaction() as tx:
            return (await head(tx))[0]

    async def run(self) -> None:
        """Keeps up with the database until cancelled; outages are waited out."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._through_outages("reading", self._read_on), name="journal reader")
            group.create_task(self._through_outages("listening", self._listen), name="journal listener")
            group.create_task(self._through_outages("telling", self._tell_others), name="journal teller")

    async def follow(self, after: int) -> AsyncGenerator[Sequence[Event]]:
        """All events after a revision, in order, each once, in portions of at most 100; waits for more until closed.

        Old events come from the database page by page, at the follower's own pace. One that has reached the live end
        is expected to stay within the ring. Raises RevisionCompacted, RevisionInFuture, ReaderTooSlow, StoreUnavailable.
        """
        cursor, live = after, False
        if self._last is None or cursor > self._last:
            # The reader may not have seen yet what the caller has.
            newest = await self.newest()
            if cursor > newest:
                raise RevisionInFuture(newest)
        while True:
            grown = self._grown
            last = self._last
            if last is None or cursor >= last:
                if live and last is not None and cursor > last:
                    # The database went back in time: it was restored from a backup.
                    raise RevisionInFuture(last)
                live = live or cursor == last
                await grown.wait()
                continue
            first = last - len(self._ring)
            if cursor >= first:
                live = True
                events: Sequence[Event] = self._ring[cursor - first : cursor - first + PORTION]
            elif live:
                raise ReaderTooSlow(cursor)
            else:
                async with self._database.transaction() as tx:
                    events = (await read(tx, cursor, PORTION)).events
            if events:
                cursor = events[-1].revision
                yield events

    async def _through_outages(self, doing: str, part: Callable[[], Any]) -> None:
        pause = 0.1
        while True:
            began = asyncio.get_running_loop().time()
            try:
                await part()
            except (StoreUnavailable, psycopg.Error, OSError) as error:
                _log.warning("%s the journal was interrupted: %s", doing, error)
            pause = (
                0.1
                if asyncio.get_running_loop().time() - began > _LONGEST_RETRY_SECONDS
                else min(2 * pause, _LONGEST_RETRY_SECONDS)
            )
            await asyncio.sleep(pause)

    async def _read_on(self) -> None:
        while True:
            self._look.clear()
            while await self._read_page():
                pass
            try:
                async with asyncio.timeout(self._poll_seconds):
                    await self._look.wait()
            except TimeoutError:
                continue

    async def _read_page(self) -> bool:
        """Takes in what follows the last known event; returns whether there may be more."""
        async with self._database.transaction() as tx:
            if self._last is None:
                newest, oldest = await head(tx)
                self._last = max(oldest, newest - self._page)
            try:
                page = await read(tx, self._last, self._page)
            except (RevisionCompacted, RevisionInFuture):
                # This process was cut off for long, or the database went back in time: begin anew at the end.
                newest, _ = await head(tx)
                self._ring, self._last = [], newest
                self._announce()
                return True
        # Some may have come from this process meanwhile.
        last = self._last
        news = [event for event in page.events if event.revision > last]
        if news:
            self._add(news)
        return self._last < page.newest

    def _add(self, events: Sequence[Event]) -> None:
        self._ring.extend(events)
        self._last = events[-1].revision
        # Trimmed by a quarter at a time: cutting the front of a list costs its length.
        if len(self._ring) > self._capacity + self._capacity // 4:
            del self._ring[: len(self._ring) - self._capacity]
        self._announce()

    def _announce(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()

    async def _listen(self) -> None:
        connection = await self._database.connect("journal-listener")
        try:
            await connection.execute(f"LISTEN {_CHANNEL}")
            self._look.set()
            while True:
                async for notice in connection.notifies(timeout=10.0):
                    if notice.pid != self._teller:
                        self._look.set()
                        self._pass_on()
                # Nothing was said for a while: is there still somebody at the other end?
                await connection.execute("SELECT 1")
        finally:
            await connection.close()

    async def _tell_others(self) -> None:
        connection = await self._database.connect("journal-teller")
        try:
            self._teller = connection.info.backend_pid
            while True:
                await self._tell.wait()
                await asyncio.sleep(self._coalesce_seconds)
                self._tell.clear()
                await connection.execute(f"NOTIFY {_CHANNEL}")
        finally:
            self._teller = None
            await connection.close()
