"""What runtimes whose kernels are containers share, no matter what makes those: our first process,
its start barrier, and its end.
"""

from __future__ import annotations

import contextlib
import logging
import time
from abc import abstractmethod
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL
from typing import TYPE_CHECKING, Generic, TypeVar

from retinue.agent.attempts import Phase
from retinue.agent.docker.barrier import open_barrier, start_server
from retinue.agent.docker.recovery import from_copy, from_engine, placeholder
from retinue.agent.errors import NotRunningError
from retinue.agent.host.cgroups import out_of_memory_kills
from retinue.agent.host.lanes import KERNELS, in_thread
from retinue.agent.host.processes import queue_signal, send_signal
from retinue.agent.inside.host_kernel import HostKernel
from retinue.agent.runtime.attempt_records import with_memory_kills
from retinue.agent.runtime.attempt_runtime import AttemptRuntime
from retinue.agent.runtime.options import RuntimeOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from retinue.agent.docker.core.container_state import ContainerState
    from retinue.agent.host.processes import Process
    from retinue.agent.inside.exec_session import ExecStream
    from retinue.agent.kernel.core.signals import Delivery
    from retinue.agent.runtime.attempt_records import Record
    from retinue.agent.runtime.kernel import Kernel
    from retinue.agent.runtime.options import Shared

_log = logging.getLogger(__name__)

Options = TypeVar("Options", bound=RuntimeOptions)


class ContainerRuntime(AttemptRuntime[Options], Generic[Options]):
    """An AttemptRuntime whose kernels are containers. Methods belong on one event loop."""

    def __init__(self, options: Options, shared: Shared | None = None) -> None:
        """Touches nothing before `open`."""
        super().__init__(options, shared)
        # Attempts whose record is lost, with its copy if that is left: what made their containers has to be asked.
        self._lost: dict[str, Record | None] = {}

    @abstractmethod
    async def _enter(self, record: Record) -> ExecStream:
        """Starts the helper that runs a command in a running container. Raises NotRunningError, KernelRuntimeError."""

    async def _take_over_records(self, listener: Callable[[], None]) -> None:
        """Takes over what a former process of this agent recorded, as far as the node shows it;
        the rest is in `_lost` then.
        """
        for attempt_id, copy in (await self._store.open(listener)).items():
            directory, boot_id, record = self._store.directory(attempt_id), self._options.boot_id, None
            if copy is not None:
                record = await in_thread(from_copy, copy, boot_id, directory, time.time())
            if record is not None:
                _log.error("the record of attempt %s was lost and is rebuilt from its copy", attempt_id)
                await self._store.restore(record)
            else:
                self._lost[attempt_id] = copy
                self._store.show(placeholder(attempt_id, boot_id, copy))
        for record in self._store:
            if record.id not in self._lost:
                await self._adopt(record)

    async def _rebuild(self, attempt_id: str, state: ContainerState | None) -> None:
        """Makes a record of an attempt that has none from the state of its container;
        None when there is no container.
        """
        directory, boot_id, copy = self._store.directory(attempt_id), self._options.boot_id, self._lost.get(attempt_id)
        record = await in_thread(from_engine, attempt_id, boot_id, copy, state, directory, time.time())
        await self._store.restore(record)
        self._lost.pop(attempt_id, None)
        await self._adopt(record)

    def kernel(self, attempt_id: str) -> Kernel:
        """Returns access to what runs of an attempt, as it is now. Raises UnknownAttemptError."""
        running = self._store.record(attempt_id).phase is Phase.RUNNING
        work = self._options.scratch_dir / attempt_id if running else None
        return HostKernel(attempt_id, self._store.first_process(attempt_id), work, lambda: self._exec(attempt_id))

    async def _exec(self, attempt_id: str) -> ExecStream:
        record = self._store.record(attempt_id)
        if record.phase is not Phase.RUNNING:
            raise NotRunningError(f"attempt {attempt_id} does not run")
        return await self._enter(record)

    async def _connect(self, record: Record) -> None:
        await in_thread(start_server, self._store.directory(record.id), record.init)

    async def _release(self, record: Record) -> None:
        await in_thread(open_barrier, self._store.directory(record.id), record.init)

    async def _signal(self, attempt_id: str, init: Process, delivery: Delivery) -> None:
        del attempt_id
        # Its first process passes it on to the command.
        await KERNELS.run(queue_signal, init, delivery.code)

    async def _kill(self, attempt_id: str, init: Process | None) -> None:
        del attempt_id
        # Everything in a container ends with its first process, without what made it.
        if init is not None:
            await KERNELS.run(send_signal, init, SIGKILL)

    async def _look_at_memory(self, attempt_id: str) -> None:
        """Records that memory was used up: who made the container misses it while it is down,
        and its return removes the group.
        """
        async with self._store.lock(attempt_id):
            record = self._store.record(attempt_id)
            if not record.memory_group:
                return
            killed = await in_thread(out_of_memory_kills, Path(record.memory_group))
            if killed:
                record = replace(with_memory_kills(record, killed, time.time()), out_of_memory=True)
                with contextlib.suppress(OSError):
                    await self._store.write(record)
