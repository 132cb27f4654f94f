"""Attempts that must end when contact with every manager is lost: a manager that reschedules them relies on that.

A manager that has not heard from this agent for long runs some sessions on other nodes. It counts from when it last
received a message. So the agent counts from when it sent the last message that the manager is known to have received,
never from when the acknowledgement arrived. The clock continues while the node sleeps. All is kept in a file: an agent
that restarts later knows how late it is. If none restarts, or the agent is stopped,
the watchdog (`agent/fencing/watchdog.py`) reads the file.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
from typing import TYPE_CHECKING

from retinue.agent.fencing import watchdog
from retinue.agent.host.lanes import STATE
from retinue.rpc.files import overwrite_file, replace_file

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

    from retinue.agent.attempts import DesiredAttempt
    from retinue.agent.fencing.watchdog import FenceTarget
    from retinue.agent.state.damaged import DamagedFiles
    from retinue.agent.state.disk import Disk


_log = logging.getLogger(__name__)

CONTACT_STEPS = 50
"""The interval at which contact is written in the shortest limit: often enough for the watchdog,
and not with every heartbeat.
"""
RETRY = 1.0
"""Seconds before the disk is tried again."""
WATCHDOG_INTERVAL = 10.0
"""Seconds between two looks whether there is a watchdog."""


class OverdueError(Exception):
    """An attempt was without a manager for too long, and must not be released."""


class Fence:
    """Seconds without contact that each guarded attempt may continue for, and the time of the last contact."""

    def __init__(
        self,
        state_dir: Path,
        boot_id: str,
        clock: Callable[[], float],
        watched: Callable[[Path], None] = watchdog.ensure,
        *,
        damaged: DamagedFiles | None = None,
        disk: Disk | None = None,
    ) -> None:
        """Reads the file, blocking. `clock` returns seconds since the node was started, its sleep included.

        `watched` returns once a watchdog goes by what is in the directory.
        A file that cannot be read is moved to `damaged`.
        """
        self._directory = state_dir
        self._path = state_dir / watchdog.FILE
        self._boot_id = boot_id
        self._clock = clock
        self._watched = watched
        self._writing, self._watching = threading.Lock(), threading.Lock()
        self._disk = disk
        self._changed = asyncio.Event()
        known = watchdog.read(self._path, boot_id, damaged) or watchdog.Guarded(boot_id, clock())
        self._on_disk = known
        self._limits = dict(known.limits)
        self._processes = dict(known.processes)
        self._contact = min(clock(), known.contact)

    def now(self) -> float:
        """Returns the time by the clock."""
        return self._clock()

    def confirm(self, sent: float) -> None:
        """Notes that the manager has received what was sent at that time."""
        self._contact = max(self._contact, sent)
        self._changed.set()

    def guard(self, attempts: Iterable[DesiredAttempt]) -> None:
        """Takes up attempts that are to be guarded; `pin` puts each on disk before it starts."""
        limits = {attempt.spec.id: attempt.fence_timeout for attempt in attempts if attempt.fence_timeout > 0}
        if not limits.items() <= self._limits.items():
            self._limits = self._limits | limits
            self._changed.set()

    async def pin(self, attempt_id: str, target: FenceTarget | None) -> None:
        """Returns once a watchdog knows how to end an attempt that is about to be released, if it is guarded.

        Raises OverdueError, WatchdogError, OSError: then it must not be released.
        """
        if attempt_id not in self._limits or target is None:
            return
        self._processes = self._processes | {attempt_id: target.process}
        await STATE.run(self._have_watched)
        # From here on the watchdog ends what is late; what was late before is not known to it yet.
        if attempt_id in self.due():
            raise OverdueError(f"attempt {attempt_id} was without a manager for too long")

    async def keep_watched(self) -> None:
        """Keeps a watchdog running as long as there is something to guard, until it is cancelled."""
        while True:
            if self._processes:
                try:
                    await STATE.run(self._have_watched)
                except (watchdog.WatchdogError, OSError) as error:
                    _log.error("guarded attempts would continue if this agent were stopped: %s", error)
            await asyncio.sleep(WATCHDOG_INTERVAL)

    async def keep_written(self) -> None:
        """Writes what changed, as far as it matters, until it is cancelled. A disk that refuses ends nothing."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self.matters():
                try:
                    await STATE.run(self.write)
                except OSError as error:
                    _log.error("how long attempts may continue without a manager cannot be written: %s", error)
                    await asyncio.sleep(RETRY)
                    self._changed.set()

    def matters(self) -> bool:
        """Returns whether what is in the file is not good enough for a watchdog,
        which acts a tenth of a limit later than the agent.
        """
        known = self._on_disk
        if (known.limits, known.processes) != (self._limits, self._processes):
            return True
        return self._contact - known.contact > min(self._limits.values(), default=math.inf) / CONTACT_STEPS

    def _have_watched(self) -> None:
        with self._watching:
            with contextlib.suppress(OSError):
                if self._on_disk.limits and self._path.read_bytes() != self._on_disk.encode():
                    # Damaged while this process knows better.
                    self._on_disk = watchdog.Guarded(self._boot_id, -math.inf)
            self.write()
            self._watched(self._directory)

    def forget(self, there: Collection[str]) -> None:
        """Drops the guard of attempts that are neither there nor desired."""
        for attempt_id in self._limits.keys() - set(there):
            self._limits = {key: limit for key, limit in self._limits.items() if key != attempt_id}
            self._processes = {key: process for key, process in self._processes.items() if key != attempt_id}
            with contextlib.suppress(OSError):
                watchdog.forget(self._directory, attempt_id)
            self._changed.set()

    def due(self) -> frozenset[str]:
        """Returns the guarded attempts whose time has expired."""
        silence = self._clock() - self._contact
        return frozenset(key for key, limit in self._limits.items() if silence >= limit)

    def wait(self) -> float | None:
        """Returns the seconds until the next attempt is due if there is no contact; None when none will be."""
        silence = self._clock() - self._contact
        return min((limit - silence for limit in self._limits.values() if limit > silence), default=None)

    def write(self) -> None:
        """Keeps what is known, if it changed; blocks for a small file that need not outlive the node.
        Raises OSError.
        """
        with self._writing:
            if not self._limits and not self._path.exists():
                return
            known = watchdog.Guarded(self._boot_id, self._contact, self._limits, self._processes)
            if known != self._on_disk:
                self._replace(known.encode())
                self._on_disk = known

    def _replace(self, content: bytes) -> None:
        def replace() -> None:
            replace_file(self._path, content, lasting=False)

        try:
            if self._disk is None:
                replace()
            else:
                self._disk.essential(replace)
        except OSError:
            # Without the new time of contact, the watchdog would end what it guards.
            overwrite_file(self._path, content)
