"""Damaged files of the agent: moved aside, kept for an administrator to look at, and removed by count and age."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import shutil
import threading
import time
from typing import TYPE_CHECKING

from retinue.rpc import failpoints
from retinue.rpc.core.reasons import AgentConditionType

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.agent.conditions import Conditions

_log = logging.getLogger(__name__)

DIRECTORY = "damaged"
"""Name of the directory beneath that of the agent's state."""
REPORT_INTERVAL = 10.0
"""Seconds between two looks at what is kept."""
MAX_NAMED = 5
"""Names in the message of the condition."""
MAX_KEPT = 64
MAX_AGE = 7 * 86_400.0
"""Seconds that a file is kept."""


class DamagedFiles:
    """The directory of files that were set aside. Methods block and may be called from any thread;
    only `make_directory` raises OSError.
    """

    def __init__(self, directory: Path) -> None:
        """Touches nothing before there is something to set aside."""
        self.directory = directory
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def set_aside(self, path: Path, why: str) -> None:
        """Moves a file, or a directory in place of one, aside; what cannot be moved is removed."""
        _log.error("%s is damaged and set aside: %s", path, why)
        with self._lock:
            name = f"{time.time_ns():020}-{next(self._numbers)}-{path.parent.name}-{path.name}"
            try:
                self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                path.rename(self.directory / name)
            except OSError as error:
                if not isinstance(error, FileNotFoundError):
                    _log.warning("%s cannot be moved and is removed: %s", path, error)
                    _remove(path)
            self._bound(time.time())

    def make_directory(self, path: Path) -> None:
        """Makes a directory unless it is there, in place of anything else of its name.
        Raises OSError when it cannot be made.
        """
        if not path.is_dir():
            if os.path.lexists(path):
                self.set_aside(path, "it is not a directory")
            path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def names(self, now: float | None = None) -> list[str]:
        """Returns what is kept, oldest first, after removing what is too old at `now`, in seconds since the epoch."""
        with self._lock:
            self._bound(time.time() if now is None else now)
            return self._names()

    def _names(self) -> list[str]:
        try:
            return sorted(entry.name for entry in os.scandir(self.directory))
        except OSError:
            return []

    def _bound(self, now: float) -> None:
        names = self._names()
        for position, name in enumerate(names):
            stamp = name.partition("-")[0]
            set_aside = int(stamp) / 1e9 if stamp.isdecimal() else 0.0
            if len(names) - position > MAX_KEPT or now - set_aside > MAX_AGE:
                _remove(self.directory / name)


async def report_damage(damaged: DamagedFiles, conditions: Conditions) -> None:
    """Keeps the condition STATE_DAMAGED for as long as a file is kept, until it is cancelled."""
    while True:
        names = await _names(damaged)
        message = ""
        if names:
            message = f"{len(names)} damaged files are kept in {damaged.directory}, newest first: "
            message += ", ".join(reversed(names[-MAX_NAMED:]))
        conditions.update(AgentConditionType.STATE_DAMAGED, message)
        await asyncio.sleep(REPORT_INTERVAL)


@failpoints.awaited("state", failpoints.disk_error)
async def _names(damaged: DamagedFiles) -> list[str]:
    return await asyncio.to_thread(damaged.names)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
