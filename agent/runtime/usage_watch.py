"""Knows what attempts have used once they have ended.

The control groups of a container go with it, by no doing of the agent. So they are read now and then while it runs,
before it is killed, and at once when its end is seen; what could not be read then is as it was before.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from retinue.agent.host.lanes import KERNELS
from retinue.agent.inside.host_kernel import read_group_usage
from retinue.agent.resources.core.usage import later

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from retinue.agent.resources.core.usage import FinalUsage, Usage

_log = logging.getLogger(__name__)

INTERVAL = 10.0
"""Seconds between two measurements of a running attempt."""


class UsageWatch:
    """What attempts of one runtime have used. Methods belong on one event loop."""

    def __init__(
        self,
        read: Callable[[Mapping[str, str]], Usage] = read_group_usage,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`read` measures control groups, by controller; it blocks."""
        self._read = read
        self._clock = clock
        self._groups: dict[str, Mapping[str, str]] = {}
        self._known: dict[str, FinalUsage] = {}

    def begin(self, attempt_id: str, groups: Mapping[str, str]) -> None:
        """Begins to measure an attempt by its control groups."""
        self._groups[attempt_id] = groups

    async def measure(self, attempt_id: str) -> None:
        """Measures an attempt now; one that is not known, or cannot be measured, stays as it was."""
        groups = self._groups.get(attempt_id)
        if groups is None:
            return
        try:
            usage = await KERNELS.run(self._read, groups)
        except OSError as error:
            # What ends the attempt waits for this.
            _log.warning("attempt %s is not measured: %s", attempt_id, error)
            return
        # It may have been taken meanwhile.
        if attempt_id in self._groups and (found := later(self._known.get(attempt_id), usage, self._clock())):
            self._known[attempt_id] = found

    def take(self, attempt_id: str) -> FinalUsage | None:
        """Returns what an attempt had used when it was last measured, and forgets it; None when it never was."""
        self._groups.pop(attempt_id, None)
        return self._known.pop(attempt_id, None)

    async def run(self) -> None:
        """Measures all attempts, again and again; does not return."""
        while True:
            await asyncio.sleep(INTERVAL)
            for attempt_id in list(self._groups):
                await self.measure(attempt_id)
