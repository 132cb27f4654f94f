"""Limits of the console: tries to log in by address, and open sockets by user. Pure, with the time passed in."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque

MAX_TRIES, TRIES_SECONDS = 10, 60.0
MAX_SOCKETS = 64
_MAX_ADDRESSES = 10_000


class Tries:
    """Counts tries by address, good and bad ones, in bounded memory; belongs on one event loop."""

    def __init__(self, max_addresses: int = _MAX_ADDRESSES) -> None:
        """Nothing has been tried yet."""
        self._max_addresses = max_addresses
        # By address, the one that tried last at the end: when its tries were that count.
        self._tries: OrderedDict[str, deque[float]] = OrderedDict()

    def count(self, address: str, now: float) -> int:
        """Counts a try at `now` in seconds; returns 0, or after how many seconds the next one is taken,
        and this one is not.
        """
        tries = self._tries.pop(address, None) or deque()
        while tries and now - tries[0] >= TRIES_SECONDS:
            tries.popleft()
        if len(self._tries) >= self._max_addresses:
            # The one that has been quiet for longest.
            self._tries.popitem(last=False)
        self._tries[address] = tries
        if len(tries) >= MAX_TRIES:
            return max(1, math.ceil(TRIES_SECONDS - (now - tries[0])))
        tries.append(now)
        return 0

    def __len__(self) -> int:
        return len(self._tries)


class OpenSockets:
    """Counts the open sockets of each user; belongs on one event loop."""

    def __init__(self) -> None:
        """None is open yet."""
        self._open: Counter[str] = Counter()

    def open(self, user: str) -> bool:
        """Counts a socket, which has to be closed; returns False, and counts none, when a user has too many."""
        if self._open[user] >= MAX_SOCKETS:
            return False
        self._open[user] += 1
        return True

    def close(self, user: str) -> None:
        """Counts the end of a socket that was opened."""
        self._open[user] -= 1
        if not self._open[user]:
            del self._open[user]

    def __len__(self) -> int:
        return self._open.total()
