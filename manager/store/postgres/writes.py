"""Whether anyone has written to the database: what looks at it again and again rests until then.

PostgreSQL numbers the transactions that write. A snapshot says how many have ended and whether one is under way, and
the lease of the leader how often that has written by itself. Where nothing else has, whatever a query found the last
time it finds again, but for what the passing of time makes of it. So one statement a second, which `health` makes in
any case, takes the place of all others of a cluster at rest, whoever writes: other managers and administrators too,
and one that died before it could notify.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

QUIET_SECONDS = 30.0
"""How long what looks for something rests at most, while nobody writes."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a statement saw: the lease's number of renewals, the oldest transaction that was under way,
    and the first one that had not ended yet.
    """

    renewal: int
    oldest: int
    next: int

    @property
    def is_clean(self) -> bool:
        """Returns whether no transaction was under way of those before `next`."""
        return self.oldest == self.next


def has_changed(before: Snapshot | None, now: Snapshot, own: int) -> bool:
    """Returns whether any transaction has written that was not seen `before`, or may have.

    What a renewal of the lease writes does not count, nor do `own` transactions that the caller made meanwhile.
    """
    if before is None or not before.is_clean or not now.is_clean:
        return True
    return now.next - before.next != now.renewal - before.renewal + own


class Writes:
    """Counts how often something was written, or may have been."""

    def __init__(self) -> None:
        self.number = 0
        """Of one who reads the database next: what is written from now on makes it another one."""
        self._last: Snapshot | None = None
        self._is_watched = False
        self._resting: set[asyncio.Event] = set()

    def knows_none_since(self, seen: int) -> bool:
        """Returns whether nothing was written since the number was `seen`; a second or so is looked at later."""
        return self._is_watched and self.number == seen

    def note(self) -> None:
        """Something was written, or may have been."""
        self.number += 1
        for event in self._resting:
            event.set()

    def look(self, now: Snapshot, own: int) -> None:
        """Takes in a snapshot, one a second; `own` transactions of the same connection wrote nothing that matters."""
        before, self._last = self._last, now
        if has_changed(before, now, own):
            self.note()

    def lose_sight(self) -> None:
        """There are no snapshots for now: anything may be written."""
        self._last = None
        self.note()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """For as long as the block lasts, snapshots are taken, or it is said that there are none."""
        self._is_watched = True
        try:
            yield
        finally:
            self._is_watched = False
            self.lose_sight()

    async def rest(self, changed: asyncio.Event, seen: int, pause: float, longest: float = QUIET_SECONDS) -> None:
        """Returns once `changed` is set; after `pause` seconds if something was written since the number was `seen`,
        as soon as something is written after that, and after `longest` seconds in any case. Where nobody watches what
        is written, `pause` is the longest.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await changed.wait()
        if changed.is_set() or longest <= pause or not self.knows_none_since(seen):
            return
        self._resting.add(changed)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(longest - pause):
                    await changed.wait()
        finally:
            self._resting.discard(changed)
