"""The lease of a leader: how long it may act without renewing it, and when others may take it.
Times are passed in or come from a clock that is.

The database's clock, which may be stepped, decides nothing. A renewal increments a number. The leader acts for
`VALID_SECONDS` after it *sent* its last renewal that succeeded; others take the lease once they have *seen* the same
number for `LEASE_SECONDS`. What they see is later than what was sent, so the first time ends before the second,
whatever the network and the processes were delayed by.
"""

from __future__ import annotations

import datetime as dt
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

RENEWAL_SECONDS = 1.0
VALID_SECONDS = 5.0
LEASE_SECONDS = 6.0


class NotLeader(Exception):  # noqa: N818  # a fact, not a mistake
    """Another term leads, or the lock was lost: nothing may be written or sent under this term any more."""


def boot_time() -> float:
    """Returns the seconds since the machine booted; they count while it is suspended,
    and no clock that is set changes them.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """The lease of a leader for the length of one term."""

    def __init__(
        self, term: int, sent: float, clock: Callable[[], float] = boot_time, *, former: dt.datetime | None = None
    ) -> None:
        """`sent` is when the statement was sent that took the lease, by `clock`."""
        self.term = term
        self.former = former
        """When the lease was renewed last before this term, by the database's clock; None if that is unknown."""
        self._clock = clock
        self._sent = sent

    def renewed(self, sent: float) -> None:
        """A renewal that was sent at that time has succeeded."""
        self._sent = sent

    def remaining(self) -> float:
        """Returns for how many seconds the lease is valid yet."""
        return self._sent + VALID_SECONDS - self._clock()

    def check(self) -> None:
        """Raises NotLeader when the lease may be another one's: after a pause of the process,
        before it has found out.
        """
        if self.remaining() <= 0:
            raise NotLeader(f"the lease of term {self.term} ended before it was renewed")


@dataclass(frozen=True, slots=True)
class LeaseObservation:
    """The leader as others see it: the server's process of its connection, since when, and its last renewal."""

    pid: int
    began: dt.datetime
    renewal: int


class Observer:
    """Watches a leader's renewals."""

    def __init__(self) -> None:
        """Has seen nothing."""
        self._seen: LeaseObservation | None = None
        self._since = 0.0

    def has_ended(self, seen: LeaseObservation, now: float) -> bool:
        """Takes what was seen until `now`; returns whether the lease was not renewed for so long that it has ended."""
        if seen != self._seen:
            self._seen, self._since = seen, now
        return now - self._since >= LEASE_SECONDS
