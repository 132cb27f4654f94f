"""Decides from probes whether packets come from another node: none, only small ones, or those of full size. Pure.

What comes counts, whatever it answers: a node says of its own side only, and the other node of the other direction.
Probes are sent in rounds, a small one and one of full size. A round that brings both is followed by a pause; one that
does not, by the next round. Times are monotonic, in seconds.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from retinue.agent.network.core.echo_packets import SMALLEST

SMALL = 100
"""Bytes of a small probe."""
FIRST_RESEND = 0.01
"""Seconds until a probe of a path that was never proved is sent again; each time twice as long, within a round."""
ROUND = 1.0
"""Seconds for what a round brings."""
TRIES = 5
"""Rounds in a row without a packet, after which the path is broken."""
INTERVAL = 5.0
"""Seconds between rounds while all is well."""
_SEARCH_TRIES, _SEARCH_WAIT = 3, 0.2


class PathState(enum.Enum):
    """What comes by a path."""

    WAITING = "waiting"
    """Not known yet, or no longer: what was known before holds."""
    PROVED = "proved"
    """Packets of full size."""
    NOTHING = "nothing"
    SMALL_ONLY = "small only"


@dataclass(frozen=True, slots=True)
class PathVerdict:
    """The state of a path; of a broken one since when, and the size of the largest packets that come, in bytes."""

    state: PathState
    since: float = 0.0
    passing: int = 0


@dataclass(slots=True)
class _Arrivals:
    """Packets of one size: when the last one came, and the rounds in a row without any."""

    last: float | None = None
    silent: int = 0
    silent_since: float = 0.0
    broken: bool = False
    returned: int = 0

    def take(self, now: float) -> None:
        """Takes in a packet. One that was broken, and had been well before, is well at the second round's packet."""
        first = self.last is None
        if self.broken and not first and self.last is not None and now - self.last >= ROUND / 2:
            self.returned += 1
        self.silent, self.last = 0, now
        if self.broken and (first or self.returned > 1):
            self.broken, self.returned = False, 0

    def miss(self, began: float) -> None:
        """Takes in the end of a round without a packet."""
        self.silent_since = self.silent_since if self.silent else began
        self.silent += 1
        self.returned = 0
        self.broken = self.broken or self.silent >= TRIES


@dataclass(slots=True)
class _Search:
    """The search for the largest packets that come: of `low` bytes they do, of `high` they do not."""

    low: int
    high: int
    tries: int = 0
    due: float = 0.0

    @property
    def size(self) -> int:
        return (self.low + self.high) // 2

    @property
    def done(self) -> bool:
        return self.high - self.low <= 1


@dataclass(slots=True)
class PathProof:
    """One path to this node. `full` is the size of the largest packets of the network, in bytes."""

    full: int
    began: float | None = None
    next: float = 0.0
    resends: int = 0
    small: _Arrivals = field(default_factory=_Arrivals)
    large: _Arrivals = field(default_factory=_Arrivals)
    search: _Search | None = None

    @property
    def never_came(self) -> bool:
        """Returns whether no packet has ever come."""
        return self.small.last is None

    @property
    def verdict(self) -> PathVerdict:
        """Returns what is known of the path. A loss of large packets only is told once it is known what passes."""
        if self.small.broken:
            return PathVerdict(PathState.NOTHING, self.small.silent_since)
        if self.large.broken and self.search is not None and self.search.done:
            return PathVerdict(PathState.SMALL_ONLY, self.large.silent_since, self.search.low)
        if self.large.broken or self.large.last is None:
            return PathVerdict(PathState.WAITING)
        return PathVerdict(PathState.PROVED, passing=self.full)

    def arrive(self, size: int, now: float) -> None:
        """Takes in a packet of the other node."""
        self.small.take(now)
        if size >= self.full:
            self.large.take(now)
        elif self.search is not None and self.search.low < size < self.search.high:
            self.search.low, self.search.tries, self.search.due = size, 0, now
        if self.large.broken:
            return
        self.search = None
        if size >= self.full and not (self.small.broken or self.large.silent):
            self.began, self.resends, self.next = None, 0, now + INTERVAL

    def due(self, now: float) -> list[int]:
        """Returns the sizes of the probes to be sent now. What has come by now has been taken in before."""
        self._end_round(now)
        sizes = self._search_sizes(now)
        if now < self.next:
            return sizes
        if self.began is None:
            self.began, self.resends = now, 0
        unproved = self.large.last is None
        self.next = now + (min(ROUND, FIRST_RESEND * 2.0**self.resends) if unproved else ROUND)
        self.next = min(self.next, self.began + ROUND)
        self.resends += 1
        return [*sizes, SMALL, self.full]

    def wait(self, now: float) -> float:
        """Returns the seconds until `due` has to be called again."""
        times = [self.next]
        if self.began is not None:
            times.append(self.began + ROUND)
        if self.search is not None and not self.search.done:
            times.append(self.search.due)
        return max(0.0, min(times) - now)

    def _end_round(self, now: float) -> None:
        if self.began is None or now < self.began + ROUND:
            return
        began, self.began, self.resends = self.began, None, 0
        for arrivals in (self.small, self.large):
            if arrivals.last is None or arrivals.last < began:
                arrivals.miss(began)
        # Whether small packets come is known in the same round.
        if self.large.broken and not self.small.silent and self.search is None:
            self.search = _Search(min(SMALL, self.full - 1), self.full)

    def _search_sizes(self, now: float) -> list[int]:
        search = self.search
        if search is None or search.done or now < search.due or self.small.silent:
            return []
        if search.tries == _SEARCH_TRIES:
            search.high, search.tries = search.size, 0
        if search.done:
            return []
        search.tries += 1
        search.due = now + _SEARCH_WAIT
        return [max(SMALLEST, search.size)]
