"""Limits the size of data messages of each tunnel: large ones for a few tunnels, small ones for all others.

A message is held in memory until the other side takes it, so a large one costs as long as its reader does not read. But large messages carry
several times as much as small ones. Therefore the first tunnels of each user may send large ones, and what all others hold is bounded.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

MAX_LARGE_TUNNELS = 32
"""Tunnels of all users with large messages, at each replica."""
MAX_LARGE_TUNNELS_PER_USER = 8


@dataclass(frozen=True, slots=True)
class DataSizes:
    """The maximum of bytes in one message, in each direction."""

    to_kernel: int
    from_kernel: int


# With the window of the stream, no more than 64 KiB in each direction.
SMALL = DataSizes(to_kernel=32 * 1024, from_kernel=32 * 1024)
LARGE = DataSizes(to_kernel=256 * 1024, from_kernel=512 * 1024)


class LargeTunnels:
    """Counts the tunnels with large messages; belongs on one event loop."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    @contextlib.contextmanager
    def assign(self, user: str) -> Iterator[DataSizes]:
        """Returns the sizes for a new tunnel of a user, which is open for as long as the block lasts."""
        if self._open[user] >= MAX_LARGE_TUNNELS_PER_USER or self._open.total() >= MAX_LARGE_TUNNELS:
            yield SMALL
            return
        self._open[user] += 1
        try:
            yield LARGE
        finally:
            self._open[user] -= 1
            if self._open[user] == 0:
                del self._open[user]
