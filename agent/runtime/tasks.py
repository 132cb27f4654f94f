"""What a runtime does in the background: tasks, and waiting for processes,
whose ends are noticed by file descriptors, children or not.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING

from retinue.agent.host.processes import open_pidfd
from retinue.rpc.retrying import keep

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from retinue.agent.host.processes import Process

_log = logging.getLogger(__name__)


class Tasks:
    """Tasks that no caller waits for. A failed one is logged, by its name."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Begins a task."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    def keep(self, part: Callable[[], Coroutine[Any, Any, object]], name: str) -> None:
        """Begins a part that does not end by itself, and is run again when it does."""
        self.spawn(keep(name, part, _log), name)

    async def close(self) -> None:
        """Cancels all tasks, and waits for their ends."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("%s failed", task.get_name(), exc_info=error)


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
