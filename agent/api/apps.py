"""Serves StartApp, StopApp and GetApp: programs inside kernels that outlive the call and answer at a port."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import signal
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from retinue.agent.api.errors import invalid, unknown_attempt
from retinue.agent.errors import KernelRuntimeError, NotRunningError, PausedError, PortClosedError, UnknownAttemptError
from retinue.agent.inside import service_log
from retinue.agent.inside.exec_session import Attachment, AttachmentLostError
from retinue.agent.kernel.core.frames import Start
from retinue.agent.network.sockets import LOOPBACK
from retinue.rpc import times
from retinue.rpc.core.errors import ApiError, Code, ServiceError
from retinue.rpc.core.reasons import ErrorReason
from retinue.types.v1 import app_pb2

if TYPE_CHECKING:
    from retinue.agent.runtime.contract import Runtime
    from retinue.agent.runtime.kernel import Kernel, Program
    from retinue.agent.v1 import agent_service_pb2 as pb

START_TIMEOUT = 8.0
"""Seconds that it may take to be started."""
LOOK_INTERVAL = 0.1
"""Seconds between two looks whether a program answers."""
ANSWER_TIMEOUT = 2.0
"""Seconds that a program that listens may take to take a connection."""
SHOWN = 1000
"""Bytes of output in an error."""
MAX_GRACE = 20.0
"""Seconds that a program may be given to end by itself."""
KILL_TIMEOUT = 5.0
"""Seconds that a program may take to be gone once it is killed."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,62}")
_PORTS = range(1, 65_536)


@dataclass(frozen=True, slots=True)
class _AppSample:
    """The result of one check of an app: the app's program runs, something answers at its port, and its last output."""

    runs: bool
    answers: bool
    log: bytes

    def status(self, port: int) -> app_pb2.AppStatus:
        """Returns the message that says so."""
        state = app_pb2.APP_STATE_STOPPED
        if self.answers:
            state = app_pb2.APP_STATE_RUNNING
        elif self.runs:
            state = app_pb2.APP_STATE_STARTING
        return app_pb2.AppStatus(state=state, port=port, log=self.log)


class Apps:
    """All such programs of an agent; nothing is remembered here: the kernels say what runs."""

    def __init__(self, runtime: Runtime) -> None:
        """Touches nothing."""
        self._runtime = runtime
        # A look locks a log for a moment, and must not be taken for a program by who starts one.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def start(self, request: pb.StartAppRequest) -> app_pb2.AppStatus:
        """Starts it, unless it runs, and waits until it answers."""
        location = _checked(request.location)
        if not request.command:
            raise invalid("command", "is required")
        deadline = asyncio.get_running_loop().time() + times.seconds(request.wait)
        kernel = self._kernel(location)
        status = await self._look(location, kernel)
        if not status.answers:
            await self._start(location, kernel, request)
            status = await self._look(location, kernel)
        while not status.answers and asyncio.get_running_loop().time() < deadline:
            if not status.runs:
                await self._look(location, self._kernel(location))
                printed = status.log[-SHOWN:].decode(errors="replace").strip()
                message = f"{location.name} ended before it answered at port {location.port}: {printed}"
                raise ServiceError(Code.FAILED_PRECONDITION, ErrorReason.APP_FAILED, message)
            await asyncio.sleep(LOOK_INTERVAL)
            status = await self._look(location, kernel)
        return status.status(location.port)

    async def stop(self, request: pb.StopAppRequest) -> app_pb2.AppStatus:
        """Asks it to end, and kills what is left of it after the grace."""
        location = _checked(request.location)
        clock = asyncio.get_running_loop().time
        kill_at = clock() + min(MAX_GRACE, times.seconds(request.grace))
        end_at = kill_at + KILL_TIMEOUT
        kernel = self._kernel(location)
        asked: set[Program] = set()
        while (status := await self._look(location, kernel)).runs and clock() < end_at:
            there = await kernel.app_programs(location.name)
            number = signal.SIGTERM if clock() < kill_at else signal.SIGKILL
            # Its processes are found until they are gone; each gets one SIGTERM, and SIGKILL as often as it takes.
            for program in there if number is signal.SIGKILL else there - asked:
                program.signal(number)
            asked |= there
            await asyncio.sleep(LOOK_INTERVAL)
        return status.status(location.port)

    async def status(self, location: pb.AppLocation) -> app_pb2.AppStatus:
        """Returns the status of the app."""
        return (await self._look(location, self._kernel(_checked(location)))).status(location.port)

    async def _start(self, location: pb.AppLocation, kernel: Kernel, request: pb.StartAppRequest) -> None:
        try:
            wire = await kernel.exec()
        except NotRunningError as error:
            raise _not_running(location, error) from error
        except KernelRuntimeError as error:
            raise ServiceError(Code.UNAVAILABLE, ErrorReason.UNAVAILABLE, str(error)) from error
        attachment = Attachment(wire)
        environment = wire.environment | dict(request.environment)
        start = Start(tuple(request.command), environment, request.working_directory or wire.directory)
        try:
            async with self._locked(location), asyncio.timeout(START_TIMEOUT):
                await attachment.start_apart(start, service_log.path(location.name))
        except AttachmentLostError as error:
            message = f"{location.name} cannot be started: {error}"
            raise ServiceError(Code.FAILED_PRECONDITION, ErrorReason.APP_FAILED, message) from error
        except TimeoutError as error:
            message = f"{location.name} was not started within {START_TIMEOUT:.0f} s"
            raise ServiceError(Code.UNAVAILABLE, ErrorReason.UNAVAILABLE, message) from error
        except ValueError as error:
            raise invalid("command", str(error)) from error
        finally:
            await attachment.close()

    def _locked(self, location: pb.AppLocation) -> asyncio.Lock:
        return self._locks.setdefault(location.attempt_id, asyncio.Lock())

    def _kernel(self, location: pb.AppLocation) -> Kernel:
        try:
            kernel = self._runtime.kernel(location.attempt_id)
        except UnknownAttemptError as error:
            raise unknown_attempt(location.attempt_id) from error
        except NotRunningError as error:
            raise _not_running(location, error) from error
        return kernel

    async def _look(self, location: pb.AppLocation, kernel: Kernel) -> _AppSample:
        try:
            async with self._locked(location):
                seen = await kernel.look_at_app(location.name)
        except NotRunningError as error:
            raise _not_running(location, error) from error
        return _AppSample(seen.runs, await self._answers(location, kernel), seen.tail)

    @staticmethod
    async def _answers(location: pb.AppLocation, kernel: Kernel) -> bool:
        addresses = (*LOOPBACK, location.address) if location.address else LOOPBACK
        with suppress(PortClosedError, KernelRuntimeError, OSError, TimeoutError):
            async with asyncio.timeout(ANSWER_TIMEOUT):
                (await kernel.connect(location.port, addresses)).close()
                return True
        return False


def _checked(location: pb.AppLocation) -> pb.AppLocation:
    if not _NAME.fullmatch(location.name):
        raise invalid("location.name", "is not a name")
    if location.port not in _PORTS:
        raise invalid("location.port", f"must be from {_PORTS.start} to {_PORTS.stop - 1}")
    try:
        ipaddress.ip_address(location.address or LOOPBACK[0])
    except ValueError as error:
        raise invalid("location.address", str(error)) from error
    return location


def _not_running(location: pb.AppLocation, error: NotRunningError) -> ApiError:
    message = str(error) if isinstance(error, PausedError) else f"attempt {location.attempt_id} does not run"
    return ServiceError(Code.FAILED_PRECONDITION, ErrorReason.STATE_FORBIDS, message)
