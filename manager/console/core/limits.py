"""Limits of the console: tries to log in, and open sockets by user. Pure, with the time passed in."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque

MAX_TRIES, MAX_TRIES_OF_ADDRESS, TRIES_SECONDS = 10, 100, 60.0
"""Tries with one token or link, and of one address, in so many seconds. Many people may have one address: one of them
who has no good token takes nothing from the others. Tokens are too long to be found by tries.
"""
MAX_SOCKETS = 64
_MAX_KEYS = 10_000


class Tries:
    """Counts tries by whatever they have in common, in bounded memory; belongs on one event loop."""

    def __init__(self, most: int = MAX_TRIES, max_keys: int = _MAX_KEYS) -> None:
        """At `most` are taken in `TRIES_SECONDS`. Nothing has been tried yet."""
        self._most = most
        self._max_keys = max_keys
        # By key, the one that tried last at the end: when its tries were that count.
        self._tries: OrderedDict[str, deque[float]] = OrderedDict()

    def count(self, key: str, now: float) -> int:
        """Counts a try at `now` in seconds; returns 0, or after how many seconds the next one is taken,
        and this one is not.
        """
        tries = self._tries.pop(key, None) or deque()
        while tries and now - tries[0] >= TRIES_SECONDS:
            tries.popleft()
        if len(self._tries) >= self._max_keys:
            # The one that has been quiet for longest.
            self._tries.popitem(last=False)
        self._tries[key] = tries
        if len(tries) >= self._most:
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
