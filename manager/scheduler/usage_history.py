"""Past usage of the owners of one group, read again when it is old, or when it does not say what is asked now.

It changes slowly against half-lives of days: passes in quick succession need not read all live claims of their owners again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from retinue.manager.scheduler.core.snapshot import PastUsage
from retinue.manager.scheduling.strategies import Settings
from retinue.manager.store import usage
from retinue.manager.store.database import Database

KEPT_SECONDS = 10.0


class UsageReader:
    """Reads for one group, and keeps what it read."""

    def __init__(self, database: Database, group: str) -> None:
        self._database = database
        self._group = group
        # As last read, when, under which settings, and of whom.
        self._usage: dict[str, dict[str, float]] = {}
        self._read = -math.inf
        self._settings = (0, 0)
        self._owners: frozenset[str] = frozenset()

    def invalidate(self) -> None:
        """Has the next `read` go to the database, however fresh the kept usage is."""
        self._read = -math.inf

    async def read(self, owners: Iterable[str], settings: Settings, now: float) -> PastUsage:
        """Returns the usage of `owners`, at most KEPT_SECONDS old at `now`, in seconds of any clock. Raises StoreUnavailable."""
        wanted, asked = frozenset(owners), (settings.half_life_days, settings.look_back_days)
        if now - self._read >= KEPT_SECONDS or asked != self._settings or not wanted <= self._owners:
            async with self._database.transaction() as tx:
                found = await usage.read_decayed(
                    tx,
                    self._group,
                    sorted(wanted),
                    half_life_days=settings.half_life_days,
                    look_back_days=settings.look_back_days,
                )
            self._usage, self._read, self._settings, self._owners = found, now, asked, wanted
        return PastUsage(self._usage, settings.look_back_days, settings.usage_weights)
