"""Attach: runs a command in a kernel for a manager's user, for as long as the stream lasts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from typing import TYPE_CHECKING, Any

from retinue.agent.api.errors import invalid, not_running, unknown_attempt
from retinue.agent.builds import SSH
from retinue.agent.errors import KernelRuntimeError, NotRunningError, UnknownAttemptError
from retinue.agent.inside.exec_session import Attachment, AttachmentLostError, Exited, Printed, Started
from retinue.agent.kernel.core.frames import Start
from retinue.agent.kernel.paths import PROGRAMS
from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.rpc.core.errors import ApiError, Code, ServiceError
from retinue.rpc.core.reasons import ErrorReason
from retinue.rpc.first_request import first_request
from retinue.rpc.stream_limits import OpenStreams
from retinue.types.v1 import terminal_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator

    from retinue.agent.builds import NodeBuilds
    from retinue.agent.runtime.contract import Runtime

_log = logging.getLogger(__name__)

MAX_PER_ATTEMPT = 32
"""Commands at a time in one kernel, besides its own."""
LARGEST_TERMINAL = 1000
SHELL = ("/bin/sh", "-c", "if command -v bash >/dev/null 2>&1; then exec bash; else exec sh; fi")
"""The command that runs when none is given."""


class AttachService:
    """All attached commands of an agent."""

    def __init__(self, runtime: Runtime, builds: NodeBuilds) -> None:
        """Attaches nothing yet; `builds` has the programs for ssh."""
        self._runtime = runtime
        self._builds = builds
        self._open = OpenStreams({}, MAX_PER_ATTEMPT)
        self._endings: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Ends every command that is attached, and lets no other begin."""
        self._stopping.set()

    async def wait_ended(self) -> None:
        """Returns when nothing is left of commands whose stream has ended."""
        if self._endings:
            await asyncio.wait(self._endings)

    async def serve(self, requests: AsyncIterator[pb.AttachRequest]) -> AsyncGenerator[pb.AttachResponse, None]:
        """Serves one stream to its end."""
        request = await _first(requests)
        if self._stopping.is_set():
            raise _unavailable("the agent is stopping")
        with self._open.hold("Attach", request.attempt_id), _to_api_errors(request.attempt_id):
            kernel = self._runtime.kernel(request.attempt_id)
            spec = request.spec
            if spec.command and spec.command[0].startswith(f"{PROGRAMS}/"):
                if (programs := await self._builds.ready(SSH)) is None:
                    raise KernelRuntimeError(
                        f"this node has no programs for ssh: {self._builds.failure(SSH)}; "
                        "`retinue-agent build ssh` builds them"
                    )
                await kernel.provide_programs(programs)
            wire = await kernel.exec()
            attachment = Attachment(wire)
            input_task: asyncio.Task[None] | None = None
            try:
                await attachment.start(
                    Start(
                        tuple(spec.command) or SHELL,
                        wire.environment | dict(spec.environment),
                        spec.working_directory or wire.directory,
                        _size(spec.terminal) if spec.HasField("terminal") else None,
                        leaves=spec.keep_processes,
                        detached=spec.detached,
                    )
                )
                if spec.detached:
                    async for event in attachment.events():
                        yield _response(event)
                        if not isinstance(event, Printed):
                            return
                input_task = asyncio.create_task(_pass_on(requests, attachment), name=f"input of {request.attempt_id}")
                async with contextlib.aclosing(self._until_stopped(attachment, input_task)) as responses:
                    async for response in responses:
                        yield response
            finally:
                if input_task is not None:
                    # The iterator must not be touched once the call has ended.
                    input_task.cancel()
                    await asyncio.gather(input_task, return_exceptions=True)
                self._end(attachment)

    async def _until_stopped(
        self, attachment: Attachment, input_task: asyncio.Task[None]
    ) -> AsyncGenerator[pb.AttachResponse, None]:
        events = attachment.events()
        stopping = asyncio.ensure_future(self._stopping.wait())
        upcoming: asyncio.Future[Started | Printed | Exited] | None = None
        try:
            while True:
                upcoming = upcoming or asyncio.ensure_future(anext(events))
                waited: set[asyncio.Future[Any]] = {upcoming, stopping}
                if not input_task.done():
                    waited.add(input_task)
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                if stopping.done():
                    raise _unavailable("the agent is stopping")
                if input_task.done():
                    # A step that makes no sense ends the stream.
                    input_task.result()
                if upcoming.done():
                    event, upcoming = upcoming.result(), None
                    yield _response(event)
                    if isinstance(event, Exited):
                        return
        finally:
            stopping.cancel()
            if upcoming is not None:
                upcoming.cancel()
                await asyncio.gather(upcoming, return_exceptions=True)
            await events.aclose()

    def _end(self, attachment: Attachment) -> None:
        task = asyncio.create_task(attachment.close(), name="end of an attached command")
        self._endings.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._endings.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("%s failed", task.get_name(), exc_info=error)


async def _first(requests: AsyncIterator[pb.AttachRequest]) -> pb.AttachStart:
    request = await first_request(anext(requests), "start")
    start = request.start
    spec = start.spec
    texts = (*spec.command, *spec.environment, *spec.environment.values(), spec.working_directory)
    if any("\0" in text for text in texts):
        raise invalid("start", "must not hold NUL")
    return start


async def _pass_on(requests: AsyncIterator[pb.AttachRequest], attachment: Attachment) -> None:
    """Passes steps on until there are no more; that the kernel has ended is the affair of who reads from it."""
    with contextlib.suppress(AttachmentLostError):
        async for request in requests:
            match request.input.WhichOneof("step"):
                case "stdin":
                    await attachment.write(request.input.stdin)
                case "end_of_input":
                    await attachment.end_input()
                case "resize":
                    await attachment.resize(*_size(request.input.resize))
                case "signal":
                    number = signal.Signals.__members__.get(f"SIG{request.input.signal.removeprefix('SIG')}")
                    if number is None:
                        raise invalid("input.signal", "is not the name of a signal")
                    await attachment.signal(number)
                case _:
                    raise invalid("step", "makes no sense here")
        # A caller that cannot send any more has no more input either.
        await attachment.end_input()


def _response(event: Started | Printed | Exited) -> pb.AttachResponse:
    match event:
        case Started():
            output = terminal_pb2.CommandOutput(started=terminal_pb2.CommandStarted())
        case Exited(code):
            output = terminal_pb2.CommandOutput(exited=terminal_pb2.CommandExited(exit_code=code))
        case Printed(data, errors):
            output = terminal_pb2.CommandOutput(stderr=data) if errors else terminal_pb2.CommandOutput(stdout=data)
    return pb.AttachResponse(output=output)


def _size(size: terminal_pb2.TerminalSize) -> tuple[int, int]:
    if not (1 <= size.rows <= LARGEST_TERMINAL and 1 <= size.columns <= LARGEST_TERMINAL):
        raise invalid("terminal", f"must be 1 to {LARGEST_TERMINAL} rows and columns")
    return size.rows, size.columns


@contextlib.contextmanager
def _to_api_errors(attempt_id: str) -> Iterator[None]:
    try:
        yield
    except UnknownAttemptError as error:
        raise unknown_attempt(attempt_id) from error
    except (NotRunningError, AttachmentLostError) as error:
        raise not_running(attempt_id, error) from error
    except KernelRuntimeError as error:
        raise _unavailable(str(error)) from error


def _unavailable(message: str) -> ApiError:
    return ServiceError(Code.UNAVAILABLE, ErrorReason.UNAVAILABLE, message)
