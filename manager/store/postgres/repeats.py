"""Messages that would come again and again are logged once in a while."""

from __future__ import annotations

AGAIN_SECONDS = 60.0
"""A message that repeats itself is logged once in so long."""


class Repeats:
    """Remembers what was said, and when."""

    def __init__(self, seconds: float = AGAIN_SECONDS) -> None:
        """What was said is due again after so many seconds."""
        self._seconds = seconds
        self._said: dict[str, float] = {}

    def is_due(self, message: str, now: float) -> bool:
        """Returns whether a message is to be said at a time, and takes it as said then."""
        if now - self._said.get(message, -self._seconds) < self._seconds:
            return False
        self._said = {known: at for known, at in self._said.items() if now - at < self._seconds} | {message: now}
        return True
