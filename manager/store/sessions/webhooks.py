"""Webhooks, the deliveries that are due, and how far the journal was read for them."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import text
from sqlmodel.ext.asyncio.session import AsyncSession

from retinue.manager.domain.session.events import Happening, UnreadableEvent, parse_event
from retinue.manager.store.postgres.recordset import fetched, recordset


async def insert(tx: AsyncSession, rows: Iterable[tuple[uuid.UUID, int, str, list[str], bytes]]) -> None:
    """Writes webhooks of new sessions: (session, place among its webhooks, url, events, sealed secret)."""
    for session_id, position, url, events, secret in rows:
        await tx.execute(
            text("""
                INSERT INTO webhook (session_id, position, url, events, secret) VALUES (:id, :position, :url, CAST(:events AS jsonb), :secret)
            """),
            {"id": session_id, "position": position, "url": url, "events": recordset(events), "secret": secret},
        )


@dataclass(frozen=True, slots=True)
class Delivery:
    """A request that is due: an event of a session for the webhook at a position among its webhooks,
    with the secret as it is kept.
    """

    session_id: uuid.UUID
    position: int
    revision: int
    event: str
    body: str
    tries: int
    url: str
    secret: bytes


@dataclass(frozen=True, slots=True)
class NewDelivery:
    """A request that is to be sent: an event of a session for the webhook at a position among its webhooks."""

    session_id: uuid.UUID
    position: int
    revision: int
    event: str
    body: str


@dataclass(frozen=True, slots=True)
class WebhookEventRecord:
    """An entry of the journal about a session, for the webhook at a position among its webhooks,
    which asks for `events`.

    `events` stay as they are stored: another version of the manager may have written them.
    """

    what: Happening | UnreadableEvent
    revision: int
    create_time: dt.datetime
    session_id: uuid.UUID
    owner: str
    project: str
    name: str
    position: int
    events: Sequence[str]


async def read_cursor(tx: AsyncSession) -> tuple[int, int]:
    """The revision that the journal was gone through to, and the newest."""
    row = await tx.execute(text("SELECT c.revision, h.revision FROM webhook_cursor c, journal_head h"))
    cursor, newest = row.one()
    return cursor, newest


async def read_events(tx: AsyncSession, after: int, upto: int) -> list[WebhookEventRecord]:
    """Returns the entries of the journal about sessions with webhooks, once for each of these."""
    found = await tx.execute(
        text("""
            SELECT j.kind, j.payload::text, j.revision, j.create_time, j.session_id, j.owner, j.project, s.name, w.position, w.events
            FROM journal j JOIN webhook w ON w.session_id = j.session_id JOIN session s ON s.id = j.session_id
            WHERE j.revision > :after AND j.revision <= :upto ORDER BY j.revision, w.position
        """),
        {"after": after, "upto": upto},
    )
    return [WebhookEventRecord(parse_event(kind, payload), *values) for kind, payload, *values in found]


async def add(tx: AsyncSession, upto: int, deliveries: Iterable[NewDelivery]) -> None:
    """Writes what is to be sent; the journal was read up to `upto`."""
    await tx.execute(
        text("""
            INSERT INTO webhook_delivery (session_id, position, revision, event, body, tries, next_try_time)
            SELECT session_id, position, revision, event, body, 0, now() FROM jsonb_to_recordset(CAST(:rows AS jsonb))
                AS r(session_id uuid, position int, revision bigint, event text, body text)
            ON CONFLICT DO NOTHING
        """),
        {"rows": recordset(deliveries)},
    )
    await tx.execute(text("UPDATE webhook_cursor SET revision = greatest(revision, :upto)"), {"upto": upto})
    await drop_finished(tx)


async def read_due(tx: AsyncSession, limit: int, each: int) -> list[Delivery]:
    """Returns what is due: of each webhook the oldest only, so that it is sent in order,
    and at most `each` of one owner, in turns.
    """
    found = await tx.execute(
        text("""
            SELECT session_id, position, revision, event, body, tries, url, secret FROM (
                SELECT first.*, w.url, w.secret, row_number() OVER (PARTITION BY s.owner ORDER BY first.next_try_time, first.revision) AS turn
                FROM (
                    SELECT DISTINCT ON (session_id, position) session_id, position, revision, event, body, tries, next_try_time
                    FROM webhook_delivery ORDER BY session_id, position, revision
                ) first JOIN webhook w USING (session_id, position) JOIN session s ON s.id = first.session_id
                WHERE first.next_try_time <= now()
            ) due WHERE turn <= :each ORDER BY turn, next_try_time LIMIT :limit
        """),
        {"limit": limit, "each": each},
    )
    return [Delivery(**row) for row in fetched(found)]


async def anything_left(tx: AsyncSession) -> bool:
    """Returns whether anything is still to be sent, now or later."""
    return bool((await tx.execute(text("SELECT EXISTS (SELECT FROM webhook_delivery)"))).scalar_one())


async def settle(tx: AsyncSession, delivery: Delivery, retry_seconds: float | None) -> None:
    """Removes a delivery that was sent or is given up; with `retry_seconds`, it is tried again after that."""
    key = {"id": delivery.session_id, "position": delivery.position, "revision": delivery.revision}
    where = "WHERE session_id = :id AND position = :position AND revision = :revision"
    if retry_seconds is None:
        await tx.execute(text(f"DELETE FROM webhook_delivery {where}"), key)  # noqa: S608  # ours
        await drop_finished(tx)
    else:
        await tx.execute(
            text(
                f"UPDATE webhook_delivery SET tries = tries + 1, next_try_time = now() + make_interval(secs => :pause) {where}"  # noqa: S608
            ),
            {**key, "pause": retry_seconds},
        )


async def drop_finished(tx: AsyncSession) -> None:
    """Removes the webhooks, with their secrets, of sessions that have ended and of which everything was sent."""
    await tx.execute(
        text("""
            DELETE FROM webhook w USING session s
            WHERE s.id = w.session_id AND s.state IN ('TERMINATED', 'CANCELLED')
              AND NOT EXISTS (SELECT FROM webhook_delivery d WHERE d.session_id = w.session_id AND d.position = w.position)
              AND NOT EXISTS (SELECT FROM journal j, webhook_cursor c WHERE j.session_id = w.session_id AND j.revision > c.revision)
        """)
    )
