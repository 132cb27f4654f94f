"""Requests that are held for an endpoint, and how many of them may go: no clock, no I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retinue.router.core.table import Endpoint

UNLIMITED_PER_REPLICA = 100
"""Requests that go to a replica without a limit of its own in each step,
so that the first replica does not get a whole burst.
"""


class HoldQueue:
    """First in, first out, each with a deadline; all deadlines are the same time away, so they are in order too."""

    def __init__(self) -> None:
        self._deadlines: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._deadlines)

    def add(self, number: int, deadline: float, limit: int) -> bool:
        """Adds a request at the end; returns False when as many as `limit` are held already."""
        if len(self._deadlines) >= limit:
            return False
        self._deadlines[number] = deadline
        return True

    def discard(self, number: int) -> None:
        """Forgets a request whose client has gone."""
        self._deadlines.pop(number, None)

    def expired(self, now: float) -> list[int]:
        """Removes and returns the requests that were held for too long."""
        late = [number for number, deadline in self._deadlines.items() if deadline <= now]
        for number in late:
            del self._deadlines[number]
        return late

    def release(self, count: int) -> list[int]:
        """Removes and returns the first requests."""
        first = [number for number, _ in zip(self._deadlines, range(count), strict=False)]
        for number in first:
            del self._deadlines[number]
        return first


def limited(endpoint: Endpoint) -> bool:
    """Returns whether a ready revision has a limit, so that requests in progress have to be counted."""
    return any(revision.max_concurrency for revision in endpoint.serving if revision.ready)


def releasable(endpoint: Endpoint, in_progress: int) -> int:
    """Returns how many requests may go in one step, with so many in progress on the endpoint's replicas."""
    ready: Sequence[tuple[int, int]] = [(len(found.ready), found.max_concurrency) for found in endpoint.serving]
    if any(limit for replicas, limit in ready if replicas):
        room = sum(replicas * (limit or UNLIMITED_PER_REPLICA) for replicas, limit in ready)
        return max(room - in_progress, 0)
    return sum(replicas for replicas, _ in ready) * UNLIMITED_PER_REPLICA
