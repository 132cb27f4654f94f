"""Runs of one language in one kernel, one after the other, and the Jupyter kernel they share."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import signal
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from retinue.agent.attempts import Phase as AttemptPhase
from retinue.agent.builds import PYTHON
from retinue.agent.code import inside
from retinue.agent.code.core import batch, messages
from retinue.agent.code.core.events import (
    Batch,
    Completions,
    Finished,
    Notice,
    Phase,
    PhaseFinished,
    Queued,
    RunRequest,
    Started,
    Status,
)
from retinue.agent.code.jupyter import Jupyter, JupyterLostError
from retinue.agent.code.runs import Run
from retinue.agent.errors import KernelRuntimeError, NotRunningError, PausedError
from retinue.agent.inside.exec_session import Attachment, AttachmentLostError, Exited, Printed
from retinue.agent.kernel.core.frames import Start
from retinue.rpc.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import zmq.asyncio

    from retinue.agent.builds import NodeBuilds
    from retinue.agent.runtime.contract import Runtime
    from retinue.agent.runtime.kernel import Kernel

_log = logging.getLogger(__name__)

MAX_KEPT = 32
"""Finished runs of which events are kept."""
MAX_WAITING = 64
INTERRUPT_GRACE = 5.0
"""Seconds that a run may continue after it was interrupted for its timeout."""
BEGIN_TIMEOUT = 5.0
"""Seconds that an interrupt waits for the kernel to report that it executes the code, before it is sent anyway."""
# Processes of an attempt that ends may be gone so long before its end is observed.
_END_SECONDS, _END_POLL_SECONDS = 1.0, 0.02


class TooManyRunsError(Exception):
    """So many runs wait already."""


@dataclass(frozen=True, slots=True)
class _Record:
    """A Jupyter kernel as a later agent finds it again."""

    directory: str
    pid: int
    by_message: bool
    key: str


class Workspace:
    """The current and past runs of one language in one kernel. Close it in any case; runs continue."""

    def __init__(
        self,
        runtime: Runtime,
        context: zmq.asyncio.Context,
        *,
        attempt_id: str,
        language: str,
        record: Path,
        builds: NodeBuilds,
        admit: Callable[[], None] = lambda: None,
    ) -> None:
        """`record` is the file from which a later agent finds the Jupyter kernel; it holds the key. `admit` is called
        before anything is started, and raises what forbids that.
        """
        self._runtime = runtime
        self._context = context
        self._attempt_id = attempt_id
        self._language = language
        self._path = record
        self._builds = builds
        self._admit = admit
        self.streams = 0
        """The number of streams that have it open."""
        self._runs: dict[str, Run] = {}
        # Runs that were asked for and wait for the Jupyter kernel to start.
        self._arriving: dict[str, Run] = {}
        self._waiting: asyncio.Queue[Run] = asyncio.Queue(MAX_WAITING)
        self._jupyter: Jupyter | None = None
        self._record: _Record | None = None
        self._preparation: asyncio.Task[Jupyter] | None = None
        self._worker = asyncio.create_task(self._work(), name=f"code of {attempt_id}")

    @property
    def is_idle(self) -> bool:
        """Returns whether nothing runs or waits."""
        return all(run.over for run in self._runs.values())

    @property
    def in_use(self) -> bool:
        """Returns whether anything was started: there are runs or a Jupyter kernel, or one is starting."""
        preparing = self._preparation is not None and not self._preparation.done()
        return bool(self._runs) or self._jupyter is not None or preparing

    async def close(self) -> None:
        """Disconnects from the Jupyter kernel; it runs on. What reads runs that have not ended gets NotRunningError."""
        tasks: list[asyncio.Task[Any]] = [self._worker]
        if self._preparation is not None:
            tasks.append(self._preparation)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for run in (*self._runs.values(), *self._arriving.values()):
            run.fail(self._not_running())
        await self._drop()

    def find(self, run_id: str) -> Run | None:
        """Returns a run by its id; None when there is none, or none any more."""
        return self._runs.get(run_id) or self._arriving.get(run_id)

    async def add(self, request: RunRequest) -> Run:
        """Puts a run into the queue. Raises TooManyRunsError, LanguageMissingError, NotRunningError,
        KernelRuntimeError, and as `admit`.
        """
        if self._waiting.full():
            raise TooManyRunsError
        self._admit()
        run = self._arriving.get(request.run_id) or Run(request)
        if request.batch is None:
            # Missing programs are reported at once, to every caller.
            await self._arrive(run)
        if (there := self._runs.get(request.run_id)) is not None:
            return there
        ahead = sum(not other.over for other in self._runs.values())
        try:
            self._waiting.put_nowait(run)
        except asyncio.QueueFull:
            raise TooManyRunsError from None
        self._runs[run.id] = run
        if ahead:
            run.append(Queued(ahead))
        over = [number for number, other in self._runs.items() if other.over]
        for number in over[: max(0, len(over) - MAX_KEPT)]:
            del self._runs[number]
        return run

    async def _arrive(self, run: Run) -> None:
        """Starts the Jupyter kernel for a run, which can be interrupted meanwhile."""
        self._arriving[run.id] = run
        try:
            await self._prepare()
        except NotRunningError as error:
            run.fail(error)
            raise
        except BaseException:
            if self._arriving.get(run.id) is run:
                run.append(_ended(Status.PROCESS_LOST))
            raise
        finally:
            self._arriving.pop(run.id, None)

    async def answer(self, run: Run, value: str) -> bool:
        """Answers a run; False when it asks nothing. Raises JupyterLostError."""
        if not run.waits_for_input or self._jupyter is None:
            return False
        run.waits_for_input = False
        await self._jupyter.answer(value)
        return True

    def current(self) -> Run | None:
        """Returns the run whose turn it is, also when it has yet to start; None when nothing runs or waits."""
        return next((run for run in (*self._runs.values(), *self._arriving.values()) if not run.over), None)

    def interrupt(self, run: Run, *, force: bool = False) -> None:
        """Interrupts a run, or ends what runs it; one that waits ends at once."""
        if run.started:
            run.interrupt(Status.INTERRUPTED, force=force)
        else:
            run.append(_ended(Status.INTERRUPTED))

    async def complete(self, code: str, cursor: int) -> Completions:
        """Returns completions of code. Raises LanguageMissingError, NotRunningError, KernelRuntimeError,
        and as `admit`.
        """
        self._admit()
        jupyter = await self._prepare()
        if not self.is_idle:
            # It would be answered only when the run has finished.
            return Completions()
        return messages.completions(await jupyter.complete(code, cursor))

    async def _work(self) -> None:
        while True:
            run = await self._waiting.get()
            try:
                if run.over:
                    continue
                run.started = True
                if run.request.batch is not None:
                    await self._run_batch(run, run.request.batch)
                else:
                    await self._run_code(run)
            except KernelRuntimeError as error:
                if await self._is_ending():
                    run.fail(self._not_running())
                else:
                    run.append(Notice(str(error)))
                    run.append(_ended(run.interrupted or Status.PROCESS_LOST))
            except Exception:  # noqa: BLE001  # logged whole
                _log.exception("a run of %s failed", self._attempt_id)
                run.append(_ended(Status.PROCESS_LOST))

    async def _run_code(self, run: Run) -> None:
        jupyter = await self._prepare()
        if run.interrupted is not None:
            run.append(_ended(run.interrupted))
            return
        run.append(Started())
        execution = await jupyter.execute(run, run.request.code)
        held: asyncio.Task[None] | None = None

        async def interrupt(number: signal.Signals) -> None:
            nonlocal held
            if number != signal.SIGINT or execution.begun.is_set():
                await self._interrupt(number)
            elif held is None:
                held = asyncio.create_task(self._interrupt_begun(run, execution.begun), name="interrupt")

        try:
            await self._mind(run, execution.done, jupyter.lost, interrupt)
            if execution.done.is_set():
                run.append(jupyter.result(run))
            else:
                raise JupyterLostError("the process that ran the code has ended: variables are lost")
        finally:
            run.waits_for_input = False
            jupyter.forget(run)
            if held is not None:
                held.cancel()
                await asyncio.gather(held, return_exceptions=True)

    async def _interrupt_begun(self, run: Run, begun: asyncio.Event) -> None:
        """Interrupts a run once it has begun: before that, Jupyter kernels ignore interrupts."""
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEGIN_TIMEOUT):
                    await begun.wait()
            if not begun.is_set():
                # It may be a kernel that does not report it.
                await self._interrupt(signal.SIGINT)
                await begun.wait()
            await self._interrupt(signal.SIGINT)
        except KernelRuntimeError as error:
            run.append(Notice(f"it was not interrupted: {error}"))

    async def _mind(self, run: Run, done: asyncio.Event, lost: asyncio.Event, interrupt: Any) -> None:
        """Waits until a run has finished or is lost, and interrupts it when it should be."""
        loop = asyncio.get_running_loop()
        timeout = run.request.timeout
        deadline = None if timeout is None else loop.time() + timeout
        ends = [asyncio.ensure_future(event.wait()) for event in (done, lost)]
        wanted = asyncio.ensure_future(run.interrupt_wanted.wait())
        asked = False
        try:
            while not (done.is_set() or lost.is_set()):
                left = None if deadline is None else max(0.0, deadline - loop.time())
                await asyncio.wait({*ends, wanted}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                if done.is_set() or lost.is_set():
                    return
                if deadline is not None and loop.time() >= deadline and not wanted.done():
                    if asked:
                        run.append(Notice("it did not end when it was interrupted, and is ended by force"))
                        deadline = None
                    else:
                        run.interrupted = run.interrupted or Status.TIMED_OUT
                        deadline = loop.time() + INTERRUPT_GRACE
                    await interrupt(signal.SIGKILL if asked else signal.SIGINT)
                    asked = True
                elif wanted.done():
                    run.interrupt_wanted.clear()
                    wanted = asyncio.ensure_future(run.interrupt_wanted.wait())
                    await interrupt(signal.SIGKILL if run.by_force else signal.SIGINT)
        finally:
            for future in (*ends, wanted):
                future.cancel()
            await asyncio.gather(*ends, wanted, return_exceptions=True)

    async def _interrupt(self, number: signal.Signals) -> None:
        if self._jupyter is None or self._record is None:
            return
        if number == signal.SIGINT and self._record.by_message:
            await self._jupyter.interrupt()
        else:
            await inside.send_signal(self._kernel(), self._record.pid, number)

    async def _run_batch(self, run: Run, wanted: Batch) -> None:
        code, build_failed = 0, False
        for phase, text in batch.steps(wanted, self._language):
            if run.interrupted is not None or build_failed:
                code = batch.NOT_RUN
            else:
                run.append(Started(phase))
                code = await self._run_command(run, text)
            run.append(PhaseFinished(phase, code))
            build_failed = phase is Phase.BUILD and code != 0
        run.append(Finished(run.interrupted or (Status.ERROR if code else Status.OK), code))

    async def _run_command(self, run: Run, text: str) -> int:
        """Runs a text by the shell in the kernel; its exit code."""
        wire = await self._kernel().exec()
        attachment = Attachment(wire)
        over, lost = asyncio.Event(), asyncio.Event()
        code = 128 + signal.SIGKILL

        async def pass_on() -> None:
            nonlocal code
            printer = batch.Printer()
            try:
                async with contextlib.aclosing(attachment.events()) as events:
                    async for event in events:
                        if isinstance(event, Printed):
                            run.extend(printer.events(event.data, errors=event.errors))
                        elif isinstance(event, Exited):
                            code = event.code
                run.extend(printer.rest())
                over.set()
            except AttachmentLostError:
                run.extend(printer.rest())
                lost.set()

        async def interrupt(number: signal.Signals) -> None:
            await attachment.signal(number)

        passing: asyncio.Task[None] | None = None
        try:
            await attachment.start(Start(("/bin/sh", "-c", text), wire.environment, wire.directory))
            await attachment.end_input()
            passing = asyncio.create_task(pass_on(), name=f"output of a batch run of {self._attempt_id}")
            await self._mind(run, over, lost, interrupt)
            if lost.is_set() and await self._is_ending():
                raise self._not_running()
        finally:
            if passing is not None:
                passing.cancel()
                await asyncio.gather(passing, return_exceptions=True)
            await attachment.close()
        return code

    async def _prepare(self) -> Jupyter:
        """Returns the Jupyter kernel: the one there is, one of a former agent, or a new one."""
        if self._jupyter is not None and not self._jupyter.lost.is_set():
            return self._jupyter
        if self._preparation is None or self._preparation.done():
            self._preparation = asyncio.create_task(self._make_ready(), name=f"Jupyter kernel of {self._attempt_id}")
            # A failure is read here, too: every caller may have gone, and asyncio logs what is never read as an error.
            self._preparation.add_done_callback(self._note_failure)
        # The caller may go; half of a start would leave a process that no record names.
        try:
            return await asyncio.shield(self._preparation)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # The workspace was closed: the kernel has ended.
            raise self._not_running() from None
        except inside.LanguageMissingError:
            raise
        except KernelRuntimeError as error:
            if await self._is_ending():
                raise self._not_running() from error
            raise

    async def _is_ending(self) -> bool:
        """Says whether the attempt has ended or is ending."""
        deadline = time.monotonic() + _END_SECONDS
        while True:
            observed = self._runtime.observe().get(self._attempt_id)
            if observed is None or observed.phase is not AttemptPhase.RUNNING:
                return True
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(_END_POLL_SECONDS)

    def _not_running(self) -> NotRunningError:
        return NotRunningError(f"attempt {self._attempt_id} does not run")

    def _note_failure(self, preparation: asyncio.Task[Jupyter]) -> None:
        if not preparation.cancelled() and (error := preparation.exception()) is not None:
            _log.debug("no Jupyter kernel of %s: %s", self._attempt_id, error)

    async def _make_ready(self) -> Jupyter:
        await self._drop()
        return await self._find_again() or await self._start()

    async def _drop(self) -> None:
        jupyter, self._jupyter, self._record = self._jupyter, None, None
        if jupyter is not None:
            await jupyter.close()

    async def _find_again(self) -> Jupyter | None:
        """Returns the Jupyter kernel that a former agent started, if it is still there."""
        try:
            known: Any = json.loads(await asyncio.to_thread(self._path.read_text))
            record = _Record(**known)
        except (OSError, ValueError, TypeError):
            return None
        try:
            return await self._connect(record, fresh=False)
        except PausedError:
            # It is there, and answers later.
            raise
        except KernelRuntimeError as error:
            _log.info("the Jupyter kernel of %s is gone: %s", self._attempt_id, error)
        await asyncio.to_thread(self._path.unlink, missing_ok=True)
        return None

    async def _start(self) -> Jupyter:
        kernel = self._kernel()
        runtime = await self._builds.ready(PYTHON)
        if runtime is None:
            raise inside.LanguageMissingError(
                f"this node has no Python for code: {self._builds.failure(PYTHON)}; "
                "`retinue-agent build python` builds it"
            )
        await kernel.provide_python(runtime)
        key = secrets.token_hex(32)
        launched = await inside.launch(kernel, self._language, key)
        record = _Record(launched.directory, launched.pid, launched.by_message, key)
        await asyncio.to_thread(self._write, record)
        try:
            return await self._connect(record, fresh=True)
        except KernelRuntimeError:
            with contextlib.suppress(KernelRuntimeError):
                await inside.send_signal(self._kernel(), launched.pid, signal.SIGKILL)
            raise

    def _write(self, record: _Record) -> None:
        # Here it has a failpoint of its own; given to a thread as it is, it would have that of the pool.
        replace_file(self._path, json.dumps(asdict(record)).encode(), lasting=False)

    async def _connect(self, record: _Record, *, fresh: bool) -> Jupyter:
        sockets = await inside.open_sockets(self._kernel(), record.directory)
        jupyter = Jupyter(self._context, record.key, sockets)
        try:
            await jupyter.open(fresh=fresh)
        except BaseException:
            await jupyter.close()
            raise
        self._jupyter, self._record = jupyter, record
        return jupyter

    def _kernel(self) -> Kernel:
        return self._runtime.kernel(self._attempt_id)


def _ended(status: Status) -> Finished:
    return Finished(status, exit_code=1)
