"""The runtime for containers: each kernel is a container of a Docker engine on this node,
held at a start barrier by its first process.

Whatever is done is recorded before it is done, and a container's name is its attempt's, so that neither a restarted
agent nor a lost answer of the engine starts an attempt twice. The end of a kernel is noticed by a file descriptor of
its first process, engine or not; what came of it is asked of the engine,
which keeps the container until the attempt is removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from retinue.agent.attempts import Phase
from retinue.agent.docker import fetched_images
from retinue.agent.docker.attached import attach
from retinue.agent.docker.barrier import memory_kills, outcome, stopped_by
from retinue.agent.docker.container_runtime import ContainerRuntime
from retinue.agent.docker.containers import DockerKernels
from retinue.agent.docker.core.container_spec import container_name
from retinue.agent.docker.core.container_state import Written
from retinue.agent.docker.engine import Engine, EngineError, watch_engine
from retinue.agent.docker.fetched_images import on_host
from retinue.agent.docker.images import Images
from retinue.agent.docker.kernel_files import boot_time, footprint_of
from retinue.agent.docker.options import DockerOptions
from retinue.agent.docker.starting import Starts
from retinue.agent.errors import KernelRuntimeError
from retinue.agent.host.freezer import is_frozen
from retinue.agent.host.lanes import KERNELS, in_thread
from retinue.agent.host.seccomp import FilterError
from retinue.agent.kernel.build import BuildError
from retinue.agent.runtime.attempt_records import COPIES, Record
from retinue.agent.runtime.attempt_runtime import RETRY
from retinue.agent.runtime.contract import RuntimeStatus
from retinue.agent.runtime.disk_use import slot_bounds, upper_layer
from retinue.agent.runtime.exit_reason import KILLED, OUT_OF_MEMORY, ExitEvidence
from retinue.rpc.core.reasons import AgentConditionReason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from retinue.agent.attempts import AttemptSpec
    from retinue.agent.docker.core.container_state import ContainerState
    from retinue.agent.errors import KernelStartError
    from retinue.agent.host.processes import Process
    from retinue.agent.inside.exec_session import ExecStream
    from retinue.agent.runtime.disk_use import DiskFootprint
    from retinue.agent.runtime.options import Shared

_log = logging.getLogger(__name__)

DIRECTORY = "docker"
"""Name of the directory for records, beneath that of the agent's state."""
OPEN_TIMEOUT = 5.0
"""Seconds that an agent's start waits for an engine; native processes need none."""

RESUME_TIMEOUT = 5.0
"""Seconds that the engine may take to resume a container; what waits for that has the attempt's lock."""
OUT_OF_MEMORY_DELAY = 0.1
"""Seconds between the event of an end and that of its cause, which travel apart inside the engine."""


class DockerRuntime(ContainerRuntime[DockerOptions]):
    """Runs attempts as containers; a Runtime."""

    name = "docker"
    directory = DIRECTORY
    condition = AgentConditionReason.DOCKER

    def __init__(self, options: DockerOptions, shared: Shared | None = None) -> None:
        """Touches nothing before `open`."""
        super().__init__(options, shared)
        self._engine = Engine(options.host)
        self._disk = None if shared is None else shared.disk
        self._images = Images(self._engine, options.registry_config, options.registry_addresses, options.fetched_images)
        self._kernels = DockerKernels(options, self._engine, self._conditions)
        self._trouble = "the Docker engine was not asked yet"
        # Nothing is asked of the engine before.
        self._prepared = asyncio.Event()
        self._starts = Starts(
            options,
            self._kernels,
            self._store,
            self._images,
            self._holdings,
            self._tasks,
            created=self._take_over,
            fail=self._fail,
        )

    @property
    def available(self) -> bool:
        """Returns whether the engine has answered, and all of its containers of this agent are known."""
        return self._prepared.is_set()

    @property
    def statuses(self) -> tuple[RuntimeStatus, ...]:
        """Returns whether attempts can be created now."""
        return (RuntimeStatus(self.name, self.available, "" if self.available else self._trouble),)

    async def open(self, listener: Callable[[], None]) -> None:
        """Takes over what a former process of this agent left, as far as the engine answers; the rest once it does."""
        await self._take_over_records(listener)
        tried = asyncio.Event()
        self._tasks.keep(lambda: self._prepare_always(tried), "the watch on the Docker engine")
        self._tasks.keep(self._watch_images, "the watch on the disk of images")
        self._options.scratch_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        await self._look_after()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(OPEN_TIMEOUT):
                await tried.wait()

    async def close(self) -> None:
        """Releases all resources; kernels continue to run."""
        await super().close()
        await self._images.close()
        await self._engine.close()

    async def _enter(self, record: Record) -> ExecStream:
        return await attach(self._engine, record.id, record.init, self._tasks)

    def _refusal(self, spec: AttemptSpec) -> tuple[str, str] | None:
        """Refuses nothing: what an image needs is known once it is there."""

    async def _create(self, spec: AttemptSpec, hosts: str) -> None:
        if not self.available:
            # Without an engine, not even a record is made.
            raise KernelRuntimeError(self._trouble)
        await self._starts.prepare(spec, hosts)

    async def _cancel_create(self, attempt_id: str) -> None:
        self._starts.cancel_fetch(attempt_id)

    async def _finish(self, attempt_id: str, failure: KernelStartError | None = None) -> None:
        await self._look_at_memory(attempt_id)
        await self._prepared.wait()
        await super()._finish(attempt_id, failure)

    async def _resume(self, attempt_id: str, init: Process) -> None:
        await super()._resume(attempt_id, init)
        if await KERNELS.run(is_frozen, init):
            # Control groups may be closed to the agent.
            with contextlib.suppress(KernelRuntimeError):
                await self._engine.resume(container_name(attempt_id), RESUME_TIMEOUT)

    async def _end(self, record: Record, init: Process | None) -> ExitEvidence:
        rebooted = record.boot_id != self._options.boot_id
        return await _end(self._kernels, record, init, self._store.directory(record.id), rebooted=rebooted)

    async def _empty(self, attempt_id: str) -> None:
        await self._kernels.empty(attempt_id)

    async def _remove(self, attempt_id: str) -> None:
        await self._kernels.remove(attempt_id)

    async def footprints(self) -> Mapping[str, DiskFootprint]:
        """Returns the disk footprints of running attempts, by id: work directory, what is written over the image,
        and volumes.
        """
        running = [record for record in self._store if record.init is not None]
        uppers = {
            record.id: await in_thread(upper_layer, record.init.pid) for record in running if record.init is not None
        }
        written: Mapping[str, Written] = {}
        if running:
            # For the engine it is much work to look at what it can say only.
            sizes = None in uppers.values()
            with contextlib.suppress(KernelRuntimeError):
                written = await self._engine.written(self._options.agent_id, sizes=sizes)
        works = self._options.scratch_dir
        return {
            record.id: await in_thread(
                footprint_of,
                record,
                slot_bounds(record.disk, self._options.work_files),
                works / record.id,
                uppers[record.id],
                written.get(record.id, Written()),
            )
            for record in running
        }

    async def _prepare(self) -> bool:
        """Makes the runtime ready to create; False when that has to be tried again."""
        try:
            await self._kernels.open()
            known, foreign = await self._engine.attempts(self._options.agent_id)
            for attempt_id in sorted((known - {record.id for record in self._store}) | self._lost.keys()):
                await self._recover(attempt_id)
            if foreign:
                _log.warning("containers with the labels of this agent are not its own: %s", ", ".join(foreign))
        except (KernelRuntimeError, BuildError, FilterError, OSError) as error:
            if str(error) != self._trouble:
                _log.warning("containers cannot be created: %s", error)
            self._trouble = str(error)
            return False
        self._prepared.set()
        self._store.changed()
        return True

    async def _prepare_always(self, tried: asyncio.Event) -> None:
        while not await self._prepare():
            tried.set()
            await asyncio.sleep(RETRY)
        tried.set()
        await watch_engine(self._engine, self._conditions)

    async def _watch_images(self) -> None:
        """Has the engine's disk watched, and images removed that nothing has used for long while it is nearly full."""
        await self._prepared.wait()
        while True:
            with contextlib.suppress(EngineError):
                names = await self._engine.data_directories()
                directories = {name: await in_thread(on_host, name) for name in names}
                if self._disk is not None:
                    self._disk.follow(directories)
                in_use = {record.image.identity.id for record in self._store if record.image is not None}
                options = self._options
                await options.fetched_images.remove_unused(
                    self._engine, directories.values(), in_use, options.image_removal
                )
            await asyncio.sleep(fetched_images.INTERVAL)

    async def _recover(self, attempt_id: str) -> None:
        """Makes a record of an attempt that has none, from its container. Raises EngineError."""
        _log.error("the record of attempt %s was lost and is rebuilt from its container", attempt_id)
        await self._rebuild(attempt_id, await self._kernels.find(attempt_id))


def has_records(state_dir: Path) -> bool:
    """Returns whether an agent with that directory ever had attempts as containers. Blocks."""
    attempts = state_dir / DIRECTORY / "attempts"
    directories = (attempts, attempts.with_name(attempts.name + COPIES))
    return any(directory.is_dir() and any(directory.iterdir()) for directory in directories)


async def _end(
    kernels: DockerKernels, record: Record, init: Process | None, directory: Path, *, rebooted: bool
) -> ExitEvidence:
    """Ends what is left of a container, and returns what that was; `directory` is the attempt's.
    Raises EngineError, OSError.
    """
    state = await _end_container(kernels, record, init)
    if record.start_time is None:
        return ExitEvidence()
    found, kills = await in_thread(outcome, directory), await in_thread(memory_kills, directory)
    used_up = record.out_of_memory or bool(kills) or (state is not None and state.out_of_memory)
    code: int | None = None
    end_time: float | None = None
    if found is not None:
        # Whatever has become of the container since: it may be gone, or have been started again.
        code, end_time = found.exit_code, found.end_time
    elif state is not None and state.end_time is not None:
        code, end_time = state.exit_code, state.end_time
        if rebooted and end_time >= await in_thread(boot_time):
            # The engine reports attempts that a restart of the node ended as ended when it came up;
            # their exit code means nothing.
            code = None
    stopped = await in_thread(stopped_by, directory, code)
    return ExitEvidence(code, end_time, OUT_OF_MEMORY if used_up else "", kills, stopped=stopped)


async def _end_container(kernels: DockerKernels, record: Record, init: Process | None) -> ContainerState | None:
    state = await kernels.end(record.id, init)
    killed = state is not None and state.exit_code == KILLED and not state.out_of_memory
    if killed and record.phase is Phase.RUNNING:
        await asyncio.sleep(OUT_OF_MEMORY_DELAY)
        state = await kernels.end(record.id, init)
    return state
