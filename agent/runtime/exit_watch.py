"""Waits for the processes of a backend: their ends are noticed by file descriptors, children or not."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from retinue.agent.host.processes import open_pidfd

if TYPE_CHECKING:
    from collections.abc import Callable

    from retinue.agent.host.processes import Process


class Watches:
    """At most one process of each attempt is waited for. Methods belong on one event loop."""

    def __init__(self, ended: Callable[[str], None]) -> None:
        """`ended` is called with the attempt's id once its process has ended, and is not waited for any more."""
        self._ended = ended
        self._descriptors: dict[str, int] = {}

    def begin(self, attempt_id: str, process: Process) -> bool:
        """Waits for the end of a process; False when it has ended already."""
        descriptor = open_pidfd(process)
        if descriptor is None:
            return False
        self._descriptors[attempt_id] = descriptor
        asyncio.get_running_loop().add_reader(descriptor, self._end, attempt_id)
        return True

    def close(self) -> None:
        """Waits for nothing any more."""
        for attempt_id in list(self._descriptors):
            self._forget(attempt_id)

    def _end(self, attempt_id: str) -> None:
        self._forget(attempt_id)
        self._ended(attempt_id)

    def _forget(self, attempt_id: str) -> None:
        descriptor = self._descriptors.pop(attempt_id)
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
