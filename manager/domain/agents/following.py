"""Finds out whether an agent does what it is told: one that follows says of each attempt that it has received it, at
once and before it does anything for it, however long the rest takes. Pure.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PATIENCE = 30.0
"""Seconds within which an agent has to answer."""
MIN_PAUSE, MAX_PAUSE = 300.0, 3600.0
"""Seconds after which an agent that does not follow is tried again: they double each time."""


class Following:
    """What the agent of one stream was sent and has not answered. Times are in seconds from any moment on."""

    def __init__(self, heartbeat: float) -> None:
        """`heartbeat` is the time between two heartbeats of the agent."""
        # Messages come in order. So many heartbeats that an agent sent after it had an attempt and before it answered
        # are no backlog that is read late.
        self._enough = math.ceil(PATIENCE / heartbeat)
        self._heartbeats = 0
        # By attempt: when it was sent, and after how many heartbeats.
        self._unanswered: dict[str, tuple[float, int]] = {}
        self._answered: set[str] = set()

    def sent(self, attempts: Iterable[str], now: float) -> None:
        """Takes note of attempts that the agent was sent, whether for the first time or not."""
        for attempt in attempts:
            if attempt not in self._answered:
                self._unanswered.setdefault(attempt, (now, self._heartbeats))

    def removed(self, attempts: Iterable[str]) -> None:
        """Nothing is expected of these attempts any more."""
        for attempt in attempts:
            self._unanswered.pop(attempt, None)
            self._answered.discard(attempt)

    def answered(self, attempts: Iterable[str]) -> None:
        """The agent has said something of these attempts, whatever it was."""
        for attempt in attempts:
            # Of others nothing is kept, whatever an agent makes up.
            if self._unanswered.pop(attempt, None) is not None:
                self._answered.add(attempt)

    def heartbeat(self, now: float) -> Sequence[str]:
        """Counts a heartbeat of the agent; returns the attempts that it should have answered by now."""
        self._heartbeats += 1
        return [
            attempt
            for attempt, (since, before) in self._unanswered.items()
            if now - since >= PATIENCE and self._heartbeats - before > self._enough
        ]


class Trials:
    """When an agent that does not follow is tried again: after pauses that double until it follows."""

    def __init__(self) -> None:
        """It follows as far as is known."""
        self._pause = 0.0
        self._at: float | None = None

    @property
    def pending(self) -> bool:
        """Returns whether it does not follow, and is to be tried again."""
        return self._at is not None

    def is_due(self, now: float) -> bool:
        """Returns whether it is to be tried again now."""
        return self._at is not None and now >= self._at

    def postpone(self, now: float) -> float:
        """It does not follow; returns after how many seconds it is tried again."""
        self._pause = min(max(MIN_PAUSE, 2 * self._pause), MAX_PAUSE)
        self._at = now + self._pause
        return self._pause

    def end(self, *, follows: bool) -> None:
        """It is tried now. If it `follows`, the next pause is a short one again."""
        self._at = None
        if follows:
            self._pause = 0.0
