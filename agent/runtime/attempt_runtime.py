"""The life of attempts on a node, the same for every kind of kernel: recorded, held, released, stopped,
ended and removed.

Whatever is done is recorded before it is done, so that a restarted agent always knows how far the former one may have
come. A kind says only how its kernels are made, reached and ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from retinue.agent.attempts import Phase
from retinue.agent.errors import KernelRuntimeError, KernelStartError
from retinue.agent.fencing.watchdog import was_ended
from retinue.agent.host.cgroups import out_of_memory_kills
from retinue.agent.host.freezer import pause_of, resume
from retinue.agent.host.lanes import KERNELS, in_thread
from retinue.agent.inside.host_kernel import groups_of
from retinue.agent.kernel.build import PUMP, built_path
from retinue.agent.kernel.core.signals import delivery_of
from retinue.agent.runtime.attempt_records import Record, Records, ended, identified, with_memory_kills
from retinue.agent.runtime.attempt_store import AttemptStore
from retinue.agent.runtime.disk_use import DISK_EXCEEDED, DiskWatch, bounds_of
from retinue.agent.runtime.exit_reason import exit_reason
from retinue.agent.runtime.options import RuntimeOptions, Shared
from retinue.agent.runtime.tasks import Tasks, Watches
from retinue.agent.runtime.unkillable import KilledAttempts
from retinue.agent.runtime.usage_watch import UsageWatch
from retinue.agent.state.damaged import DIRECTORY, DamagedFiles
from retinue.rpc.cancellation import UnrequestedCancellationError, cancellable
from retinue.rpc.core.reasons import AgentConditionReason, AgentConditionType, AttemptReason
from retinue.rpc.retrying import Retrying

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from retinue.agent.attempts import AttemptSpec, ObservedAttempt
    from retinue.agent.host.processes import Process
    from retinue.agent.inside.log_file import Output
    from retinue.agent.kernel.core.signals import Delivery
    from retinue.agent.runtime.disk_use import DiskFootprint
    from retinue.agent.runtime.exit_reason import ExitEvidence

PAUSE_INTERVAL, PAUSE_INTERVAL_EACH = 1.0, 0.01
"""Seconds between two looks at what something keeps from running: at least, and for each kernel, which takes some
0.2 ms of a processor.
"""
MEMORY_INTERVAL = 1.0
"""Seconds between two looks at what was killed for want of memory."""
RETRY = 1.0
"""Seconds before the end of an attempt is recorded again after that failed."""
TAIL = 2_000
"""Bytes of output in the message of an attempt that could not be created."""
_STILL_THERE = "its processes do not end"

Options = TypeVar("Options", bound=RuntimeOptions)

_log = logging.getLogger(__name__)


class AttemptRuntime(ABC, Generic[Options]):
    """A Runtime without what is particular to its kind. Methods belong on one event loop."""

    name: ClassVar[str]
    directory: ClassVar[str] = ""
    """The directory of the records, beneath that of the agent's state."""
    condition: ClassVar[AgentConditionReason] = AgentConditionReason.PROCESS
    """The reason of the condition UNKILLABLE."""

    def __init__(self, options: Options, shared: Shared | None = None) -> None:
        """Touches nothing before `open`."""
        shared = shared or Shared()
        self._options = options
        self._holdings = shared.holdings
        self._clock = shared.clock
        self._conditions = shared.conditions
        self._damaged = shared.damaged or DamagedFiles(options.state_dir / DIRECTORY)
        self._records = Records(options.state_dir / self.directory / "attempts", self._damaged, shared.disk)
        self._store = AttemptStore(self._records)
        self._killed = KilledAttempts(self._conditions, self.condition, is_paused=self._store.is_paused)
        self._watches = Watches(self._ended)
        # Of attempts whose end is not recorded yet, what fails.
        self._ends: dict[str, Retrying] = {}
        self._usage = UsageWatch()
        self._tasks = Tasks()

    # What differs between kinds.

    @abstractmethod
    def _refusal(self, spec: AttemptSpec) -> tuple[str, str] | None:
        """Returns why an attempt cannot be one of this kind here, as reason and message."""

    @abstractmethod
    async def _create(self, spec: AttemptSpec, hosts: str) -> None:
        """Creates an attempt that is not known and holds it at its start barrier."""

    @abstractmethod
    async def _connect(self, record: Record) -> None:
        """Has an attempt know that its network is there; a second time does no harm."""

    @abstractmethod
    async def _release(self, record: Record) -> None:
        """Releases the command; a second time does no harm."""

    @abstractmethod
    async def _signal(self, attempt_id: str, init: Process, delivery: Delivery) -> None:
        """Sends the command a signal."""

    @abstractmethod
    async def _kill(self, attempt_id: str, init: Process | None) -> None:
        """Ends all processes; called without the lock, too."""

    @abstractmethod
    async def _end(self, record: Record, init: Process | None) -> ExitEvidence | None:
        """Ends what is left of an attempt, and returns what that was; None when something does not end in time.

        After a restart of the node, there is no `init`. Raises KernelRuntimeError, OSError.
        """

    @abstractmethod
    async def _empty(self, attempt_id: str) -> None:
        """Gives back the space of an attempt that has ended. Raises KernelRuntimeError, OSError."""

    @abstractmethod
    async def _remove(self, attempt_id: str) -> None:
        """Removes all of an ended attempt but the directory of its record. Raises KernelRuntimeError, OSError."""

    @abstractmethod
    async def footprints(self) -> Mapping[str, DiskFootprint]:
        """Returns the disk footprints of running attempts, by id."""

    def _memory_kills(self, record: Record) -> int:
        """Returns how many processes of a running attempt were killed for want of memory. Blocks."""
        return out_of_memory_kills(Path(record.memory_group)) if record.memory_group else 0

    def _pause(self, init: Process) -> str:
        """Returns what keeps a kernel from running, in words; empty when nothing does. Blocks."""
        return pause_of(init)

    async def _resume(self, attempt_id: str, init: Process) -> None:
        """Has a kernel run that something has paused, as far as that can be done."""
        try:
            await KERNELS.run(self._run_again, self._store.record(attempt_id), init)
        except OSError as error:
            _log.warning("attempt %s is paused, and cannot be resumed: %s", attempt_id, error)

    def _run_again(self, record: Record, init: Process) -> None:
        """Has a kernel run that something has paused. Blocks. Raises OSError."""
        del record
        resume(init)

    async def _cancel_create(self, attempt_id: str) -> None:
        """Waits no more for what an attempt needs before it can be created."""

    def _protect(self, record: Record) -> None:
        """Protects what watches over an attempt from the attempt's own limits."""

    def _groups(self, record: Record) -> Mapping[str, str]:
        """Returns the paths of the control groups that count what an attempt uses, by controller. Blocks."""
        return {} if record.init is None else groups_of(record.init.pid)

    @property
    def capacity(self) -> Mapping[str, int] | None:
        """Returns the amounts that something beyond the node leaves of it; None: nothing does, or none has said so."""
        return None

    # What is the same.

    def knows(self, attempt_id: str) -> bool:
        """Returns whether there is a record of the attempt."""
        return attempt_id in self._store

    def observe(self) -> Mapping[str, ObservedAttempt]:
        """Returns all attempts there is a record of, by id."""
        return self._store.observed()

    def output(self, attempt_id: str) -> Output:
        """Returns the output of the attempt. Raises UnknownAttemptError."""
        return self._store.output(attempt_id)

    async def prepare(self, spec: AttemptSpec, hosts: str) -> None:
        """Creates the attempt and holds it at its start barrier; what cannot be created is recorded as FAILED.

        Returns at once when something has to be fetched before: it is PULLING then, and continues by itself.
        """
        if spec.id in self._store and self._store.record(spec.id).phase is not Phase.WAITING:
            return
        refusal = self._refusal(spec)
        if self._store.was_removed(spec.id):
            refusal = AttemptReason.ALREADY_REMOVED, "the attempt was here before, and was removed"
        if refusal is not None:
            await self.decline(spec, Phase.FAILED, *refusal)
            return
        await self._create(spec, hosts)

    async def decline(self, spec: AttemptSpec, phase: Phase, reason: str, message: str) -> None:
        """Records that the attempt ended before anything of it was created."""
        record = ended(Record.of(spec, self._options.boot_id), phase, reason, message, time.time())
        if not await self._store.add(record) and self._store.record(spec.id).phase is Phase.WAITING:
            await self._store.write(record)

    async def identify(self, spec: AttemptSpec) -> None:
        """Completes the record of an attempt that was rebuilt from its processes."""
        async with self._store.lock(spec.id):
            await self._store.note(identified(self._store.record(spec.id), spec))

    async def mark_attached(self, attempt_id: str) -> None:
        """Records that the attempt is attached to its network, and has it know.
        Raises KernelRuntimeError, NetworkError.
        """
        async with self._store.lock(attempt_id):
            await self._connect(self._store.record(attempt_id))
            await self._store.note(replace(self._store.record(attempt_id), attached=True))

    async def authorize(self, attempt_id: str, keys: tuple[str, ...]) -> None:
        """Raises KernelRuntimeError: only native processes may serve SFTP."""
        raise KernelRuntimeError(f"attempt {attempt_id} has no SFTP server for {len(keys)} keys")

    async def start(self, attempt_id: str) -> None:
        """Releases the command; nothing to do unless it is held."""
        async with self._store.lock(attempt_id):
            record = self._store.record(attempt_id)
            if record.phase is not Phase.CREATED:
                return
            held, record = record, replace(record, phase=Phase.RUNNING, start_time=time.time())
            # Shown last: one that is reported to run is not held any more, whatever happens to this process.
            await self._store.save(record)
            try:
                await self._release(record)
            except BaseException:
                # It may have been released, and then its command may end before it is tried again.
                self._store.show(replace(held, start_time=record.start_time))
                raise
            self._store.show(record)
            self._warn_in_time(record)

    def _warn_in_time(self, record: Record) -> None:
        """Has an attempt that runs get the signal before its time limit."""
        if record.warning and record.phase is Phase.RUNNING and record.start_time is not None:
            pause = max(0.0, record.start_time + record.warn_after - time.time())
            self._tasks.spawn(self._warn(record.id, pause), f"warn {record.id}")

    async def _warn(self, attempt_id: str, pause: float) -> None:
        await asyncio.sleep(pause)
        if attempt_id not in self._store:
            return
        async with self._store.lock(attempt_id):
            record = self._store.record(attempt_id)
            if record.phase is Phase.RUNNING and record.init is not None:
                # Before: a later agent must not send it again.
                await self._store.note(replace(record, warning=0))
                await self._signal(attempt_id, record.init, delivery_of(record.warning))

    async def stop(self, attempt_id: str, grace: float) -> None:
        """Asks the command to end; after `grace` seconds it is due to be killed. One that is held is due at once."""
        async with self._store.lock(attempt_id):
            record = self._store.record(attempt_id)
            if record.phase in {Phase.WAITING, Phase.PULLING}:
                message = "it was stopped before it was created"
                await self._store.note(ended(record, Phase.EXITED, AttemptReason.STOPPED, message, time.time()))
                self._holdings.release(attempt_id)
                await self._cancel_create(attempt_id)
            if record.phase not in {Phase.CREATING, Phase.CREATED, Phase.RUNNING, Phase.STOPPING}:
                return
            if record.start_time is None:
                grace = 0.0
            self._store.kill_at[attempt_id] = self._clock() + grace
            await self._store.note(replace(record, phase=Phase.STOPPING, stop_grace=grace))
            if record.init is not None and grace > 0:
                # One that is paused would get it after its time.
                await self._resume(attempt_id, record.init)
                await self._signal(attempt_id, record.init, delivery_of(record.stop))
            if record.phase is Phase.CREATING:
                # Nothing of it was started yet, or it could not be.
                self._finish_soon(attempt_id)

    async def kill(self, attempt_id: str) -> None:
        """Ends all processes of the attempt."""
        # Before: what made a container removes its groups at once.
        await self._usage.measure(attempt_id)
        async with self._store.lock(attempt_id):
            record = self._store.record(attempt_id)
            await self._kill_paused(attempt_id, record.init)
            # Not before: it stays due when that fails.
            self._store.kill_at.pop(attempt_id, None)
            if record.init is not None and not record.phase.ended:
                self._killed.begin(attempt_id)
        self._store.changed()

    async def _kill_paused(self, attempt_id: str, init: Process | None) -> None:
        """Ends all processes, of a kernel that is paused as well: they end as soon as they run."""
        await self._kill(attempt_id, init)
        if init is not None:
            await self._resume(attempt_id, init)

    async def end(self, attempt_id: str, reason: str, message: str) -> None:
        """Kills an attempt, and records why."""
        if await self._store.give_reason(attempt_id, reason, message):
            await self.kill(attempt_id)

    async def remove(self, attempt_id: str) -> None:
        """Removes all traces of an ended attempt but the knowledge that it was."""
        async with self._store.lock(attempt_id):
            if not self._store.record(attempt_id).phase.ended:
                raise KernelRuntimeError(f"attempt {attempt_id} has not ended")
            await self._remove(attempt_id)
            await self._store.remove(attempt_id)

    async def close(self) -> None:
        """Releases all resources; kernels continue to run."""
        await self._tasks.close()
        self._watches.close()

    async def _look_after(self) -> None:
        """Begins what is done for attempts all the time."""
        # Before anything is reported: a kernel that is still paused is never said to run.
        await self._look_for_pauses()
        options = self._options
        pump, disk = built_path(options.cache_dir, PUMP), options.scratch_dir
        bounds = bounds_of(disk, options.work_size, options.work_files)

        def keep(what: str, part: Callable[[], Coroutine[Any, Any, object]]) -> None:
            self._tasks.keep(part, f"{what} ({self.name})")

        keep("the bound of outputs", lambda: self._store.bound_outputs(options.output_limit, pump))
        keep("late writing of records", self._store.write_late)
        keep("measuring of attempts", self._usage.run)
        keep("the watch on memory", self._watch_memory)
        keep("the watch on paused attempts", self._watch_pauses)
        keep("the watch on killed attempts", lambda: self._killed.watch(self._kill_again, self._store.show_unkillable))
        keep("the bound of work directories", lambda: DiskWatch(self, disk, bounds, self._conditions).run())

    async def _watch_memory(self) -> None:
        """Records what Linux kills for want of memory in attempts that run on; does not return."""
        while True:
            await asyncio.sleep(MEMORY_INTERVAL)
            for record in self._store:
                if record.init is None or record.start_time is None or record.phase.ended:
                    continue
                kills = await KERNELS.run(self._memory_kills, record)
                if kills > record.memory_kills:
                    await self._note_memory_kills(record.id, kills)

    async def _watch_pauses(self) -> None:
        """Shows which attempts something keeps from running; does not return."""
        while True:
            kernels = sum(not record.phase.ended for record in self._store)
            await asyncio.sleep(max(PAUSE_INTERVAL, kernels * PAUSE_INTERVAL_EACH))
            await self._look_for_pauses()

    async def _look_for_pauses(self) -> None:
        inits = {record.id: record.init for record in self._store if record.init and not record.phase.ended}
        self._store.show_pauses(await KERNELS.run(self._pauses, inits) if inits else {})

    def _pauses(self, inits: Mapping[str, Process]) -> Mapping[str, str]:
        return {attempt_id: why for attempt_id, init in inits.items() if (why := self._pause(init))}

    async def _note_memory_kills(self, attempt_id: str, kills: int) -> None:
        async with self._store.lock(attempt_id):
            if attempt_id in self._store and not (record := self._store.record(attempt_id)).phase.ended:
                await self._store.note(with_memory_kills(record, kills, time.time()))

    async def _kill_again(self, attempt_id: str) -> None:
        # Without the lock: what waits for the end may have it.
        if attempt_id in self._store:
            await self._kill_paused(attempt_id, self._store.record(attempt_id).init)

    async def _adopt(self, record: Record) -> None:
        """Takes one attempt over from a former process of this agent."""
        if record.phase.ended:
            return
        self._holdings.restore(record.id, record.holding)
        if record.boot_id == self._options.boot_id and record.phase is Phase.PULLING:
            self._store.show(replace(record, phase=Phase.WAITING))
            return
        if record.boot_id != self._options.boot_id or record.phase is Phase.CREATING:
            self._finish_soon(record.id)
            return
        if record.phase is Phase.STOPPING:
            self._store.kill_at[record.id] = self._clock() + record.stop_grace
        await self._repeat(record)
        self._take_over(record)

    async def _repeat(self, record: Record) -> None:
        """Does what the former process recorded, as it may have ended before it was done;
        a second time does no harm.
        """
        if record.phase is Phase.RUNNING:
            await self._release(record)
        elif record.phase is Phase.CREATED and record.attached:
            await self._connect(record)

    def _take_over(self, record: Record) -> None:
        """Waits for the end of an attempt that is held or runs."""
        self._usage.begin(record.id, self._groups(record))
        self._watch(record)
        self._protect(record)
        self._warn_in_time(record)

    def _watch(self, record: Record) -> None:
        """Waits for the end of the attempt: of its watching process or, when that is gone too early, of its init."""
        for process in (record.monitor, record.init):
            if process is not None and self._watches.begin(record.id, process):
                return
            if self._command_has_ended(record.id):
                break
        if record.phase is Phase.STOPPING and self._clock() < self._store.kill_at.get(record.id, 0.0):
            # What the command has started has that time, too.
            for process in self._left_by_command(record):
                if self._watches.begin(record.id, process):
                    return
        self._finish_soon(record.id)

    def _left_by_command(self, record: Record) -> Sequence[Process]:
        """Returns what is left of a command that has ended before what it has started."""
        del record
        return ()

    def _command_has_ended(self, attempt_id: str) -> bool:
        """Returns whether the watching process said so: what else is left does not count."""
        del attempt_id
        return False

    def _ended(self, attempt_id: str) -> None:
        self._watch(self._store.record(attempt_id))

    def _finish_soon(self, attempt_id: str, failure: KernelStartError | None = None) -> None:
        # Not waited for: processes that do not end must not keep the agent from starting.
        self._tasks.spawn(self._finish_surely(attempt_id, failure), f"finish {attempt_id}")

    async def _finish_surely(self, attempt_id: str, failure: KernelStartError | None) -> None:
        while True:
            try:
                await cancellable(self._measure_and_finish, attempt_id, failure)
            except UnrequestedCancellationError as error:
                # Nothing else would notice before the agent starts again that the attempt has ended.
                _log.info("the end of attempt %s is tried again: %s", attempt_id, error)
                await asyncio.sleep(RETRY)
            else:
                return

    async def _measure_and_finish(self, attempt_id: str, failure: KernelStartError | None) -> None:
        # First: what made a container removes its groups.
        await self._usage.measure(attempt_id)
        await self._finish(attempt_id, failure)

    async def _finish(self, attempt_id: str, failure: KernelStartError | None = None) -> None:
        """Records the end of an attempt, once nothing of it is left; tries until that is done."""
        while True:
            async with self._store.lock(attempt_id):
                if attempt_id not in self._store:
                    self._end_of_failures(attempt_id)
                    return
                if await self._try_finish(attempt_id, failure):
                    return
            await asyncio.sleep(RETRY)

    async def _fail(self, attempt_id: str, failure: KernelStartError) -> None:
        """Records that an attempt could not be created; what cannot be done now is done soon. Its lock is held."""
        _log.warning("attempt %s could not be created: %s", attempt_id, failure)
        if not await self._try_finish(attempt_id, failure):
            self._finish_soon(attempt_id, failure)

    async def _try_finish(self, attempt_id: str, failure: KernelStartError | None) -> bool:
        """Ends what is left and records it; False when that has to be tried again. The attempt's lock is held."""
        record = self._store.record(attempt_id)
        if record.phase.ended:
            return True
        rebooted = record.boot_id != self._options.boot_id
        try:
            # After a restart of the node, the numbers belong to other processes.
            evidence = await self._end(record, None if rebooted else record.init)
            if evidence is None:
                self._killed.begin(attempt_id)
                # The condition UNKILLABLE is about those.
                self._fail_to_end(attempt_id, _STILL_THERE)
                return False
            await self._record_end(record, evidence, rebooted, failure)
        except (KernelRuntimeError, OSError) as error:
            self._fail_to_end(attempt_id, error)
            return False
        self._end_of_failures(attempt_id)
        if self._store.record(attempt_id).reason == DISK_EXCEEDED:
            # Not only once a manager, which may be away, has it removed.
            with contextlib.suppress(KernelRuntimeError, OSError):
                await self._empty(attempt_id)
        return True

    def _fail_to_end(self, attempt_id: str, error: object) -> None:
        ending = self._ends.get(attempt_id)
        if ending is None:
            ending = self._ends[attempt_id] = Retrying(f"the end of attempt {attempt_id} cannot be recorded", _log)
        ending.fail(error)
        self._show_ends()

    def _end_of_failures(self, attempt_id: str) -> None:
        if (ending := self._ends.pop(attempt_id, None)) is not None:
            ending.succeed()
            self._show_ends()

    def _show_ends(self) -> None:
        """Has the node's condition say which ends are not recorded."""
        failing = [ending for ending in self._ends.values() if ending.retries and ending.retries.error != _STILL_THERE]
        texts = sorted(ending.text for ending in failing)
        more = f"; and {len(texts) - 1} more" if len(texts) > 1 else ""
        self._conditions.update(
            AgentConditionType.OTHER, f"{texts[0]}{more}" if texts else "", AgentConditionReason.END_NOT_RECORDED
        )

    async def _record_end(
        self, record: Record, evidence: ExitEvidence, rebooted: bool, failure: KernelStartError | None
    ) -> None:
        self._store.kill_at.pop(record.id, None)
        fenced = await in_thread(was_ended, self._options.state_dir, record.id)
        if record.start_time is None:
            # What is held has no command that could have exited.
            evidence = replace(evidence, exit_code=None)
        if failure is not None:
            record = replace(record, reason=failure.reason, message=str(failure))
        phase, reason, message = exit_reason(record, evidence, rebooted=rebooted, fenced=fenced)
        output = self._store.output(record.id)
        await in_thread(output.drain)
        if phase is Phase.FAILED and (said := await in_thread(output.tail, TAIL)):
            message = f"{message}: {said}"
        # Times of files are coarse; an end never lies before its start.
        when = time.time() if evidence.end_time is None else max(evidence.end_time, record.start_time or 0.0)
        usage = self._usage.take(record.id)
        kills = max(record.memory_kills, evidence.memory_kills or 0, 1 if evidence.out_of_memory else 0)
        record = with_memory_kills(record, kills, when)
        record = replace(
            record,
            exit_code=evidence.exit_code,
            log_size=output.size(),
            monitor=None,
            init=None,
            usage=None if record.start_time is None else usage,
        )
        await self._store.note(ended(record, phase, reason, message, when))
        self._killed.end(record.id)
        self._holdings.release(record.id)
