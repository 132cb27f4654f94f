"""The backend for containers: each kernel is a container of a Docker engine on this node, held at a start barrier by its first process.

Whatever is done is recorded before it is done, and a container's name is its attempt's, so that neither a restarted agent
nor a lost answer of the engine starts an attempt twice. The end of a kernel is noticed by a file descriptor of its first
process, engine or not; what came of it is asked of the engine, which keeps the container until the attempt is removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import TYPE_CHECKING, TypeVar

from retinue.agent.attempts import Phase
from retinue.agent.conditions import Conditions
from retinue.agent.docker.containers import (
    DockerKernels,
    DockerOptions,
    area_of,
    boot_time,
    memory_was_used_up,
    open_barrier,
    start_server,
)
from retinue.agent.docker.engine import Engine, EngineError, Written
from retinue.agent.docker.engine_watch import watch_engine
from retinue.agent.docker.image_defaults import fitted
from retinue.agent.docker.images import ImageError, Images
from retinue.agent.docker.recovery import from_copy, from_engine, placeholder
from retinue.agent.errors import BackendError, NotRunningError
from retinue.agent.fencing.watchdog import was_ended
from retinue.agent.host.cgroups import memory_group, out_of_memory_kills
from retinue.agent.host.lanes import KERNELS
from retinue.agent.host.processes import send_signal
from retinue.agent.inside.exec_session import BUFFER, DockerStream, Wire
from retinue.agent.inside.host_kernel import HostKernel
from retinue.agent.kernel.build import PUMP, BuildError, built_path
from retinue.agent.process.sandboxes import KernelError
from retinue.agent.process.seccomp import FilterError
from retinue.agent.reasons import AttemptReason, ConditionReason
from retinue.agent.resources.core.allocation import AllocationError
from retinue.agent.resources.core.holdings import Holdings
from retinue.agent.runtime.attempt_records import COPIES, Record, Records, ended, identified
from retinue.agent.runtime.attempt_store import AttemptStore
from retinue.agent.runtime.disk_use import DISK_EXCEEDED, DiskWatch, bounds_of, upper_layer
from retinue.agent.runtime.exit_reason import verdict
from retinue.agent.runtime.exit_watch import Watches
from retinue.agent.runtime.killed import Killed
from retinue.agent.runtime.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from retinue.agent.attempts import AttemptSpec, Layer, ObservedAttempt
    from retinue.agent.docker.engine import ContainerState
    from retinue.agent.docker.images import Image
    from retinue.agent.host.processes import Process
    from retinue.agent.inside.log_file import Output
    from retinue.agent.runtime.disk_use import Area
    from retinue.agent.runtime.kernel import Kernel
    from retinue.agent.state.damaged import DamagedFiles
    from retinue.agent.state.disk import Disk

log = logging.getLogger(__name__)

DIRECTORY = "docker"
"""Name of the directory for records, beneath that of the agent's state."""
SPARE_THREADS = 4
"""Threads for requests to the engine other than starts."""
ENTERING_THREADS = 8
"""Threads that open attached commands. Programs inside decide how long that takes; it must delay neither starts nor ends."""
OPEN_TIMEOUT = 5.0
"""Seconds that an agent's start waits for an engine; native processes need none."""
RETRY = 1.0
"""Seconds before the engine, or the disk, is tried again."""
TAIL = 2_000
"""Bytes of output in the message of an attempt that could not be created."""
ATTACHED_TIMEOUT, ATTACHED_POLL = 10.0, 0.2
"""Seconds that what a user attached may take to end, and between two looks."""
KILLED = 137
START_FAILED = AttemptReason.START_FAILED
NO_DEVICE = AttemptReason.DEVICE_MISSING
UNFORESEEN = "it could not be started; the agent's log says more"
OUT_OF_MEMORY_DELAY = 0.1
"""Seconds between the event of an end and that of its cause, which travel apart inside the engine."""

Result = TypeVar("Result")


class DockerRuntime:
    """Runs attempts as containers; a Runtime."""

    name = "docker"

    def __init__(
        self,
        options: DockerOptions,
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
        self._store = AttemptStore(Records(options.state_dir / DIRECTORY / "attempts", damaged, disk))
        self._engine = Engine(options.host)
        self._images = Images(self._engine, options.registry_config, options.registry_addresses)
        self._fetches: dict[str, asyncio.Task[None]] = {}
        self._node: DockerKernels | None = None
        self._trouble = "the Docker engine was not asked yet"
        self._prepared = asyncio.Event()
        # Attempts whose record is lost, and of which the engine has to be asked.
        self._lost: dict[str, Record | None] = {}
        self._killed = Killed(self._conditions, ConditionReason.DOCKER)
        self._watches = Watches(self._ended)
        self._tasks = Tasks()
        self._pool = ThreadPoolExecutor(options.starts + SPARE_THREADS, "docker")
        self._entering = ThreadPoolExecutor(ENTERING_THREADS, "docker-attach")
        self._starts = asyncio.Semaphore(options.starts)

    @property
    def available(self) -> bool:
        """Returns whether the engine has answered, and all of its containers of this agent are known."""
        return self._prepared.is_set()

    def knows(self, attempt_id: str) -> bool:
        """Returns whether there is a record of the attempt."""
        return attempt_id in self._store

    async def open(self, listener: Callable[[], None]) -> None:
        """Takes over what a former process of this agent left, as far as the engine answers; the rest once it does."""
        lost = await self._store.open(listener)
        for attempt_id, copy in lost.items():
            place, boot_id, record = self._store.place(attempt_id), self._options.boot_id, None
            if copy is not None:
                record = await asyncio.to_thread(from_copy, copy, boot_id, place, time.time())
            if record is not None:
                log.error("the record of attempt %s was lost and is rebuilt from its copy", attempt_id)
                await self._store.restore(record)
            else:
                self._lost[attempt_id] = copy
                self._store.show(placeholder(attempt_id, boot_id, copy))
        for record in self._store:
            if record.id not in self._lost:
                self._adopt(record)
        tried = asyncio.Event()
        self._tasks.spawn(self._prepare_always(tried), "watch the Docker engine")
        self._tasks.spawn(
            self._store.bound_outputs(self._options.output_limit, built_path(self._options.cache_dir, PUMP)),
            "bound outputs",
        )
        self._tasks.spawn(self._store.write_late(), "write records late")
        self._tasks.spawn(self._killed.watch(self._kill_again, self._store.show_unkillable), "watch killed attempts")
        options = self._options
        options.scratch_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        bounds = bounds_of(options.scratch_dir, options.work_size, options.work_files)
        self._tasks.spawn(DiskWatch(self, options.scratch_dir, bounds).run(), "bound work directories")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(OPEN_TIMEOUT):
                await tried.wait()

    async def close(self) -> None:
        """Releases all resources; kernels continue to run."""
        await self._tasks.close()
        await self._images.close()
        self._watches.close()
        for pool in (self._pool, self._entering):
            pool.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._engine.close)

    def observe(self) -> Mapping[str, ObservedAttempt]:
        """Returns all attempts there is a record of, by id."""
        return self._store.observed()

    def output(self, attempt_id: str) -> Output:
        """Returns the output of the attempt. Raises UnknownAttemptError."""
        return self._store.output(attempt_id)

    def kernel(self, attempt_id: str) -> Kernel:
        """Returns access to what runs of an attempt, as it is now. Raises UnknownAttemptError."""
        running = self._store.record(attempt_id).phase is Phase.RUNNING
        work = self._options.scratch_dir / attempt_id if running else None
        return HostKernel(attempt_id, self._store.first_process(attempt_id), work, lambda: self._exec(attempt_id))

    async def _exec(self, attempt_id: str) -> Wire:
        if self._store.record(attempt_id).phase is not Phase.RUNNING:
            raise NotRunningError(f"attempt {attempt_id} does not run")
        kernels = self._kernels
        loop = asyncio.get_running_loop()
        opening = asyncio.ensure_future(loop.run_in_executor(self._entering, kernels.attach, attempt_id))
        try:
            entry = await asyncio.shield(opening)
        except asyncio.CancelledError:
            # A thread cannot be stopped: what it opens is closed, which ends what runs at the other end.
            await asyncio.wait((opening,))
            if opening.exception() is None and (late := opening.result()) is not None:
                late[1].close()
                self._tasks.spawn(self._end_attached(late[0]), "end of an attached command")
            raise
        if entry is None:
            raise NotRunningError("the kernel has ended")
        execution, connection = entry
        reader, writer = await asyncio.open_connection(sock=connection, limit=BUFFER)
        return Wire(DockerStream(reader), writer, lambda: self._end_attached(execution), {})

    async def _end_attached(self, execution: str) -> None:
        """Returns when nothing is left of a helper whose connection is closed, or when that cannot be found out."""
        kernels = self._kernels
        with contextlib.suppress(TimeoutError, BackendError):
            async with asyncio.timeout(ATTACHED_TIMEOUT):
                # The engine sends no event when what it has executed ends.
                while not await self._run(lambda: kernels.end_attached(execution)):  # noqa: ASYNC110
                    await asyncio.sleep(ATTACHED_POLL)

    async def prepare(self, spec: AttemptSpec, hosts: str) -> None:
        """Creates the attempt and holds it at its start barrier; what cannot be created is recorded as FAILED.

        Returns at once when its image has to be fetched: it is PULLING then, and continues by itself.
        """
        if spec.id in self._store and self._store.record(spec.id).phase is not Phase.WAITING:
            return
        if self._store.was_removed(spec.id):
            await self.decline(
                spec, Phase.FAILED, AttemptReason.ALREADY_REMOVED, "the attempt was here before, and was removed"
            )
            return
        if not self.available:
            # Without an engine, not even a record is made.
            raise BackendError(self._trouble)
        image = await self._images.find(spec.image, spec.image_identity)
        async with self._store.lock(spec.id):
            if spec.id in self._store:
                # A former process of this agent was about to fetch its image; nothing was started.
                if (record := self._store.record(spec.id)).phase is not Phase.WAITING:
                    return
                self._store.show(replace(record, phase=Phase.PULLING))
            else:
                record = replace(Record.of(spec, self._options.boot_id), phase=Phase.PULLING)
                if not await self._store.add(record, lasting=image is None):
                    return
            if image is not None:
                await self._start(spec, hosts, image)
                return
        task = self._tasks.spawn(self._fetch_and_start(spec, hosts), f"fetch the image of {spec.id}")
        self._fetches[spec.id] = task
        task.add_done_callback(lambda _task: self._fetches.pop(spec.id, None))

    async def _fetch_and_start(self, spec: AttemptSpec, hosts: str) -> None:
        """Fetches the image of an attempt and starts the attempt, unless it is stopped meanwhile."""

        def tell(layers: tuple[Layer, ...]) -> None:
            self._store.layers[spec.id] = layers
            self._store.changed()

        failure: tuple[str, str] | None = None
        try:
            image = await self._images.fetch(spec.image, spec.image_identity, tell)
        except ImageError as error:
            failure = error.reason, str(error)
        except EngineError as error:
            failure = START_FAILED, str(error)
        except Exception:
            # No other task would end the attempt.
            log.exception("the image of attempt %s cannot be fetched", spec.id)
            failure = START_FAILED, UNFORESEEN
        finally:
            self._store.layers.pop(spec.id, None)
        async with self._store.lock(spec.id):
            if self._store.record(spec.id).phase is not Phase.PULLING:
                return
            if failure is not None:
                await self._fail(spec.id, failure)
            else:
                await self._start(spec, hosts, image)

    async def _start(self, spec: AttemptSpec, hosts: str, image: Image) -> None:
        """Starts an attempt whose image is on the node; its lock is held."""
        kernels = self._kernels
        try:
            spec, facts = fitted(spec, image)
            # From here on, another agent process must not start it again.
            holding = self._holdings.take(spec.id, spec.slots)
            record = replace(
                self._store.record(spec.id),
                phase=Phase.CREATING,
                image=facts,
                cores=holding.cores,
                gpus=holding.gpus,
            )
            await self._store.write(record)
            async with self._starts:
                place = self._store.place(spec.id)
                # The disk is written while the engine works: nothing is released before, and after a crash of the node the container's
                # own name and labels say that it was there.
                lasting = asyncio.ensure_future(self._store.make_lasting(spec.id))
                try:
                    init = await self._run(lambda: kernels.start(spec, hosts, image, holding, place))
                finally:
                    await lasting
            record = replace(record, phase=Phase.CREATED, init=init, memory_group=str(memory_group(init.pid) or ""))
            # A later agent could not reach a kernel that is not recorded.
            await self._store.write(record)
        except ImageError as error:
            await self._fail(spec.id, (error.reason, str(error)))
        except AllocationError as error:
            await self._fail(spec.id, (NO_DEVICE, str(error)))
        except (KernelError, EngineError, OSError) as error:
            log.warning("attempt %s could not be started: %s", spec.id, error)
            message = f"it could not be started: {error}"
            reason = error.reason if isinstance(error, KernelError) else ""
            self._store.show(replace(self._store.record(spec.id), reason=reason, message=message))
            await self._fail(spec.id)
        except Exception:
            # It would be held in its phase: no other task would end it.
            log.exception("attempt %s could not be started", spec.id)
            self._store.show(replace(self._store.record(spec.id), message=UNFORESEEN))
            await self._fail(spec.id)
        else:
            self._watch(record)

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
        """Records that the attempt has its place in the network."""
        async with self._store.lock(attempt_id):
            await self._store.note(replace(self._store.record(attempt_id), attached=True))
            await asyncio.to_thread(start_server, self._store.place(attempt_id), self._store.record(attempt_id).init)

    async def start(self, attempt_id: str) -> None:
        """Lets the command go; nothing to do unless it is held."""
        async with self._store.lock(attempt_id):
            record = self._store.record(attempt_id)
            if record.phase is not Phase.CREATED:
                return
            await self._store.write(replace(record, phase=Phase.RUNNING, start_time=time.time()))
            await asyncio.to_thread(open_barrier, self._store.place(attempt_id), record.init)

    async def stop(self, attempt_id: str, grace: float) -> None:
        """Asks the command to end; after `grace` seconds it is due to be killed. One that is held is due at once."""
        async with self._store.lock(attempt_id):
            record = self._store.record(attempt_id)
            if record.phase in {Phase.WAITING, Phase.PULLING}:
                message = "it was stopped before it was created"
                await self._store.note(ended(record, Phase.EXITED, AttemptReason.STOPPED, message, time.time()))
                self._holdings.release(attempt_id)
                if (fetch := self._fetches.get(attempt_id)) is not None:
                    fetch.cancel()
            if record.phase not in {Phase.CREATED, Phase.RUNNING, Phase.STOPPING}:
                return
            if record.start_time is None:
                grace = 0.0
            self._store.kill_at[attempt_id] = self._clock() + grace
            await self._store.note(replace(record, phase=Phase.STOPPING, stop_grace=grace))
            # Its first process passes it on to the command.
            if record.init is not None and grace > 0:
                await KERNELS.run(send_signal, record.init, SIGTERM)

    async def kill(self, attempt_id: str) -> None:
        """Ends all processes of the attempt."""
        async with self._store.lock(attempt_id):
            record = self._store.record(attempt_id)
            self._store.kill_at.pop(attempt_id, None)
            # Everything in a container ends with its first process; the engine is not needed for it.
            if record.init is not None:
                await KERNELS.run(send_signal, record.init, SIGKILL)
                if not record.phase.ended:
                    self._killed.begin(attempt_id)
        self._store.changed()

    async def _kill_again(self, attempt_id: str) -> None:
        if (init := self._store.first_process(attempt_id)) is not None:
            await KERNELS.run(send_signal, init, SIGKILL)

    async def areas(self) -> Mapping[str, Area]:
        """Returns the disk areas of running attempts, by id: work directory, what is written over the image, and volumes."""
        running = [record for record in self._store if record.init is not None]
        uppers = {
            record.id: await asyncio.to_thread(upper_layer, record.init.pid)
            for record in running
            if record.init is not None
        }
        written: Mapping[str, Written] = {}
        if running:
            # For the engine it is much work to look at what it can say only.
            sizes = None in uppers.values()
            with contextlib.suppress(BackendError):
                written = await self._run(lambda: self._engine.written(self._options.agent_id, sizes=sizes))
        works = self._options.scratch_dir
        return {
            record.id: await asyncio.to_thread(
                area_of, record, works / record.id, uppers[record.id], written.get(record.id, Written())
            )
            for record in running
        }

    async def end(self, attempt_id: str, reason: str, message: str) -> None:
        """Kills an attempt, and records why."""
        if await self._store.give_reason(attempt_id, reason, message):
            await self.kill(attempt_id)

    async def remove(self, attempt_id: str) -> None:
        """Removes all traces of an ended attempt but the knowledge that it was."""
        kernels = self._kernels
        async with self._store.lock(attempt_id):
            if not self._store.record(attempt_id).phase.ended:
                raise BackendError(f"attempt {attempt_id} has not ended")
            await self._run(lambda: kernels.remove(attempt_id))
            await self._store.remove(attempt_id)

    async def _prepare(self) -> bool:
        """Makes the backend ready to create; False when that has to be tried again."""
        try:
            node = await self._run(lambda: DockerKernels(self._options, self._engine))
            known = await self._run(node.attempts)
            for attempt_id in sorted((known - {record.id for record in self._store}) | self._lost.keys()):
                await self._recover(node, attempt_id)
            if foreign := await self._run(node.foreign):
                log.warning("containers with the labels of this agent are not its own: %s", ", ".join(foreign))
        except (BackendError, BuildError, FilterError, OSError) as error:
            if str(error) != self._trouble:
                log.warning("containers cannot be created: %s", error)
            self._trouble = str(error)
            return False
        self._node = node
        self._prepared.set()
        self._store.changed()
        return True

    async def _prepare_always(self, tried: asyncio.Event) -> None:
        while not await self._prepare():
            tried.set()
            await asyncio.sleep(RETRY)
        tried.set()
        await watch_engine(self._engine, self._conditions)

    def _adopt(self, record: Record) -> None:
        """Takes one attempt over from a former process of this agent; the engine is not asked."""
        if record.phase.ended:
            return
        self._holdings.restore(record.id, record.holding)
        if record.boot_id == self._options.boot_id and record.phase is Phase.PULLING:
            self._store.show(replace(record, phase=Phase.WAITING))
            return
        if record.boot_id != self._options.boot_id or record.phase is Phase.CREATING:
            self._tasks.spawn(self._finish(record.id), f"finish {record.id}")
            return
        if record.phase is Phase.STOPPING:
            self._store.kill_at[record.id] = self._clock() + record.stop_grace
        # The former process may have ended between recording something and doing it; a second time does no harm.
        if record.phase is Phase.CREATED and record.attached:
            start_server(self._store.place(record.id), record.init)
        if record.phase is Phase.RUNNING:
            open_barrier(self._store.place(record.id), record.init)
        self._watch(record)

    async def _recover(self, node: DockerKernels, attempt_id: str) -> None:
        """Makes a record of an attempt that has none, from its container. Raises EngineError."""
        log.error("the record of attempt %s was lost and is rebuilt from its container", attempt_id)
        state = await self._run(lambda: node.find(attempt_id))
        place, boot_id, copy = self._store.place(attempt_id), self._options.boot_id, self._lost.get(attempt_id)
        record = await asyncio.to_thread(from_engine, attempt_id, boot_id, copy, state, place, time.time())
        await self._store.restore(record)
        self._lost.pop(attempt_id, None)
        self._adopt(record)

    def _watch(self, record: Record) -> None:
        """Waits for the end of the attempt's first process."""
        if record.init is None or not self._watches.begin(record.id, record.init):
            self._ended(record.id)

    def _ended(self, attempt_id: str) -> None:
        self._tasks.spawn(self._finish(attempt_id), f"finish {attempt_id}")

    async def _finish(self, attempt_id: str, failure: tuple[str, str] | None = None) -> None:
        """Records the end of an attempt, once nothing of it is left; tries until that is done."""
        await self._look_at_memory(attempt_id)
        await self._prepared.wait()
        while True:
            async with self._store.lock(attempt_id):
                if await self._try_finish(attempt_id, failure):
                    if self._store.record(attempt_id).reason == DISK_EXCEEDED:
                        # Not only once a manager, which may be away, has it removed.
                        with contextlib.suppress(BackendError, OSError):
                            await self._run(lambda: self._kernels.empty(attempt_id))
                    return
            await asyncio.sleep(RETRY)

    async def _look_at_memory(self, attempt_id: str) -> None:
        """Records that memory was used up: the engine misses it while it is down, and its return removes the group."""
        async with self._store.lock(attempt_id):
            record = self._store.record(attempt_id)
            if not record.memory_group:
                return
            killed = await asyncio.to_thread(out_of_memory_kills, Path(record.memory_group))
            if killed:
                with contextlib.suppress(OSError):
                    await self._store.write(replace(record, out_of_memory=True))

    async def _fail(self, attempt_id: str, failure: tuple[str, str] | None = None) -> None:
        """Records that an attempt could not be created; what cannot be done now is done in the background."""
        if not await self._try_finish(attempt_id, failure):
            self._tasks.spawn(self._finish(attempt_id, failure), f"finish {attempt_id}")

    async def _try_finish(self, attempt_id: str, failure: tuple[str, str] | None) -> bool:
        """Ends what is left and records it; False when that has to be tried again. `failure` is reason and message."""
        record = self._store.record(attempt_id)
        rebooted = record.boot_id != self._options.boot_id
        try:
            # After a restart of the node, the numbers belong to other processes.
            state = await self._end(record, None if rebooted else record.init)
            await self._record_end(record, state, rebooted, failure)
        except (BackendError, OSError) as error:
            log.warning("the end of attempt %s cannot be recorded: %s", attempt_id, error)
            return False
        return True

    async def _end(self, record: Record, init: Process | None) -> ContainerState | None:
        kernels = self._kernels
        state = await self._run(lambda: kernels.end(record.id, init))
        killed = state is not None and state.exit_code == KILLED and not state.out_of_memory
        if killed and record.phase is Phase.RUNNING:
            await asyncio.sleep(OUT_OF_MEMORY_DELAY)
            state = await self._run(lambda: kernels.end(record.id, init))
        return state

    async def _record_end(
        self, record: Record, state: ContainerState | None, rebooted: bool, failure: tuple[str, str] | None
    ) -> None:
        self._store.kill_at.pop(record.id, None)
        code, when, out_of_memory = None, time.time(), False
        if state is not None and state.end_time is not None and record.start_time is not None:
            when = max(state.end_time, record.start_time)
            out_of_memory = state.out_of_memory or record.out_of_memory
            out_of_memory = out_of_memory or await asyncio.to_thread(memory_was_used_up, self._store.place(record.id))
            # The engine reports attempts that a restart of the node ended as ended when it came up; their exit code means nothing.
            if not rebooted or state.end_time < await asyncio.to_thread(boot_time):
                code = state.exit_code
        fenced = await asyncio.to_thread(was_ended, self._options.state_dir, record.id)
        phase, reason, message = verdict(record, code, out_of_memory, rebooted, fenced)
        if failure is not None:
            phase, (reason, message) = Phase.FAILED, failure
        output = self._store.output(record.id)
        await asyncio.to_thread(output.drain)
        if phase is Phase.FAILED and (said := await asyncio.to_thread(output.tail, TAIL)):
            message = f"{message}: {said}"
        record = replace(record, exit_code=code, log_size=output.size(), init=None)
        await self._store.note(ended(record, phase, reason, message, when))
        self._killed.end(record.id)
        self._holdings.release(record.id)

    @property
    def _kernels(self) -> DockerKernels:
        if self._node is None:
            raise BackendError(self._trouble)
        return self._node

    async def _run(self, action: Callable[[], Result]) -> Result:
        """Runs something that asks the engine in a thread; few at a time, and none of the threads that others need."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, action)


def has_records(state_dir: Path) -> bool:
    """Returns whether an agent with that directory ever had attempts as containers. Blocks."""
    attempts = state_dir / DIRECTORY / "attempts"
    directories = (attempts, attempts.with_name(attempts.name + COPIES))
    return any(directory.is_dir() and any(directory.iterdir()) for directory in directories)
