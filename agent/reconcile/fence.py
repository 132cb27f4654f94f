"""Attempts that must not outlive the contact with a manager: what runs them elsewhere relies on their end.

A manager that has not heard of this agent for long runs some sessions elsewhere. What it counts from is when it last heard; so what is
counted from here is when that was sent which it is known to have heard, never when its word came. The clock goes on while the node
sleeps. All is kept in a file: an agent that comes back after a while knows how late it is.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from agent.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

    from agent.attempts import DesiredAttempt

log = logging.getLogger(__name__)


class Fence:
    """Seconds without contact that each guarded attempt may go on for, and when there was contact last."""

    def __init__(self, path: Path, boot_id: str, clock: Callable[[], float]) -> None:
        """Reads the file, blocking. `clock` tells seconds since the node was started, its sleep included."""
        self._path = path
        self._boot_id = boot_id
        self._clock = clock
        self._limits: dict[str, float] = {}
        self._contact = clock()
        self._written = ""
        try:
            known = json.loads(path.read_text())
            if known["boot_id"] == boot_id:
                self._limits = {str(key): float(value) for key, value in known["limits"].items()}
                self._contact = min(self._contact, float(known["contact"]))
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("%s cannot be read: %s", path, error)

    def now(self) -> float:
        """The time by the clock."""
        return self._clock()

    def confirm(self, sent: float) -> None:
        """The manager has heard what was sent at that time."""
        self._contact = max(self._contact, sent)

    def guard(self, attempts: Iterable[DesiredAttempt]) -> None:
        """Takes up attempts that are to be guarded, and is on disk before any of them can start."""
        limits = {attempt.spec.id: attempt.fence_after for attempt in attempts if attempt.fence_after > 0}
        if not limits.items() <= self._limits.items():
            self._limits |= limits
            self.write()

    def forget(self, there: Collection[str]) -> None:
        """Attempts that are neither there nor desired need no guard."""
        if self._limits.keys() - set(there):
            self._limits = {key: limit for key, limit in self._limits.items() if key in there}

    def due(self) -> frozenset[str]:
        """Guarded attempts whose time is over."""
        silence = self._clock() - self._contact
        return frozenset(key for key, limit in self._limits.items() if silence >= limit)

    def wait(self) -> float | None:
        """Seconds until the next attempt is due if there is no contact; None when none will be."""
        silence = self._clock() - self._contact
        return min((limit - silence for limit in self._limits.values() if limit > silence), default=None)

    def write(self) -> None:
        """Keeps what is known, if it changed; blocks for a small file that need not outlive the node."""
        if not self._limits and not self._path.exists():
            return
        content = json.dumps({"boot_id": self._boot_id, "contact": self._contact, "limits": self._limits})
        if content != self._written:
            replace_file(self._path, content.encode(), lasting=False)
            self._written = content
