"""WatchSessions: the journal as its reader may see it, from a revision on."""

from __future__ import annotations

import asyncio
import datetime as dt
import uuid
from contextlib import aclosing
from typing import TYPE_CHECKING

from retinue.manager.api.sessions.event_convert import event_message
from retinue.manager.api.sessions.filters import session_terms
from retinue.manager.api.visibility import caller_visibility
from retinue.manager.domain import errors
from retinue.manager.domain.endpoints.events import ENDPOINT_PREFIX, EVENT_BODIES
from retinue.manager.domain.session.events import SessionMoved, UnreadableEvent
from retinue.manager.domain.session.states import ENDED_SESSION_STATES
from retinue.manager.server.fields import Violations
from retinue.manager.server.pages import fitting
from retinue.manager.store.journal import journal
from retinue.manager.store.journal.journal_tail import PORTION, JournalTail
from retinue.manager.store.sessions import listing, sessions
from retinue.manager.v1 import session_pb2
from retinue.manager.v1 import session_service_pb2 as pb
from retinue.manager.v1.journal_position_pb2 import JournalPosition

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence

    from retinue.manager.server.filters import Term
    from retinue.manager.store.postgres.database import Database

BOOKMARK_SECONDS = 10.0
_LONGEST_INTERVAL = dt.timedelta(seconds=1)
# Sessions whose match a stream remembers.
_MAX_KNOWN = 10_000


async def serve_watch(
    database: Database, tail: JournalTail, request: pb.WatchSessionsRequest
) -> AsyncGenerator[pb.WatchSessionsResponse, None]:
    """Serves one stream."""
    only = _session_id(request.session_id)
    if request.until_ended and only is None:
        raise errors.InvalidRequest([("until_ended", "needs session_id")])
    terms = session_terms(request.filter, fixed=True)
    if terms and only is not None:
        raise errors.InvalidRequest([("filter", "has no place beside session_id")])
    if request.after.revision < 0:
        raise errors.InvalidRequest([("after.revision", "must not be negative")])
    violations = Violations()
    interval = violations.duration("min_interval", request.min_interval, dt.timedelta(), _LONGEST_INTERVAL)
    violations.raise_any()
    visibility, matches = caller_visibility(), _Matches(database, terms)
    over = False
    async with database.transaction() as tx:
        newest, oldest, incarnation = await journal.head(tx)
        resumed = request.HasField("after")
        after = newest if not resumed else request.after.revision or oldest
        seen = None
        if only is not None:
            seen = (await sessions.read(tx, [only])).get(only)
            if seen is None or not visibility.can_read(seen.owner, seen.project):
                raise errors.NotFound("session", request.session_id)
        # Refuses a revision that is gone or not there yet before the stream begins. After the state: of a session that
        # ends between the two, the end is still to be sent.
        rest = await journal.read(tx, after, 1, session_id=only, incarnation=request.after.incarnation)
        over = seen is not None and seen.state in ENDED_SESSION_STATES and not rest.events
    yield pb.WatchSessionsResponse(position=JournalPosition(revision=after, incarnation=incarnation))
    if request.until_ended and over:
        return
    async with aclosing(portions(tail, after, only, interval.total_seconds())) as found:
        async for revision, events in found:
            visible = [
                event
                for event in events
                if not about_endpoint(event) and visibility.can_read(event.owner, event.project)
            ]
            if terms:
                visible = await matches.of(visible)
            position = JournalPosition(revision=revision, incarnation=incarnation)
            for response in split(position, [event_message(event) for event in visible]):
                yield response
            if request.until_ended and any(_ends_session(event) for event in visible):
                return


class _Matches:
    """Remembers which sessions match a filter; what it compares never changes."""

    def __init__(self, database: Database, terms: Sequence[Term]) -> None:
        self._database = database
        self._terms = terms
        self._known: dict[uuid.UUID, bool] = {}

    async def of(self, events: Sequence[journal.Event]) -> list[journal.Event]:
        """Returns the events of sessions that match."""
        unknown = {event.session_id for event in events} - self._known.keys()
        if unknown:
            if len(self._known) > _MAX_KNOWN:
                self._known.clear()
                unknown = {event.session_id for event in events}
            async with self._database.transaction() as tx:
                found = await listing.matching(tx, self._terms, unknown)
            self._known |= {session_id: session_id in found for session_id in unknown}
        return [event for event in events if self._known[event.session_id]]


def split(position: JournalPosition, events: Sequence[session_pb2.SessionEvent]) -> Iterator[pb.WatchSessionsResponse]:
    """Returns events up to a position as responses of bounded size, at least one; each says up to where it goes."""
    rest = list(events)
    while len(part := rest[: fitting(event.ByteSize() for event in rest)]) < len(rest):
        last = JournalPosition(revision=part[-1].revision, incarnation=position.incarnation)
        yield pb.WatchSessionsResponse(position=last, events=part)
        rest = rest[len(part) :]
    yield pb.WatchSessionsResponse(position=position, events=rest)


async def portions(
    tail: JournalTail, after: int, only: uuid.UUID | None, interval: float = 0.0
) -> AsyncGenerator[tuple[int, Sequence[journal.Event]], None]:
    """Portions of the journal, so many seconds apart unless they are full; without events it is a bookmark,
    after 10 s of silence at the latest.
    """
    revision, pause_first = after, 0.0
    following = tail.follow(after)

    async def next_portion(seconds: float) -> Sequence[journal.Event]:
        if seconds:
            # The journal collects meanwhile.
            await asyncio.sleep(seconds)
        return await anext(following)

    upcoming: asyncio.Future[Sequence[journal.Event]] | None = None
    silent_since = asyncio.get_running_loop().time()
    try:
        while True:
            upcoming = upcoming or asyncio.ensure_future(next_portion(pause_first))
            pause = max(0.0, silent_since + BOOKMARK_SECONDS - asyncio.get_running_loop().time())
            await asyncio.wait((upcoming,), timeout=pause)
            events: Sequence[journal.Event] = ()
            if upcoming.done():
                portion, upcoming = upcoming.result(), None
                revision = portion[-1].revision
                pause_first = 0.0 if len(portion) >= PORTION else interval
                events = [event for event in portion if only is None or event.session_id == only]
            if events or asyncio.get_running_loop().time() - silent_since >= BOOKMARK_SECONDS:
                silent_since = asyncio.get_running_loop().time()
                yield revision, events
    finally:
        if upcoming is not None:
            upcoming.cancel()
            await asyncio.gather(upcoming, return_exceptions=True)
        await following.aclose()


def _session_id(text: str) -> uuid.UUID | None:
    if not text:
        return None
    try:
        return uuid.UUID(text)
    except ValueError:
        raise errors.InvalidRequest([("session_id", "must be a UUID")]) from None


def about_endpoint(event: journal.Event) -> bool:
    """Returns whether an entry is about an endpoint, whether or not it can be read."""
    if isinstance(event.body, UnreadableEvent):
        return event.body.kind.startswith(ENDPOINT_PREFIX)
    return isinstance(event.body, EVENT_BODIES)


def _ends_session(event: journal.Event) -> bool:
    return isinstance(event.body, SessionMoved) and event.body.to_state in ENDED_SESSION_STATES
