"""Notes in the store that a user exchanged something with a session, whichever replica it went through.

What is heard is gathered in memory and written some time later, so that a session costs one write in many seconds
whatever its traffic. The newest is always written in the end: what the store says is late by the pace at most,
which is a fraction of the time that the policy waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections import Counter
from typing import TYPE_CHECKING

from retinue.manager.domain.idle.policy import LONGEST_PACE
from retinue.manager.store.postgres.database import Database, StoreUnavailable
from retinue.manager.store.postgres.repeats import Repeats
from retinue.manager.store.sessions import idle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_log = logging.getLogger(__name__)

# Seconds between two writes for one session, as a part of the timeout.
PACE_PARTS = 4
# Seconds for which what is heard is gathered.
GATHER_SECONDS = 0.25
_CLOSE_SECONDS = 2.0


def pace(*timeouts: float | None) -> float:
    """Seconds between two writes for a session that may be ended after any of these timeouts."""
    return min([LONGEST_PACE, *(timeout / PACE_PARTS for timeout in timeouts if timeout is not None)])


class ActivityRecorder:
    """Records the activity that one replica observes; belongs on one event loop."""

    def __init__(self, database: Database, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._monotonic = monotonic
        # By main kernel as far as that is known, else by kernel: when it was last heard and not written,
        # and not to be written before.
        self._heard: dict[str, float] = {}
        self._due: dict[str, float] = {}
        self._main: dict[str, str] = {}
        self._held: Counter[str] = Counter()
        self._changed = asyncio.Event()
        self._repeats = Repeats()

    def heard(self, attempt_id: str) -> None:
        """Something was exchanged with an attempt (`KERNEL_ID.ATTEMPT`)."""
        self._heard[self._key(attempt_id)] = self._monotonic()
        self._changed.set()

    @contextlib.contextmanager
    def hold(self, attempt_id: str) -> Iterator[None]:
        """Counts as activity in an attempt for as long as the block lasts, whether anything is passed on or not."""
        key = attempt_id.partition(".")[0]
        self._held[key] += 1
        self.heard(attempt_id)
        try:
            yield
        finally:
            self.heard(attempt_id)
            self._held[key] -= 1
            if self._held[key] == 0:
                del self._held[key]

    def _key(self, attempt_id: str) -> str:
        kernel = attempt_id.partition(".")[0]
        return self._main.get(kernel, kernel)

    async def run(self) -> None:
        """Writes until cancelled; what is left is written then."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                while self._heard or self._held:
                    await asyncio.sleep(GATHER_SECONDS)
                    await self.write()
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self.write(everything=True)

    async def write(self, *, everything: bool = False) -> None:
        """Writes what is due, or everything."""
        now = self._monotonic()
        for kernel in self._held:
            self._heard[self._main.get(kernel, kernel)] = now
        written = {key: at for key, at in self._heard.items() if everything or now >= self._due.get(key, now)}
        if not written:
            return
        try:
            async with self._database.transaction() as tx:
                rows = await idle.note_interactions(tx, {uuid.UUID(key): now - at for key, at in written.items()})
        except StoreUnavailable as error:
            if self._repeats.is_due(str(error), now):
                _log.warning("interactions with %d sessions wait for the database: %s", len(written), error)
            return
        for key, at in written.items():
            if self._heard.get(key) == at:
                del self._heard[key]
        for row in rows:
            main = str(row.session_id)
            self._main[str(row.kernel_id)] = main
            self._due[main] = now + pace(row.of_group, row.of_owner)
        self._due = {key: due for key, due in self._due.items() if due > now}
        known = {*self._due, *self._held}
        self._main = {kernel: main for kernel, main in self._main.items() if main in known or kernel in known}
