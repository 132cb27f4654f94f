"""Limits the size of data messages of each tunnel: large ones for a few tunnels whose reader reads,
small ones for all others.

A message is held in memory until the other side takes it, so a large one costs as long as its reader does not read. But
large messages carry several times as much as small ones. Therefore the first tunnels of each user may send large ones,
once they have sent more than fits into sockets that are not read, and what all others hold is bounded.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_LARGE_TUNNELS = 32
"""Tunnels of all users with large messages, at each replica."""
MAX_LARGE_TUNNELS_PER_USER = 8
SMALL_BYTES = 32 * 1024
"""With the window of the stream, no more than 64 KiB in each direction."""
LARGE_AFTER_BYTES = 8 << 20
"""More than the sockets of a connection hold that is not read: the sender's grows to 4 MiB by Linux's defaults,
the receiver's does not.
"""


@dataclass(frozen=True, slots=True)
class DataSizes:
    """The maximum of bytes in one message, in each direction; agents begin with small ones of their own accord."""

    to_kernel: int
    from_kernel: int


SMALL = DataSizes(to_kernel=SMALL_BYTES, from_kernel=SMALL_BYTES)
LARGE = DataSizes(to_kernel=512 * 1024, from_kernel=512 * 1024)


class MessageLimit:
    """The maximum of bytes in the next message to a kernel."""

    def __init__(self, large: int) -> None:
        """`large` is the maximum once enough has been sent."""
        self._large = large
        self._sent = 0

    @property
    def current(self) -> int:
        """Returns the maximum now, in bytes."""
        return self._large if self._sent >= LARGE_AFTER_BYTES else SMALL_BYTES

    def count(self, size: int) -> None:
        """Counts the bytes of a message that was sent."""
        self._sent += size


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
