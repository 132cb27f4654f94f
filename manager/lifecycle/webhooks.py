"""Tells others what happened to sessions: goes through the journal, keeps what is to be told, and tells it until it is taken."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from typing import Any

from manager.store import leadership, webhooks
from manager.store.database import Database
from manager.webhooks import rules
from manager.webhooks.post import PostError, post
from manager.webhooks.rules import AddressPolicy
from manager.webhooks.seal import unseal

_log = logging.getLogger(__name__)

_PORTION = 1000
_AT_ONCE = 16
_TICK_SECONDS = 1.0
# What follows within this time is told of together: looking through the journal is in the way of the session that is on its way.
_GATHER_SECONDS = 0.05
_GONE = 410


class Courier:
    """Tells everything at least once, to each webhook in order; every request carries the same key each time."""

    def __init__(self, database: Database, term: int, policy: AddressPolicy) -> None:
        self._database = database
        self._term = term
        self._policy = policy
        self._changed = asyncio.Event()
        # What was gone through and held nothing to tell is not written each time.
        self._seen = 0

    def wake(self) -> None:
        """Something may have happened."""
        self._changed.set()

    async def run(self) -> None:
        """Tells until cancelled."""
        while True:
            self._changed.clear()
            await self.collect()
            waiting = await self.deliver()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_SECONDS if waiting else None):
                    await self._changed.wait()
                    await asyncio.sleep(_GATHER_SECONDS)

    async def collect(self) -> None:
        """Goes through the journal to its end."""
        while True:
            async with self._database.transaction() as tx:
                await leadership.check(tx, self._term)
                cursor, newest = await webhooks.read_cursor(tx)
                after = max(cursor, self._seen)
                upto = min(newest, after + _PORTION)
                rows = await webhooks.read_events(tx, after, upto) if upto > after else []
                deliveries = [
                    {
                        "session_id": row["session_id"],
                        "position": row["position"],
                        "revision": row["revision"],
                        "event": event,
                        "body": rules.body_of(event, row),
                    }
                    for row in rows
                    if (event := rules.wanted(tuple(row["events"]), rules.events_of(row["kind"], row["payload"])))
                ]
                if rows or upto - cursor > 10 * _PORTION:
                    await webhooks.add(tx, upto, deliveries)
            self._seen = upto
            if upto == newest:
                return

    async def deliver(self) -> bool:
        """Tells what is due; returns whether anything is left for later."""
        while True:
            async with self._database.transaction() as tx:
                due = await webhooks.read_due(tx, _AT_ONCE)
                left = bool(due) or await webhooks.anything_left(tx)
            if not due:
                return left
            async with asyncio.TaskGroup() as group:
                for row in due:
                    group.create_task(self._tell(row), name=f"webhook of {row['session_id']}")

    async def _tell(self, row: Mapping[str, Any]) -> None:
        key = f"{row['revision']}-{row['position']}"
        try:
            secret = unseal(bytes(row["secret"]))
            headers = rules.headers_of(key, row["event"], row["body"], secret, int(time.time()))
            status = await post(row["url"], headers, row["body"], self._policy)
        except (PostError, ValueError) as error:
            status, why = 0, str(error)
        else:
            why = f"it answered {status}"
        retry = None
        if not 200 <= status < 300 and status != _GONE:  # noqa: PLR2004  # success
            retry = rules.pause(row["tries"] + 1)
            what = "given up" if retry is None else f"tried again in {retry:.0f} s"
            _log.info("webhook %s of session %s is %s: %s", key, row["session_id"], what, why)
        async with self._database.transaction() as tx:
            await leadership.check(tx, self._term)
            await webhooks.settle(tx, row, retry)
