"""Chooses the size of the pieces in which bytes of a connection are sent. Pure.

Few large pieces carry most, as each message costs the same. But a piece is held, in several copies, until its reader
takes it: a connection begins with small ones, continues with large ones as long as full ones are taken,
and all connections share what large ones may hold.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SMALLEST = 16 * 1024
LARGEST = 512 * 1024
FULL_IN_A_ROW = 16
"""Full pieces before the size is doubled; the first ones of a reader that does not read fit into what lies between."""
SHARED = 4 << 20
"""Bytes that pieces may hold beyond the smallest ones."""
_SHARE = 8


class SharedRoom:
    """The bytes that pieces of all connections hold until they are taken."""

    def __init__(self) -> None:
        """Holds nothing yet."""
        self._held = 0

    def limit(self) -> int:
        """Returns the maximum number of bytes in a piece now: a share of what is free,
        so that what is left suffices for others.
        """
        return max(SMALLEST, min(LARGEST, (SHARED - self._held) // _SHARE))

    @contextlib.contextmanager
    def hold(self, count: int) -> Iterator[None]:
        """Counts a piece for as long as the block lasts."""
        beyond = max(0, count - SMALLEST)
        self._held += beyond
        try:
            yield
        finally:
            self._held -= beyond


class PieceSize:
    """The size of the next piece of one connection."""

    def __init__(self, largest: int = LARGEST) -> None:
        """Begins with the smallest; no piece is larger than `largest`."""
        self._size = SMALLEST
        self._largest = largest
        self._full = 0

    def next(self, limit: int) -> int:
        """Returns the maximum number of bytes of the next piece."""
        return min(self._size, self._largest, limit)

    def taken(self, count: int) -> None:
        """Notes that a piece of so many bytes was taken."""
        self._full = self._full + 1 if count >= self._size else 0
        if self._full >= FULL_IN_A_ROW and self._size < LARGEST:
            self._size, self._full = self._size * 2, 0
