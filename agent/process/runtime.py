"""The runtime for native processes: each kernel is a sandbox over the host's own root, with control groups of its own.

Whatever is done is recorded before it is done, so that a restarted agent always knows how far the former one may have
come. The end of a kernel is noticed by file descriptors of its processes; its exit code is written by the process that
watches over it, whether an agent is there or not.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from retinue.agent.attempts import Phase
from retinue.agent.errors import KernelRuntimeError, KernelStartError, NotRunningError, in_words
from retinue.agent.host.lanes import KERNELS, in_thread
from retinue.agent.inside.host_kernel import HostKernel
from retinue.agent.kernel.build import ATTACH, BuildError, build
from retinue.agent.process.entry import enter
from retinue.agent.process.options import ProcessOptions
from retinue.agent.process.sandbox_runtime import SandboxRuntime
from retinue.agent.process.sandboxes import Kernels
from retinue.agent.resources.core.holdings import CUDA
from retinue.agent.runtime.attempt_records import Record
from retinue.agent.runtime.exit_reason import OUT_OF_MEMORY, ExitEvidence
from retinue.rpc.cancellation import UnrequestedCancellationError, cancellable
from retinue.rpc.core.reasons import AttemptReason

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Sequence

    from retinue.agent.attempts import AttemptSpec
    from retinue.agent.host.processes import Process
    from retinue.agent.inside.exec_session import ExecStream
    from retinue.agent.inside.log_file import Output
    from retinue.agent.kernel.core.signals import Delivery
    from retinue.agent.runtime.kernel import Kernel

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Started:
    """A kernel at its start barrier: the child of this process that watches over it, and its record."""

    child: subprocess.Popen[bytes]
    record: Record


class ProcessRuntime(SandboxRuntime[ProcessOptions, Kernels]):
    """Runs attempts as native processes; a Runtime."""

    name = "process"

    async def open(self, listener: Callable[[], None]) -> None:
        """Takes over what a former process of this agent left. Raises KernelRuntimeError
        when the node lacks something.
        """
        self._node = await in_thread(Kernels, self._options, self._damaged, self._conditions)
        lost = await self._store.open(listener)
        await self._take_over_all(lost, self._node.names())
        await self._look_after()

    def kernel(self, attempt_id: str) -> Kernel:
        """Returns access to what runs of an attempt, as it is now. Raises UnknownAttemptError."""
        running = self._store.record(attempt_id).phase is Phase.RUNNING
        work = self._kernels.work(attempt_id) if running else None
        return HostKernel(attempt_id, self._store.first_process(attempt_id), work, lambda: self._exec(attempt_id))

    async def _exec(self, attempt_id: str) -> ExecStream:
        record = self._store.record(attempt_id)
        if record.phase is not Phase.RUNNING or record.init is None:
            raise NotRunningError(f"attempt {attempt_id} does not run")
        try:
            program = await in_thread(build, self._options.cache_dir, ATTACH)
            return await enter(program, record.init, await in_thread(self._kernels.confinement, attempt_id))
        except BuildError as error:
            raise KernelRuntimeError(str(error)) from error
        except OSError as error:
            # Of its control groups, or of the node's own files.
            raise KernelRuntimeError(f"nothing can be started in the kernel: {error}") from error

    def _refusal(self, spec: AttemptSpec) -> tuple[str, str] | None:
        if spec.image:
            return AttemptReason.IMAGE_UNSUPPORTED, "kernels of kind `process` have no image"
        if spec.slots.get(CUDA):
            # A sandbox over the host's root has none of its devices.
            return AttemptReason.DEVICE_MISSING, "kernels of kind `process` have no GPUs"
        return None

    async def _create(self, spec: AttemptSpec, hosts: str) -> None:
        async with self._store.lock(spec.id):
            if spec.id in self._store:
                return
            self._store.show(Record.of(spec, self._options.boot_id))
            try:
                cores = self._holdings.take(spec.id, spec.slots).cores
                started = await cancellable(self._start, spec, hosts, cores)
            except KernelStartError as error:
                await self._fail(spec.id, KernelStartError(f"it could not be started: {error}", error.reason))
            except UnrequestedCancellationError as error:
                # Else it would stay as it is: it can be neither created again nor ended.
                await self._fail(spec.id, KernelStartError(f"it could not be started: {error}"))
            except OSError:
                # It could not even be recorded, so nothing was started.
                self._holdings.release(spec.id)
                self._store.forget(spec.id)
                raise
            else:
                self._children[spec.id] = started.child
                self._store.show(started.record)
                self._take_over(started.record)

    async def _start(self, spec: AttemptSpec, hosts: str, cores: tuple[int, ...]) -> _Started:
        return await in_thread(self._record_and_start, spec, hosts, cores)

    def _record_and_start(self, spec: AttemptSpec, hosts: str, cores: tuple[int, ...]) -> _Started:
        record = replace(Record.of(spec, self._options.boot_id), cores=cores)
        if not self._store.put(record):
            raise OSError(f"there is a directory of attempt {spec.id} already")
        # The disk is written while the sandbox is set up; nothing may be released before it is done.
        started = self._kernels.start(
            spec, hosts, cores, self._store.directory(spec.id), lambda: self._records.make_lasting(spec.id)
        )
        record = replace(record, phase=Phase.CREATED, monitor=started.monitor, init=started.init)
        try:
            self._records.write(record)
        except OSError as error:
            # A later agent would not know how to reach it.
            self._kernels.kill(spec.id, started.init)
            started.child.wait()
            raise KernelStartError(f"it could not be recorded: {in_words(error)}") from error
        return _Started(started.child, record)

    async def authorize(self, attempt_id: str, keys: tuple[str, ...]) -> None:
        """Has an attempt that serves SFTP let in by these keys only, and ends connections by others. Raises OSError."""
        async with self._store.lock(attempt_id):
            record, output = self._store.record(attempt_id), self._store.output(attempt_id)
            if record.phase is Phase.RUNNING and record.init is not None:
                ended = await in_thread(self._kernels.authorize, attempt_id, record.init, keys, _lines(output))
                _log.info("attempt %s lets in by %d keys; processes ended: %d", attempt_id, len(keys), ended)

    async def _connect(self, record: Record) -> None:
        await in_thread(self._kernels.start_server, record.init, self._store.directory(record.id))

    async def _release(self, record: Record) -> None:
        await in_thread(self._kernels.open_barrier, record.init, self._store.directory(record.id))

    async def _signal(self, attempt_id: str, init: Process, delivery: Delivery) -> None:
        await KERNELS.run(self._kernels.signal, attempt_id, init, delivery)

    def _left_by_command(self, record: Record) -> Sequence[Process]:
        return () if record.init is None else self._kernels.of_command(record.id, record.init)

    async def _end(self, record: Record, init: Process | None) -> ExitEvidence | None:
        kills = await KERNELS.run(self._kernels.end, record.id, init)
        return None if kills is None else await in_thread(self._look, record.id, kills)

    def _memory_kills(self, record: Record) -> int:
        return self._kernels.memory_kills(record.id)

    def _look(self, attempt_id: str, kills: int) -> ExitEvidence:
        directory, when = self._store.directory(attempt_id), None
        # The child's own code is the same, should the file be lost; a negative one is not the command's.
        code, own = self._kernels.status(directory).exit_code, self._reap(attempt_id)
        if code is not None:
            when = self._kernels.status_time(directory)
        elif own is not None and own >= 0:
            code = own
        return ExitEvidence(code, when, OUT_OF_MEMORY if kills else "", kills)


def _lines(output: Output) -> Iterator[str]:
    """Yields the lines of an output as far as it is there. Blocks."""
    offset, rest = 0, ""
    while (piece := output.read(offset)) is not None and piece.data:
        offset = piece.offset + len(piece.data)
        *lines, rest = (rest + piece.data.decode(errors="replace")).split("\n")
        yield from lines
    yield rest
