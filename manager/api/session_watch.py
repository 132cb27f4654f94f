"""WatchSessions: the journal as its reader may see it, from a revision on."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from manager.api import errors
from manager.api.session_convert import event_message
from manager.api.sight import sight
from manager.lifecycle.states import ENDED_SESSION_STATES
from manager.store import journal, sessions
from manager.store.database import Database
from manager.store.journal import JournalTail
from retinue.manager.v1 import session_service_pb2 as pb

BOOKMARK_SECONDS = 10.0


async def serve_watch(
    database: Database, tail: JournalTail, request: pb.WatchSessionsRequest
) -> AsyncGenerator[pb.WatchSessionsResponse, None]:
    """Serves one stream."""
    only = _session_id(request.session_id)
    if request.until_ended and only is None:
        raise errors.InvalidRequest([("until_ended", "needs session_id")])
    if request.after_revision < 0:
        raise errors.InvalidRequest([("after_revision", "must not be negative")])
    seeing = sight()
    over = False
    async with database.transaction() as tx:
        newest, oldest = await journal.head(tx)
        after = newest if not request.HasField("after_revision") else request.after_revision or oldest
        # Refuses a revision that is gone or not there yet before the stream begins.
        rest = await journal.read(tx, after, 1, session_id=only)
        if only is not None:
            seen = (await sessions.read(tx, [only])).get(only)
            if seen is None or not seeing.sees(seen["owner"], seen["project"]):
                raise errors.NotFound("session", request.session_id)
            over = seen["state"] in ENDED_SESSION_STATES and not rest.events
    yield pb.WatchSessionsResponse(revision=after)
    if request.until_ended and over:
        return
    async with aclosing(_portions(tail, after, only)) as portions:
        async for revision, events in portions:
            visible = [event for event in events if seeing.sees(event.owner, event.project)]
            yield pb.WatchSessionsResponse(revision=revision, events=[event_message(event) for event in visible])
            if request.until_ended and any(_ends_session(event) for event in visible):
                return


async def _portions(
    tail: JournalTail, after: int, only: uuid.UUID | None
) -> AsyncGenerator[tuple[int, Sequence[journal.Event]], None]:
    """Portions of the journal; without events it is a bookmark, after 10 s of silence at the latest."""
    revision = after
    following = tail.follow(after)
    upcoming: asyncio.Future[Sequence[journal.Event]] | None = None
    silent_since = asyncio.get_running_loop().time()
    try:
        while True:
            upcoming = upcoming or asyncio.ensure_future(anext(following))
            pause = max(0.0, silent_since + BOOKMARK_SECONDS - asyncio.get_running_loop().time())
            await asyncio.wait((upcoming,), timeout=pause)
            events: Sequence[journal.Event] = ()
            if upcoming.done():
                portion, upcoming = upcoming.result(), None
                revision = portion[-1].revision
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


def _ends_session(event: journal.Event) -> bool:
    return event.kind == "SESSION_MOVED" and event.payload["to"] in ENDED_SESSION_STATES
