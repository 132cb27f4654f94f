"""The life of attempts in sandboxes of the node, whatever runs in the sandbox."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from retinue.agent.errors import KernelRuntimeError
from retinue.agent.host.lanes import KERNELS, in_thread
from retinue.agent.process.options import ProcessOptions
from retinue.agent.process.sandbox_kernels import CLOSE_TIMEOUT, SandboxKernels
from retinue.agent.runtime.attempt_runtime import RETRY, AttemptRuntime
from retinue.agent.runtime.rebuild import recovered
from retinue.rpc.retrying import Retrying

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retinue.agent.host.processes import Process
    from retinue.agent.runtime.attempt_records import Record
    from retinue.agent.runtime.disk_use import DiskFootprint
    from retinue.agent.runtime.options import Shared

_log = logging.getLogger(__name__)

Options = TypeVar("Options", bound=ProcessOptions)
Kernels = TypeVar("Kernels", bound=SandboxKernels[Any])


class SandboxRuntime(AttemptRuntime[Options], Generic[Options, Kernels]):
    """An AttemptRuntime whose kernels are children of the agent that started them. Methods belong on one event loop."""

    def __init__(self, options: Options, shared: Shared | None = None) -> None:
        """Touches nothing before `open`."""
        super().__init__(options, shared)
        self._node: Kernels | None = None
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def _kernels(self) -> Kernels:
        if self._node is None:
            raise KernelRuntimeError(f"no kernel of kind `{self.name}` was made yet")
        return self._node

    def _groups(self, record: Record) -> Mapping[str, str]:
        return self._kernels.groups(record.id)

    async def _take_over_all(self, lost: Mapping[str, Record | None], names: set[str]) -> None:
        """Takes over what a former process left: records, attempts whose record is `lost`,
        and what runs without one by `names`.
        """
        for attempt_id in sorted(lost.keys() | names - {record.id for record in self._store}):
            found = await in_thread(self._kernels.find, attempt_id)
            copy = lost.get(attempt_id)
            await self._store.restore(recovered(attempt_id, self._options.boot_id, copy, found, time.time()))
        for record in self._store:
            if record.init is not None and not record.phase.ended:
                await self._restore_work(record)
            await self._adopt(record)

    async def _restore_work(self, record: Record) -> None:
        if record.boot_id != self._options.boot_id:
            return
        try:
            await in_thread(self._kernels.restore_work, record.id)
        except OSError as error:
            _log.warning("the work directory of attempt %s cannot be reached: %s", record.id, error)

    async def close(self) -> None:
        """Releases all resources; kernels continue to run."""
        await super().close()
        for child in self._children.values():
            # This process will not wait for it any more; without a code, the object would complain of that.
            child.returncode = 0
        self._children.clear()
        if self._node is not None:
            await in_thread(self._node.close)

    async def footprints(self) -> Mapping[str, DiskFootprint]:
        """Returns the disk footprints of running attempts, by id. All but work directories lies in memory."""
        running = [record for record in self._store if record.init is not None]
        return {record.id: await in_thread(self._kernels.footprint, record.id, record.disk) for record in running}

    async def _kill(self, attempt_id: str, init: Process | None) -> None:
        if self._node is not None:
            await KERNELS.run(self._node.kill, attempt_id, init)

    def _run_again(self, record: Record, init: Process) -> None:
        # What watches over it may be paused with it, and the end of the kernel waits for that.
        for process in (init, record.monitor):
            if process is not None:
                self._kernels.resume(record.id, process)

    async def _empty(self, attempt_id: str) -> None:
        await in_thread(self._kernels.empty, attempt_id)

    async def _remove(self, attempt_id: str) -> None:
        if self._node is not None:
            await in_thread(self._node.remove, attempt_id)

    def _protect(self, record: Record) -> None:
        if record.monitor is not None:
            self._tasks.spawn(self._shelter(record.id, record.monitor), f"shelter {record.id}")

    async def _shelter(self, attempt_id: str, monitor: Process) -> None:
        failing = Retrying(f"what watches over attempt {attempt_id} stays within its limits", _log)
        while True:
            try:
                await in_thread(self._kernels.shelter, monitor)
            except OSError as error:
                # It may have ended meanwhile.
                failing.fail(error)
            else:
                failing.succeed()
                return
            await asyncio.sleep(RETRY)

    def _command_has_ended(self, attempt_id: str) -> bool:
        return self._kernels.status(self._store.directory(attempt_id)).exit_code is not None

    def _ended(self, attempt_id: str) -> None:
        if (child := self._children.get(attempt_id)) is not None:
            # One that was not waited for would still count as running.
            child.poll()
        super()._ended(attempt_id)

    def _reap(self, attempt_id: str) -> int | None:
        """Returns the exit code of the process that watched over an attempt; None when it is not known. Blocks."""
        if (child := self._children.pop(attempt_id, None)) is None:
            return None
        try:
            return child.wait(CLOSE_TIMEOUT)
        except subprocess.TimeoutExpired:
            child.returncode = 0
            return None
