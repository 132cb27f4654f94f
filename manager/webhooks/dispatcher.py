"""Sends webhooks: reads the journal, keeps the deliveries that follow from it,
and sends each until it is accepted or given up.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from typing import TYPE_CHECKING, TypeAlias

from retinue.manager.domain.webhooks import rules
from retinue.manager.domain.webhooks.rules import SessionEntry
from retinue.manager.store.leadership import leadership
from retinue.manager.store.sessions import webhooks
from retinue.manager.store.sessions.webhooks import Delivery, NewDelivery, WebhookEventRecord
from retinue.manager.webhooks.seal import unseal

if TYPE_CHECKING:
    from retinue.manager.store.postgres.database import Database
    from retinue.rpc.core.addresses import AddressPolicy

_log = logging.getLogger(__name__)

_PORTION = 1000
# Requests at a time, and of one owner: whose receivers are slow holds up no other.
_AT_ONCE, _AT_ONCE_EACH = 64, 4
_TICK_SECONDS = 1.0
# Debounce: events within this time are sent together, because reading the journal competes
# with the session that starts.
_GATHER_SECONDS = 0.25
_GONE = 410


# Session, place among its webhooks, revision.
_Key: TypeAlias = tuple[uuid.UUID, int, int]


class WebhookDispatcher:
    """Sends every event at least once, to each webhook in order; every try of an event
    carries the same `webhook-id`.
    """

    def __init__(self, database: Database, term: int, policy: AddressPolicy) -> None:
        self._database = database
        self._term = term
        self._policy = policy
        self._changed = asyncio.Event()
        # A cursor that moved past nothing to send is not written each time.
        self._seen = 0
        # What is being sent now.
        self._sending: dict[_Key, asyncio.Task[None]] = {}

    def wake(self) -> None:
        """Notifies of events that may be there."""
        self._changed.set()

    async def run(self) -> None:
        """Sends until cancelled."""
        try:
            while True:
                self._changed.clear()
                await self.collect()
                waiting = await self.begin()
                await self.wait(_TICK_SECONDS if waiting else None)
                if self._changed.is_set():
                    await asyncio.sleep(_GATHER_SECONDS)
        finally:
            for task in self._sending.values():
                task.cancel()
            await asyncio.gather(*self._sending.values(), return_exceptions=True)

    async def collect(self) -> None:
        """Reads the journal to its end."""
        while True:
            async with self._database.transaction() as tx:
                await leadership.check(tx, self._term)
                cursor, newest = await webhooks.read_cursor(tx)
                after = max(cursor, self._seen)
                upto = min(newest, after + _PORTION)
                found = await webhooks.read_events(tx, after, upto) if upto > after else []
                deliveries = list(filter(None, map(_delivery, found)))
                if found or upto - cursor > 10 * _PORTION:
                    await webhooks.add(tx, upto, deliveries)
            self._seen = upto
            if upto == newest:
                return

    async def begin(self) -> bool:
        """Starts to send what is due; returns whether anything is left, now or for later."""
        async with self._database.transaction() as tx:
            due = await webhooks.read_due(tx, _AT_ONCE, _AT_ONCE_EACH)
            left = bool(due) or await webhooks.anything_left(tx)
        for delivery in due:
            key = (delivery.session_id, delivery.position, delivery.revision)
            if key not in self._sending and len(self._sending) < _AT_ONCE:
                self._sending[key] = asyncio.create_task(self._send(delivery), name=f"webhook of {delivery.session_id}")
        return left

    async def wait(self, seconds: float | None) -> None:
        """Waits until something was sent or may have happened, or so long. Raises what failed in sending."""
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait({changed, *self._sending.values()}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
        for key, task in list(self._sending.items()):
            if task.done():
                del self._sending[key]
                task.result()

    async def _send(self, delivery: Delivery) -> None:
        # Most managers send none, and it takes memory.
        from retinue.manager.webhooks.post import PostError, post  # noqa: PLC0415

        message_id = f"msg_{delivery.session_id.hex}_{delivery.revision}_{delivery.position}"
        try:
            secret = unseal(bytes(delivery.secret))
            headers = rules.headers_of(message_id, delivery.event, delivery.body, secret, int(time.time()))
            status = await post(delivery.url, headers, delivery.body, self._policy)
        except (PostError, ValueError) as error:
            status, why = 0, str(error)
        except Exception as error:  # noqa: BLE001  # tried again like any other failure; the other webhooks continue
            _log.exception("webhook %s failed", message_id)
            status, why = 0, repr(error)
        else:
            why = f"it answered {status}"
        retry = None
        if not 200 <= status < 300 and status != _GONE:  # noqa: PLR2004  # success
            retry = rules.pause(delivery.tries + 1)
            what = "given up" if retry is None else f"tried again in {retry:.0f} s"
            _log.info("webhook %s is %s: %s", message_id, what, why)
        async with self._database.transaction() as tx:
            await leadership.check(tx, self._term)
            await webhooks.settle(tx, delivery, retry)


def _delivery(found: WebhookEventRecord) -> NewDelivery | None:
    """Returns what is to be sent of an entry of the journal; None when that is nothing, or the entry cannot be read."""
    try:
        event = rules.wanted(tuple(found.events), rules.events_of(found.body))
        if not event:
            return None
        entry = SessionEntry(
            revision=found.revision,
            create_time=found.create_time,
            session_id=found.session_id,
            name=found.name,
            owner=found.owner,
            project=found.project,
            body=found.body,
        )
        return NewDelivery(found.session_id, found.position, found.revision, event, rules.body_of(event, entry))
    except Exception as error:  # noqa: BLE001  # logged; what comes after it is sent
        _log.error("entry %s of the journal is sent to no webhook: %r", found.revision, error)
        return None
