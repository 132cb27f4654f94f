"""Attempts that were killed and do not end: killed again with growing pauses, and reported once that takes too long."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.rpc.core.reasons import AgentConditionType

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from retinue.agent.conditions import Conditions

UNKILLABLE_AFTER = 60.0
"""Seconds after the first SIGKILL."""
FIRST_PAUSE, MAX_PAUSE = 2.0, 60.0
"""Seconds between two SIGKILLs."""
INTERVAL = 1.0
MESSAGE = "its processes were killed and do not end"


@dataclass(slots=True)
class _Kill:
    """The times at which an attempt was killed first, and is killed again."""

    first: float
    again: float
    pause: float


class KilledAttempts:
    """The killed attempts of one runtime. Methods belong on one event loop."""

    def __init__(
        self,
        conditions: Conditions,
        reason: str,
        clock: Callable[[], float] = time.monotonic,
        is_paused: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """The condition UNKILLABLE is set with that reason; `clock` is monotonic. What `is_paused` ends as soon as it
        runs again: that is no defect of the node.
        """
        self._is_paused = is_paused
        self._conditions = conditions
        self._reason = reason
        self._clock = clock
        self._kills: dict[str, _Kill] = {}

    def begin(self, attempt_id: str) -> None:
        """Notes that an attempt was killed."""
        now = self._clock()
        self._kills.setdefault(attempt_id, _Kill(now, now + FIRST_PAUSE, FIRST_PAUSE))

    def end(self, attempt_id: str) -> None:
        """Notes that nothing of an attempt is left."""
        if self._kills.pop(attempt_id, None) is not None:
            self.report()

    def due(self) -> list[str]:
        """Returns the attempts to be killed again now."""
        now = self._clock()
        found = [attempt_id for attempt_id, kill in self._kills.items() if kill.again <= now]
        for attempt_id in found:
            kill = self._kills[attempt_id]
            kill.pause = min(MAX_PAUSE, kill.pause * 2)
            kill.again = now + kill.pause
        return found

    def report(self) -> list[str]:
        """Sets or clears the condition; returns the attempts that do not end."""
        now = self._clock()
        late = (key for key, kill in self._kills.items() if now - kill.first >= UNKILLABLE_AFTER)
        stuck = sorted(key for key in late if not self._is_paused(key))
        message = f"killed, and their processes do not end: {', '.join(stuck)}" if stuck else ""
        self._conditions.update(AgentConditionType.UNKILLABLE, message, self._reason)
        return stuck

    async def watch(self, kill: Callable[[str], Awaitable[None]], report: Callable[[str], None]) -> None:
        """Kills again what is due and calls `report` with each attempt that does not end, until it is cancelled."""
        while True:
            await asyncio.sleep(INTERVAL)
            for attempt_id in self.due():
                with contextlib.suppress(OSError):
                    await kill(attempt_id)
            for attempt_id in self.report():
                report(attempt_id)
