"""The live end of the journal, kept at hand for any number of followers."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

import psycopg

from retinue.manager.domain.errors import ReaderTooSlow, RevisionCompacted, RevisionInFuture, RevisionLost
from retinue.manager.store.journal.journal import Event, head, read
from retinue.manager.store.postgres.database import Database, StoreUnavailable
from retinue.manager.store.postgres.dedicated import execute, is_readable, take_notices
from retinue.manager.store.postgres.repeats import Repeats
from retinue.manager.store.postgres.writes import QUIET_SECONDS
from retinue.rpc import failpoints
from retinue.rpc.cancellation import UnrequestedCancellationError, cancellable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

_log = logging.getLogger(__name__)

_CHANNEL = "retinue_journal"
_LONGEST_RETRY_SECONDS = 5.0
_SILENCE_SECONDS = 10.0
# Followers get events in portions of at most this many.
PORTION = 100


class JournalTail:
    """The live end of the journal in this process: one reader of the database, any number of followers.

    Events of this process come with its commits, or are looked for after them; those of other replicas when they say so
    (NOTIFY), and `poll_seconds` after the last look in any case, if anyone may have written: a lost wake-up costs that
    much latency and nothing else.
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
        self._incarnation = ""
        self._grown = asyncio.Event()
        self._look = asyncio.Event()
        self._notified = asyncio.Event()
        self._notifier: int | None = None
        self._on_wake: Callable[[], None] | None = None
        # By the monotonic clock: when what was read since was all that there was, and the number of writes by then.
        self._whole_at = time.monotonic()
        self._seen = database.writes.number
        database.listen(self._take)

    def _take(self, events: Sequence[Event]) -> None:
        """This process has committed these events, or, if there are none, others. What follows on the last known one
        need not be read back; else it is looked for.

        Large portions are read back too: page by page, so that followers get through them before they leave the ring.
        """
        follows = bool(events) and self._last is not None and events[0].revision == self._last + 1
        if follows and len(events) <= self._capacity // 4:
            self._add(events)
        else:
            self._look.set()

    def lag(self) -> float:
        """Returns for how many seconds events may be missing here: a second or so at rest. Any thread may ask."""
        passed = time.monotonic() - self._whole_at
        return min(passed, self._poll_seconds) if self._database.writes.knows_none_since(self._seen) else passed

    def wake(self) -> None:
        """Notes that this process has committed to the journal, or what else a leader acts on. Never blocks; other
        replicas are notified, many commits at a time.
        """
        self.notify()
        self._pass_on()

    def notify(self) -> None:
        """As `wake`, when this process's own leader knows already."""
        self._notified.set()

    def on_wake(self, function: Callable[[], None] | None) -> None:
        """Sets what is called when this process or another replica says that it has committed something;
        None for nothing.
        """
        self._on_wake = function

    def _pass_on(self) -> None:
        self._database.writes.note()
        if self._on_wake is not None:
            self._on_wake()

    @property
    def incarnation(self) -> str:
        """Of the database, as last read; empty before the first time."""
        return self._incarnation

    async def newest(self) -> int:
        """The newest revision in the database. Raises StoreUnavailable."""
        async with self._database.transaction() as tx:
            found = await head(tx)
        # Another incarnation is for the reader to find: it drops what belongs to the former one.
        self._incarnation = self._incarnation or found.incarnation
        return found.revision

    async def run(self) -> None:
        """Keeps up with the database until cancelled; outages are waited out."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._through_outages("reading", self._read_on), name="journal reader")
            group.create_task(self._through_outages("listening", self._listen), name="journal listener")
            group.create_task(self._through_outages("notifying", self._notify_others), name="journal notifier")

    async def follow(self, after: int) -> AsyncGenerator[Sequence[Event]]:
        """All events after a revision, in order, each once, in portions of at most 100; waits for more until closed.

        Old events come from the database page by page, at the follower's own pace. One that has reached the live end
        is expected to stay within the ring. Raises RevisionCompacted, RevisionInFuture, RevisionLost, ReaderTooSlow,
        StoreUnavailable.
        """
        cursor, live, incarnation = after, False, self._incarnation
        if self._last is None or cursor > self._last:
            # The reader may not have seen yet what the caller has.
            newest = await self.newest()
            if cursor > newest:
                raise RevisionInFuture(newest)
        while True:
            grown = self._grown
            last = self._last
            incarnation = incarnation or self._incarnation
            if incarnation != self._incarnation:
                raise RevisionLost(self._incarnation)
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
                    events = (await read(tx, cursor, PORTION, incarnation=incarnation)).events
            if events:
                cursor = events[-1].revision
                yield events

    async def _through_outages(self, doing: str, part: Callable[[], Any]) -> None:
        pause, repeats = 0.1, Repeats()
        while True:
            began = asyncio.get_running_loop().time()
            try:
                await cancellable(part)
            except (StoreUnavailable, psycopg.Error, OSError, UnrequestedCancellationError) as error:
                if repeats.is_due(str(error), asyncio.get_running_loop().time()):
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
            began, seen = time.monotonic(), self._database.writes.number
            while await self._read_page():
                began, seen = time.monotonic(), self._database.writes.number
            self._whole_at, self._seen = began, seen
            await self._database.writes.rest(
                self._look, seen, self._poll_seconds, max(self._poll_seconds, QUIET_SECONDS)
            )

    async def _read_page(self) -> bool:
        """Takes in what follows the last known event; returns whether there may be more."""
        async with self._database.transaction() as tx:
            if self._last is None:
                found = await head(tx)
                self._last = max(found.oldest, found.revision - self._page)
                self._incarnation = found.incarnation
            try:
                page = await read(tx, self._last, self._page, incarnation=self._incarnation)
            except (RevisionCompacted, RevisionInFuture, RevisionLost):
                # This process was cut off for long, or the database was restored: begin again at the end.
                found = await head(tx)
                self._ring, self._last, self._incarnation = [], found.revision, found.incarnation
                self._announce()
                return True
        # Some may have come from this process meanwhile.
        last = self._last
        fresh = [event for event in page.events if event.revision > last]
        if fresh:
            self._add(fresh)
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

    @failpoints.awaited("store.journal", psycopg.OperationalError)
    async def _listen(self) -> None:
        connection = await self._database.connect("journal-listener")
        try:
            await execute(connection, f"LISTEN {_CHANNEL}")
            self._look.set()
            while True:
                notices = await take_notices(connection)
                if any(notice.pid != self._notifier for notice in notices):
                    self._look.set()
                    self._pass_on()
                if not notices and not await is_readable(connection, _SILENCE_SECONDS):
                    # Nothing was said for a while: is the other end still there?
                    await execute(connection, "SELECT 1")
        finally:
            await connection.close()

    @failpoints.awaited("store.journal", psycopg.OperationalError)
    async def _notify_others(self) -> None:
        connection = await self._database.connect("journal-notifier")
        try:
            cursor = await execute(connection, "SELECT pg_backend_pid()")
            # A pooler tells another number at the login.
            ((self._notifier,),) = await cursor.fetchall()
            while True:
                await self._notified.wait()
                await asyncio.sleep(self._coalesce_seconds)
                self._notified.clear()
                await execute(connection, f"NOTIFY {_CHANNEL}")
        finally:
            self._notifier = None
            await connection.close()
