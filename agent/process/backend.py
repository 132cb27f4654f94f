"""The backend for native processes: each kernel is a sandbox over the host's own root, with control groups of its own.

Whatever is done is recorded before it is done, so that a restarted agent always knows how far the former one may have
come. The end of a kernel is noticed by file descriptors of its processes; its exit code is written by the process that
watches over it, whether an agent is there or not.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from retinue.agent.attempts import ObservedAttempt, Phase
from retinue.agent.conditions import Conditions
from retinue.agent.errors import BackendError, NotRunningError
from retinue.agent.fencing.watchdog import was_ended
from retinue.agent.host.lanes import KERNELS
from retinue.agent.inside.host_kernel import HostKernel
from retinue.agent.kernel.build import ATTACH, PUMP, BuildError, build, built_path
from retinue.agent.process.entry import enter
from retinue.agent.process.sandboxes import KernelError, Kernels, ProcessOptions
from retinue.agent.reasons import AttemptReason, ConditionReason
from retinue.agent.resources.core.holdings import CUDA, Holdings
from retinue.agent.runtime.attempt_records import Record, Records, ended, identified
from retinue.agent.runtime.attempt_store import AttemptStore
from retinue.agent.runtime.disk_use import DISK_EXCEEDED, DiskWatch, bounds_of
from retinue.agent.runtime.exit_reason import verdict
from retinue.agent.runtime.exit_watch import Watches
from retinue.agent.runtime.killed import Killed
from retinue.agent.runtime.rebuild import rebuilt
from retinue.agent.runtime.tasks import Tasks
from retinue.agent.state.damaged import DIRECTORY, DamagedFiles

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping

    from retinue.agent.attempts import AttemptSpec
    from retinue.agent.inside.exec_session import Wire
    from retinue.agent.inside.log_file import Output
    from retinue.agent.runtime.disk_use import Area
    from retinue.agent.runtime.kernel import Kernel
    from retinue.agent.state.disk import Disk

log = logging.getLogger(__name__)

RETRY = 1.0
"""Seconds before the end of an attempt is recorded again after the disk refused."""
TAIL = 2_000
"""Bytes of output in the message of an attempt that could not be created."""


@dataclass(frozen=True, slots=True)
class _Started:
    """A kernel at its start barrier: the child of this process that watches over it, and its record."""

    child: subprocess.Popen[bytes]
    record: Record


class ProcessRuntime:
    """Runs attempts as native processes; a Runtime."""

    name = "process"

    def __init__(
        self,
        options: ProcessOptions,
        clock: Callable[[], float] = time.monotonic,
        holdings: Holdings | None = None,
        damaged: DamagedFiles | None = None,
        disk: Disk | None = None,
        *,
        conditions: Conditions | None = None,
    ) -> None:
        """Touches nothing before `open`; `clock` is monotonic. `holdings` are the node's, without it nothing is pinned.

        Damaged files are set aside in `damaged`; what must be written uses the reserve of `disk`. What is wrong is set in `conditions`.
        """
        self._options = options
        self._holdings = holdings or Holdings()
        self._clock = clock
        self._conditions = conditions or Conditions()
        # Used beside the store, for work done in threads.
        self._damaged = damaged or DamagedFiles(options.state_dir / DIRECTORY)
        self._records = Records(options.state_dir / "attempts", self._damaged, disk)
        self._store = AttemptStore(self._records)
        self._node: Kernels | None = None
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        # Exit codes of children that monitored a kernel: the same as they wrote, should the file be lost.
        self._codes: dict[str, int] = {}
        self._killed = Killed(self._conditions, ConditionReason.PROCESS)
        self._watches = Watches(self._ended)
        self._tasks = Tasks()

    async def open(self, listener: Callable[[], None]) -> None:
        """Takes over what a former process of this agent left. Raises BackendError when the node lacks something."""
        self._node = await asyncio.to_thread(Kernels, self._options, self._damaged)
        lost = await self._store.open(listener)
        for attempt_id in sorted(lost.keys() | self._node.names() - {record.id for record in self._store}):
            await self._recover(attempt_id, lost.get(attempt_id))
        for record in self._store:
            await self._adopt(record)
        self._tasks.spawn(
            self._store.bound_outputs(self._options.output_limit, built_path(self._options.cache_dir, PUMP)),
            "bound outputs",
        )
        self._tasks.spawn(self._store.write_late(), "write records late")
        self._tasks.spawn(self._killed.watch(self._kill_again, self._store.show_unkillable), "watch killed attempts")
        options = self._options
        bounds = bounds_of(options.scratch_dir, options.work_size, options.work_files)
        self._tasks.spawn(DiskWatch(self, options.scratch_dir, bounds).run(), "bound work directories")

    async def close(self) -> None:
        """Releases all resources; kernels continue to run."""
        await self._tasks.close()
        self._watches.close()
        for child in self._children.values():
            # This process will not wait for it any more; without a code, the object would complain of that.
            child.returncode = 0
        self._children.clear()
        if self._node is not None:
            await asyncio.to_thread(self._node.close)

    def observe(self) -> Mapping[str, ObservedAttempt]:
        """Returns all attempts there is a record of, by id."""
        return self._store.observed()

    def output(self, attempt_id: str) -> Output:
        """Returns the output of the attempt. Raises UnknownAttemptError."""
        return self._store.output(attempt_id)

    def kernel(self, attempt_id: str) -> Kernel:
        """Returns access to what runs of an attempt, as it is now. Raises UnknownAttemptError."""
        running = self._store.record(attempt_id).phase is Phase.RUNNING
        work = self._kernels.work(attempt_id) if running else None
        return HostKernel(attempt_id, self._store.first_process(attempt_id), work, lambda: self._exec(attempt_id))

    async def _exec(self, attempt_id: str) -> Wire:
        record = self._store.record(attempt_id)
        if record.phase is not Phase.RUNNING or record.init is None:
            raise NotRunningError(f"attempt {attempt_id} does not run")
        try:
            program = await asyncio.to_thread(build, self._options.cache_dir, ATTACH)
        except BuildError as error:
            raise BackendError(str(error)) from error
        return await enter(program, record.init, await asyncio.to_thread(self._kernels.confinement, attempt_id))

    async def prepare(self, spec: AttemptSpec, hosts: str) -> None:
        """Creates the attempt and holds it at its start barrier; what cannot be created is recorded as FAILED."""
        if spec.id in self._store:
            return
        if self._store.was_removed(spec.id):
            await self.decline(
                spec, Phase.FAILED, AttemptReason.ALREADY_REMOVED, "the attempt was here before, and was removed"
            )
            return
        if spec.image:
            await self.decline(
                spec, Phase.FAILED, AttemptReason.IMAGE_UNSUPPORTED, "kernels of kind `process` have no image"
            )
            return
        if spec.slots.get(CUDA):
            # A sandbox over the host's root has none of its devices.
            await self.decline(
                spec, Phase.FAILED, AttemptReason.DEVICE_MISSING, "kernels of kind `process` have no GPUs"
            )
            return
        async with self._store.lock(spec.id):
            if spec.id in self._store:
                return
            self._store.show(Record.of(spec, self._options.boot_id))
            try:
                cores = self._holdings.take(spec.id, spec.slots).cores
                started = await asyncio.to_thread(self._record_and_start, spec, hosts, cores)
            except KernelError as error:
                log.warning("attempt %s could not be started: %s", spec.id, error)
                message = f"it could not be started: {error}"
                self._store.show(replace(self._store.record(spec.id), reason=error.reason, message=message))
                await self._finish_locked(spec.id)
            except OSError:
                # It could not even be recorded, so nothing was started.
                self._holdings.release(spec.id)
                self._store.forget(spec.id)
                raise
            else:
                self._children[spec.id] = started.child
                self._store.show(started.record)
                self._watch(started.record)
                self._shelter(started.record)

    async def decline(self, spec: AttemptSpec, phase: Phase, reason: str, message: str) -> None:
        """Records that the attempt ended before anything of it was created."""
        record = Record.of(spec, self._options.boot_id)
        await self._store.add(ended(record, phase, reason, message, time.time()))

    async def identify(self, spec: AttemptSpec) -> None:
        """Completes the record of an attempt that was rebuilt from its processes."""
        async with self._store.lock(spec.id):
            await self._store.note(identified(self._store.record(spec.id), spec))

    async def mark_attached(self, attempt_id: str) -> None:
        """Records that the attempt has its place in the network."""
        async with self._store.lock(attempt_id):
            await self._store.note(replace(self._store.record(attempt_id), attached=True))
            await asyncio.to_thread(
                self._kernels.start_server, self._store.record(attempt_id).init, self._store.place(attempt_id)
            )

    async def start(self, attempt_id: str) -> None:
        """Lets the command go; nothing to do unless it is held."""
        async with self._store.lock(attempt_id):
            record = self._store.record(attempt_id)
            if record.phase is not Phase.CREATED:
                return
            record = replace(record, phase=Phase.RUNNING, start_time=time.time())
            await asyncio.to_thread(self._record_and_release, record)
            self._store.show(record)

    async def stop(self, attempt_id: str, grace: float) -> None:
        """Asks the command to end; after `grace` seconds it is due to be killed. One that is held is due at once."""
        async with self._store.lock(attempt_id):
            record = self._store.record(attempt_id)
            if record.phase not in {Phase.CREATED, Phase.RUNNING, Phase.STOPPING}:
                return
            if record.start_time is None:
                grace = 0.0
            self._store.kill_at[attempt_id] = self._clock() + grace
            await self._store.note(replace(record, phase=Phase.STOPPING, stop_grace=grace))
            if record.init is not None and grace > 0:
                await KERNELS.run(self._kernels.ask_to_end, record.init)

    async def kill(self, attempt_id: str) -> None:
        """Ends all processes of the attempt."""
        async with self._store.lock(attempt_id):
            record = self._store.record(attempt_id)
            self._store.kill_at.pop(attempt_id, None)
            await KERNELS.run(self._kernels.kill, attempt_id, record.init)
            if not record.phase.ended:
                self._killed.begin(attempt_id)
        self._store.changed()

    async def _kill_again(self, attempt_id: str) -> None:
        # Without the lock: what waits for the end may have it.
        if attempt_id in self._store:
            await KERNELS.run(self._kernels.kill, attempt_id, self._store.record(attempt_id).init)

    async def areas(self) -> Mapping[str, Area]:
        """Returns the disk areas of running attempts, by id. All but work directories lies in memory."""
        running = [record.id for record in self._store if record.init is not None]
        return {attempt_id: await asyncio.to_thread(self._kernels.area, attempt_id) for attempt_id in running}

    async def end(self, attempt_id: str, reason: str, message: str) -> None:
        """Kills an attempt, and records why."""
        if await self._store.give_reason(attempt_id, reason, message):
            await self.kill(attempt_id)

    async def remove(self, attempt_id: str) -> None:
        """Removes all traces of an ended attempt but the knowledge that it was."""
        async with self._store.lock(attempt_id):
            if not self._store.record(attempt_id).phase.ended:
                raise BackendError(f"attempt {attempt_id} has not ended")
            await asyncio.to_thread(self._kernels.remove, attempt_id)
            await self._store.remove(attempt_id)

    def _record_and_start(self, spec: AttemptSpec, hosts: str, cores: tuple[int, ...]) -> _Started:
        record = replace(Record.of(spec, self._options.boot_id), cores=cores)
        if not self._records.add(record):
            raise OSError(f"there is a directory of attempt {spec.id} already")
        # The disk is written while the sandbox is set up; nothing may be released before it is done.
        started = self._kernels.start(
            spec, hosts, cores, self._store.place(spec.id), lambda: self._records.make_lasting(spec.id)
        )
        record = replace(record, phase=Phase.CREATED, monitor=started.monitor, init=started.init)
        try:
            self._records.write(record)
        except OSError as error:
            # A later agent would not know how to reach it.
            self._kernels.kill(spec.id, started.init)
            started.child.wait()
            raise KernelError(f"it could not be recorded: {error}") from error
        return _Started(started.child, record)

    def _record_and_release(self, record: Record) -> None:
        self._records.write(record)
        self._kernels.open_barrier(record.init, self._store.place(record.id))

    async def _adopt(self, record: Record) -> None:
        """Takes one attempt over from a former process of this agent."""
        if record.phase.ended:
            return
        self._holdings.restore(record.id, record.holding)
        if record.boot_id != self._options.boot_id or record.phase is Phase.CREATING:
            # Not waited for: processes that do not end must not keep the agent from starting.
            self._tasks.spawn(self._finish(record.id), f"finish {record.id}")
            return
        if record.phase is Phase.STOPPING:
            self._store.kill_at[record.id] = self._clock() + record.stop_grace
        # The former process may have ended between recording something and doing it; a second time does no harm.
        if record.phase is Phase.CREATED and record.attached:
            await asyncio.to_thread(self._kernels.start_server, record.init, self._store.place(record.id))
        if record.phase is Phase.RUNNING:
            await asyncio.to_thread(self._kernels.open_barrier, record.init, self._store.place(record.id))
        self._watch(record)
        self._shelter(record)

    def _shelter(self, record: Record) -> None:
        if record.monitor is not None:
            self._tasks.spawn(asyncio.to_thread(self._kernels.shelter, record.monitor), f"shelter {record.id}")

    async def _recover(self, attempt_id: str, copy: Record | None) -> None:
        """Makes a record of an attempt whose own is lost, from its copy and what runs of it."""
        found = await asyncio.to_thread(self._kernels.find, attempt_id)
        if found is not None:
            log.error("the record of attempt %s was lost; it runs on, and its record is rebuilt", attempt_id)
            record = rebuilt(attempt_id, self._options.boot_id, copy, found, time.time())
        elif copy is not None:
            record = copy
        else:
            # Nothing of it runs. It must not be started again, and no more can be said of it.
            log.error("the record of attempt %s was lost, and nothing of it runs", attempt_id)
            record = Record(attempt_id, "", attempt_id.rpartition(".")[0], self._options.boot_id)
            record = replace(
                record, reason=AttemptReason.RECORD_LOST, message="the agent's record of the attempt was lost"
            )
        await self._store.restore(record)

    def _watch(self, record: Record) -> None:
        """Waits for the end of the attempt: of its watching process or, when that is gone too early, of its init."""
        for process in (record.monitor, record.init):
            if process is not None and self._watches.begin(record.id, process):
                return
            if self._kernels.status(self._store.place(record.id)).exit_code is not None:
                break
        self._tasks.spawn(self._finish(record.id), f"finish {record.id}")

    def _ended(self, attempt_id: str) -> None:
        if (child := self._children.get(attempt_id)) is not None and (code := child.poll()) is not None:
            del self._children[attempt_id]
            self._codes[attempt_id] = code
        self._watch(self._store.record(attempt_id))

    async def _finish(self, attempt_id: str) -> None:
        async with self._store.lock(attempt_id):
            await self._finish_locked(attempt_id)

    async def _finish_locked(self, attempt_id: str) -> None:
        """Records the end of an attempt, once nothing of it is left; tries until that is done."""
        while True:
            try:
                if await self._try_finish(self._store.record(attempt_id)):
                    if self._store.record(attempt_id).reason == DISK_EXCEEDED:
                        # Not only once a manager, which may be away, has it removed.
                        await asyncio.to_thread(self._kernels.empty, attempt_id)
                    return
                log.warning("processes of attempt %s do not end", attempt_id)
                self._killed.begin(attempt_id)
            except OSError:
                log.exception("the end of attempt %s cannot be recorded", attempt_id)
                await asyncio.sleep(RETRY)

    async def _try_finish(self, record: Record) -> bool:
        rebooted = record.boot_id != self._options.boot_id
        # After a restart of the node, the numbers belong to other processes.
        init = None if rebooted else record.init
        out_of_memory = await KERNELS.run(self._kernels.end, record.id, init)
        if out_of_memory is None:
            return False
        self._store.kill_at.pop(record.id, None)
        place = self._store.place(record.id)
        code, when = self._kernels.status(place).exit_code, time.time()
        if code is None and self._codes.get(record.id, -1) >= 0:
            code = self._codes[record.id]
        elif code is not None:
            # Times of files are coarse; an end never lies before its start.
            when = max(self._kernels.status_time(place), record.start_time or 0.0)
        code = None if record.start_time is None else code
        fenced = await asyncio.to_thread(was_ended, self._options.state_dir, record.id)
        phase, reason, message = verdict(record, code, out_of_memory, rebooted, fenced)
        output = self._store.output(record.id)
        await asyncio.to_thread(output.drain)
        if phase is Phase.FAILED and (said := await asyncio.to_thread(output.tail, TAIL)):
            message = f"{message}: {said}"
        record = replace(record, exit_code=code, log_size=output.size(), monitor=None, init=None)
        await self._store.note(ended(record, phase, reason, message, when))
        self._codes.pop(record.id, None)
        self._killed.end(record.id)
        self._holdings.release(record.id)
        return True

    @property
    def _kernels(self) -> Kernels:
        if self._node is None:
            raise BackendError("the backend is not open")
        return self._node
