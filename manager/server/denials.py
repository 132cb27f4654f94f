"""Counts denied calls until they are written: those of a minute that are alike together, in bounded memory."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retinue.manager.store.accounts.audit import Denial

MAX_STRANGERS, MAX_CALLERS = 256, 1024
"""How many records a minute has of callers without valid credentials, and of others; further ones count together."""
MAX_WAITING = 4096
"""How many records wait to be written; further denials are lost, and said to be."""


class Denials:
    """Counts by minute; belongs on one event loop."""

    def __init__(
        self, max_strangers: int = MAX_STRANGERS, max_callers: int = MAX_CALLERS, max_waiting: int = MAX_WAITING
    ) -> None:
        """See the constants."""
        self._most = {True: max_strangers, False: max_callers}
        self._max_waiting = max_waiting
        self._counts: Counter[Denial] = Counter()
        # Those told apart in this minute, written or not: of strangers, and of others.
        self._minute = dt.datetime.min.replace(tzinfo=dt.UTC)
        self._told: dict[bool, set[Denial]] = {True: set(), False: set()}
        self.lost = 0
        """How many could not be counted since this was last taken to be said."""

    def count(self, denial: Denial) -> None:
        """Counts one."""
        if denial.minute != self._minute:
            self._minute = denial.minute
            self._told = {True: set(), False: set()}
        told = self._told[not denial.principal]
        if denial not in told:
            if len(told) < self._most[not denial.principal]:
                told.add(denial)
            else:
                # As many as there are methods and reasons.
                denial = denial.without_caller()
        self._add(denial, 1)

    def take(self) -> Mapping[Denial, int]:
        """Returns what is to be written, and forgets it."""
        taken, self._counts = self._counts, Counter()
        return taken

    def put_back(self, taken: Mapping[Denial, int]) -> None:
        """Counts again what could not be written."""
        for denial, number in taken.items():
            self._add(denial, number)

    def _add(self, denial: Denial, number: int) -> None:
        if denial in self._counts or len(self._counts) < self._max_waiting:
            self._counts[denial] += number
        else:
            self.lost += number

    def __len__(self) -> int:
        return len(self._counts)


def minute_of(now: dt.datetime) -> dt.datetime:
    """Returns the begin of a time's minute."""
    return now.replace(second=0, microsecond=0)
