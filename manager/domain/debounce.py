"""Debounce: work that follows on events is done at once for one event, and for many events together."""

from __future__ import annotations

FIRST_SECONDS, LONGEST_SECONDS = 0.005, 0.05


class Debounce:
    """Decides how long a round of work waits for more events, in seconds of any clock.

    The first round after a rest does not wait. While events come without a rest, rounds are ever further apart, up to
    the longest pause: so a round serves one event of a few, and all events of that time of many.
    """

    def __init__(self, longest: float = LONGEST_SECONDS) -> None:
        """Rounds begin at most `longest` seconds apart because of this."""
        self._longest = longest
        self._pause = 0.0
        self._began = float("-inf")

    def begin(self, now: float) -> float:
        """Returns the seconds to wait for before a round that was asked for `now`, and takes it to begin then."""
        wait = self._began + self._pause - now
        if wait <= 0:
            self._pause, self._began = FIRST_SECONDS, now
            return 0.0
        self._pause, self._began = min(2 * self._pause, self._longest), now + wait
        return wait
