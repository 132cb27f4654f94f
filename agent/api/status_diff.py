"""Computes the status diff: what changed on the node since the last report, and when it is due. Pure.

The manager commits once per report. So transitional states are debounced and share a report with states that matter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from retinue.agent.network.paths import NO_PATHS
from retinue.agent.v1 import agent_service_pb2

if TYPE_CHECKING:
    from retinue.agent.attempts import FailingStep, ObservedAttempt
    from retinue.agent.network.paths import PathReport
    from retinue.agent.probes.prober import RoutedStatus

DEBOUNCE = 0.1
"""Seconds that transitional states wait, so that they share one report."""
START_DEBOUNCE = 1.0
"""Seconds that states of a start wait: what is held next would wait for the commit of a report that it makes needless,
and most kernels start within this time.
"""
STARTING = frozenset(
    {
        agent_service_pb2.ATTEMPT_STATE_ACCEPTED,
        agent_service_pb2.ATTEMPT_STATE_CREATING,
    }
)
"""Transitional states of a start."""
TRANSITIONAL = STARTING | frozenset(
    {
        agent_service_pb2.ATTEMPT_STATE_PULLING,
        agent_service_pb2.ATTEMPT_STATE_STOPPING,
    }
)
"""Transitional states: nothing at the manager waits for them."""

Trouble: TypeAlias = "tuple[str, tuple[FailingStep, ...]]"
"""What an attempt waits for, in words, and the steps for it that fail again and again."""


@dataclass(frozen=True, slots=True)
class SentStatus:
    """The last status sent of an attempt, and the observation that it was made from."""

    attempt: ObservedAttempt | None
    trouble: Trouble
    routed: RoutedStatus
    status: agent_service_pb2.AttemptStatus
    paths: PathReport = NO_PATHS

    def is_same(
        self, attempt: ObservedAttempt | None, trouble: Trouble, routed: RoutedStatus, paths: PathReport
    ) -> bool:
        """Returns True when nothing changed: the usual case, and much cheaper than building a status to compare."""
        return (
            trouble == self.trouble
            and routed == self.routed
            and paths == self.paths
            and (attempt is self.attempt or attempt == self.attempt)
        )


@dataclass(frozen=True, slots=True)
class StatusDiff:
    """Changes that the manager has not received; `ends` are those of `changed` that have ended."""

    changed: dict[str, SentStatus]
    ends: list[str]
    removed: list[str]
    networks: frozenset[str]
    networks_before: frozenset[str]

    @property
    def removed_networks(self) -> list[str]:
        """Returns the sessions whose network is gone."""
        return sorted(self.networks_before - self.networks)

    def due(self, before: float, now: float) -> float:
        """Returns when the diff is due, by the clock of `now`; `before` is the last answer.
        Infinite when the diff is empty.
        """
        if not (self.changed or self.removed or self.removed_networks):
            return math.inf
        if any(sent.status.state not in TRANSITIONAL for sent in self.changed.values()):
            return now
        starts = not (self.removed or self.removed_networks) and all(
            sent.status.state in STARTING for sent in self.changed.values()
        )
        return min(before, now + (START_DEBOUNCE if starts else DEBOUNCE))
