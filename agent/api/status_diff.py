"""What changed on the node and a manager was not told yet, and when it has to be. Pure.

Each report is a commit of the manager's. So what nothing waits for goes with what something does wait for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.agent.v1 import agent_service_pb2

if TYPE_CHECKING:
    from retinue.agent.attempts import ObservedAttempt

LULL = 0.1
"""Seconds that news which nothing waits for wait for such that something does wait for."""
PASSING = frozenset(
    {
        agent_service_pb2.ATTEMPT_STATE_ACCEPTED,
        agent_service_pb2.ATTEMPT_STATE_PULLING,
        agent_service_pb2.ATTEMPT_STATE_CREATING,
        agent_service_pb2.ATTEMPT_STATE_STOPPING,
    }
)
"""States on the way to one that matters."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a manager was told of an attempt, and what that was made from."""

    attempt: ObservedAttempt | None
    trouble: str
    status: agent_service_pb2.AttemptStatus

    def is_same(self, attempt: ObservedAttempt | None, trouble: str) -> bool:
        """Whether nothing at all has changed: the usual case, and much cheaper than to make a status and compare."""
        return trouble == self.trouble and (attempt is self.attempt or attempt == self.attempt)


@dataclass(frozen=True, slots=True)
class News:
    """What a manager was not told yet; `ends` are those of `changed` that have ended."""

    changed: dict[str, Told]
    ends: list[str]
    removed: list[str]
    networks: frozenset[str]
    networks_before: frozenset[str]

    @property
    def removed_networks(self) -> list[str]:
        """Sessions whose network is gone."""
        return sorted(self.networks_before - self.networks)

    def due(self, before: float, now: float) -> float:
        """When they have to be told, by the clock of `now`; `before` is what this said last. Infinite when there are none."""
        if not (self.changed or self.removed or self.removed_networks):
            return math.inf
        if any(told.status.state not in PASSING for told in self.changed.values()):
            return now
        return min(before, now + LULL)
