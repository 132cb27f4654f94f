"""Limits how many sessions of one user may wait when no quota does. Pure, with the time passed in.

Counting what waits costs as much as there is of it, so it is not done for every request: after a count, a user may make
as many sessions as were left without another. What waits grows by what is made here only, so the bound holds in one
process; with several managers, and between calls at the same time, it may be passed by what
the others accept in the meantime.
"""

from __future__ import annotations

from collections import OrderedDict

# Twice what one request may hold.
DEFAULT_MAX_PENDING = 20_000
# What other managers have accepted is noticed after so long.
_COUNTED_SECONDS = 10.0
_MAX_USERS = 10_000


class PendingLimit:
    """Remembers for each user how many more sessions may wait; belongs on one event loop."""

    def __init__(self, maximum: int = DEFAULT_MAX_PENDING) -> None:
        """Allows at most `maximum` pending sessions of a user."""
        self.maximum = maximum
        # By user, the one that was counted last at the end: how many are left, and when they were counted.
        self._left: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def spend(self, user: str, number: int, now: float) -> bool:
        """Spends `number` of what is left for a user; returns False, and spends nothing,
        when pending sessions have to be counted first.
        """
        left, at = self._left.get(user, (-1, now))
        if left < number or now - at > _COUNTED_SECONDS:
            return False
        self._left[user] = (left - number, at)
        return True

    def counted(self, user: str, pending: int, now: float) -> int:
        """Records how many sessions of a user wait; returns how many more may."""
        left = max(0, self.maximum - pending)
        self._left.pop(user, None)
        self._left[user] = (left, now)
        if len(self._left) > _MAX_USERS:
            self._left.popitem(last=False)
        return left
