"""What fails and is tried again: since when, how often, the last error; in the same words for all readers. Pure."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace

MAX_ERROR = 512
"""Characters of an error that are kept."""


@dataclass(frozen=True, slots=True)
class Retries:
    """Failures in a row: the time of the first, in seconds since the epoch, their number, and the last error."""

    since: float
    tries: int
    error: str

    @property
    def rounded(self) -> Retries:
        """Returns them with the number rounded down to a power of two, so that not every try is a change."""
        return replace(self, tries=1 << max(0, self.tries.bit_length() - 1))

    def __str__(self) -> str:
        """Returns them as sentences have them."""
        since = dt.datetime.fromtimestamp(self.since, dt.UTC)
        times = "once" if self.tries == 1 else f"{self.tries} times or more"
        return f"{self.error}; failed {times} since {since:%Y-%m-%d %H:%M:%S} UTC, and is tried again"


def after_failure(before: Retries | None, error: object, now: float) -> Retries:
    """Returns the failures in a row with another one, at `now` in seconds since the epoch."""
    text = (str(error) or repr(error))[:MAX_ERROR]
    return Retries(now, 1, text) if before is None else Retries(before.since, before.tries + 1, text)
