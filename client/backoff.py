"""Computes waits between tries: exponential with full jitter, within a retry budget."""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RetryBudget:
    """Bounds retries, in seconds: the first wait is up to `first`, waits double up to `longest`; after `total` without progress
    the call fails.
    """

    first: float = 0.2
    longest: float = 5.0
    total: float = 120.0


@dataclass(slots=True)
class Backoff:
    """Waits between tries of one piece of work; times are seconds of any one monotonic clock, passed in."""

    retry_budget: RetryBudget = field(default_factory=RetryBudget)
    random: random.Random = field(default_factory=random.Random)
    _tries: int = 0
    _since: float | None = None

    def progressed(self) -> None:
        """Records progress: the next failure counts as the first again."""
        self._tries = 0
        self._since = None

    def next_wait(self, now: float, at_least: float | None = None) -> float | None:
        """Returns the seconds to wait before the next try after a failure at `now`; None when the retry budget is used up.

        `at_least` is what the server asked for. Full jitter:
        https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
        """
        if self._since is None:
            self._since = now
        if now - self._since >= self.retry_budget.total:
            return None
        ceiling = min(self.retry_budget.longest, self.retry_budget.first * 2.0**self._tries)
        self._tries = min(self._tries + 1, 32)
        return max(self.random.uniform(0.0, ceiling), at_least or 0.0)
