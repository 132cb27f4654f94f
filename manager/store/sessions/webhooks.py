"""Webhooks, the deliveries that are due, and how far the journal was read for them."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from sqlalchemy import Executable, Integer, Select, Text, and_, cast, delete, func, literal, select, true, update
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.dialects.postgresql import insert as insert_into

from retinue.manager.domain.session.events import EventBody, UnreadableEvent, parse_event
from retinue.manager.store.postgres.constructs import columns_of, json_of, objects, parameter, table_of, words
from retinue.manager.store.postgres.recordset import fetched, recordset
from retinue.manager.store.tables import Journal, JournalHead, Session, Webhook, WebhookCursor, WebhookDelivery

if TYPE_CHECKING:
    from sqlmodel.ext.asyncio.session import AsyncSession

_journal, _head, _session = table_of(Journal), table_of(JournalHead), table_of(Session)
_webhook, _cursor, _delivery = table_of(Webhook), table_of(WebhookCursor), table_of(WebhookDelivery)


async def insert(tx: AsyncSession, rows: Iterable[tuple[uuid.UUID, int, str, list[str], bytes]]) -> None:
    """Writes webhooks of new sessions: (session, place among its webhooks, url, events, sealed secret)."""
    for session_id, position, url, events, secret in rows:
        stored = json_of(events)
        row = {"session_id": session_id, "position": position, "url": url, "events": stored, "secret": secret}
        await tx.execute(insert_into(_webhook).values(**row))


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

    body: EventBody | UnreadableEvent
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
    row = await tx.execute(select(_cursor.c.revision, _head.c.revision).join_from(_cursor, _head, true()))
    cursor, newest = row.one()
    return cursor, newest


_EVENTS = (
    select(
        _journal.c.kind,
        cast(_journal.c.payload, Text),
        _journal.c.revision,
        _journal.c.create_time,
        _journal.c.session_id,
        _journal.c.owner,
        _journal.c.project,
        _session.c.name,
        _webhook.c.position,
        _webhook.c.events,
    )
    .join_from(_journal, _webhook, _webhook.c.session_id == _journal.c.session_id)
    .join(_session, _session.c.id == _journal.c.session_id)
)


async def read_events(tx: AsyncSession, after: int, upto: int) -> list[WebhookEventRecord]:
    """Returns the entries of the journal about sessions with webhooks, once for each of these."""
    query = _EVENTS.where(_journal.c.revision > after, _journal.c.revision <= upto)
    found = await tx.execute(query.order_by(_journal.c.revision, _webhook.c.position))
    return [WebhookEventRecord(parse_event(kind, payload), *values) for kind, payload, *values in found]


def _making_added() -> Executable:
    columns = columns_of(WebhookDelivery, NewDelivery)
    rows = objects("given", "rows", **{item.name: item.type for item in columns})
    names = [*(item.name for item in columns), "tries", "next_try_time"]
    new = select(*rows.c, literal(0), func.now())
    return insert_into(_delivery).from_select(names, new, include_defaults=False).on_conflict_do_nothing()


_ADDED = _making_added()


async def add(tx: AsyncSession, upto: int, deliveries: Iterable[NewDelivery]) -> None:
    """Writes what is to be sent; the journal was read up to `upto`."""
    await tx.execute(_ADDED, {"rows": recordset(deliveries)})
    await tx.execute(update(_cursor).values(revision=func.greatest(_cursor.c.revision, upto)))
    await drop_finished(tx)


def _making_due() -> Select[*tuple[Any, ...]]:
    key = (_delivery.c.session_id, _delivery.c.position)
    # Of each webhook.
    first = (
        select(*columns_of(WebhookDelivery, NewDelivery), _delivery.c.tries, _delivery.c.next_try_time)
        .ext(distinct_on(*key))
        .order_by(*key, _delivery.c.revision)
        .subquery("first")
    )
    turn = func.row_number().over(partition_by=_session.c.owner, order_by=(first.c.next_try_time, first.c.revision))
    of_webhook = and_(_webhook.c.session_id == first.c.session_id, _webhook.c.position == first.c.position)
    due = (
        select(*first.c, _webhook.c.url, _webhook.c.secret, turn.label("turn"))
        .join_from(first, _webhook, of_webhook)
        .join(_session, _session.c.id == first.c.session_id)
        .where(first.c.next_try_time <= func.now())
        .subquery("due")
    )
    return (
        select(*(due.c[field.name] for field in fields(Delivery)))
        .where(due.c.turn <= parameter("each", Integer()))
        .order_by(due.c.turn, due.c.next_try_time)
        .limit(parameter("most", Integer()))
    )


_DUE = _making_due()


async def read_due(tx: AsyncSession, limit: int, each: int) -> list[Delivery]:
    """Returns what is due: of each webhook the oldest only, so that it is sent in order,
    and at most `each` of one owner, in turns.
    """
    found = await tx.execute(_DUE, {"most": limit, "each": each})
    return [Delivery(**row) for row in fetched(found)]


async def anything_left(tx: AsyncSession) -> bool:
    """Returns whether anything is still to be sent, now or later."""
    return bool((await tx.execute(select(select(_delivery.c.revision).exists()))).scalar_one())


async def settle(tx: AsyncSession, delivery: Delivery, retry_seconds: float | None) -> None:
    """Removes a delivery that was sent or is given up; with `retry_seconds`, it is tried again after that."""
    is_it = and_(
        _delivery.c.session_id == delivery.session_id,
        _delivery.c.position == delivery.position,
        _delivery.c.revision == delivery.revision,
    )
    if retry_seconds is None:
        await tx.execute(delete(_delivery).where(is_it))
        await drop_finished(tx)
    else:
        next_try_time = func.now() + dt.timedelta(seconds=retry_seconds)
        retried = update(_delivery).where(is_it).values(tries=_delivery.c.tries + 1, next_try_time=next_try_time)
        await tx.execute(retried)


def _making_finished() -> Executable:
    is_left = select(_delivery.c.revision).where(
        _delivery.c.session_id == _webhook.c.session_id, _delivery.c.position == _webhook.c.position
    )
    is_unread = select(_journal.c.revision).where(
        _journal.c.session_id == _webhook.c.session_id, _journal.c.revision > _cursor.c.revision
    )
    return delete(_webhook).where(
        _session.c.id == _webhook.c.session_id,
        _session.c.state.in_(words("TERMINATED", "CANCELLED")),
        ~is_left.exists(),
        ~is_unread.correlate(_webhook).exists(),
    )


_FINISHED = _making_finished()


async def drop_finished(tx: AsyncSession) -> None:
    """Removes the webhooks, with their secrets, of sessions that have ended and of which everything was sent."""
    await tx.execute(_FINISHED)
