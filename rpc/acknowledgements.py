"""Gathers data of a busy connection into fewer messages, each of which costs as much as a large one.

A little while later there is more for the same message: of the small data of a connection that carries much the other
way, which is mostly confirmations of what was carried, such as those of SFTP for each 32 KiB; and of what has just
arrived of a long transfer. Data of connections that carry little never waits.
"""

from __future__ import annotations

import asyncio

BULK = 128 * 1024
"""Bytes carried the other way since the last time that make small data wait."""
SMALL = 4096
PAUSE = 0.002
"""Seconds; in so many, a fast connection carries a part of what transfers have under way without a confirmation."""
LONG = 8 << 20
"""Bytes carried this way before a message that could be twice as large waits."""
PART_PAUSE = 0.001


class Acknowledgements:
    """Whether small data of one connection has to wait; belongs on one event loop."""

    def __init__(self) -> None:
        """Nothing was carried yet."""
        self._carried = self._gathered = 0

    def carried(self, count: int) -> None:
        """Notes bytes that went the other way."""
        self._carried += count

    async def gather(self, count: int, most: int = 0) -> bool:
        """Waits when so many bytes are little beside what has been carried,
        or beside the `most` that fit into a message of a long transfer.

        Returns whether it has waited, and there may be more by now.
        """
        self._gathered += count
        if 0 < count < SMALL and self._carried >= BULK:
            self._carried = 0
            await asyncio.sleep(PAUSE)
            return True
        if SMALL <= count <= most // 2 and self._gathered >= LONG:
            await asyncio.sleep(PART_PAUSE)
            return True
        return False
