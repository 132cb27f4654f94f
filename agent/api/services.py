"""StartService, StopService and GetService: programs inside kernels that go on by themselves, and answer at a port."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import signal
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import grpc

from agent.api.errors import ApiError, invalid
from agent.backends import service_log
from agent.backends.attachment import Attachment, AttachmentLostError, NotRunningError
from agent.backends.backend import BackendError, UnknownAttemptError
from agent.backends.processes import Process, send_signal
from agent.kernel.frames import Start
from agent.network.errors import NetworkError
from agent.network.sockets import LOOPBACK, PortClosedError, connect
from retinue.agent.v1 import agent_service_pb2 as pb

if TYPE_CHECKING:
    from agent.backends.backend import Backend

START_TIMEOUT = 8.0
"""Seconds that it may take to be started."""
LOOK_INTERVAL = 0.1
"""Seconds between two looks whether a program answers."""
ANSWER_TIMEOUT = 2.0
"""Seconds that a program that listens may take to take a connection."""
SHOWN = 1000
"""Bytes of output in an error."""
MOST_GRACE = 20.0
"""Seconds that a program may be given to end by itself."""
KILL_TIMEOUT = 5.0
"""Seconds that a program may take to be gone once it is killed."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,62}")
_PORTS = range(1, 65_536)


class Services:
    """All such programs of an agent; nothing is remembered here: the kernels say what runs."""

    def __init__(self, backend: Backend) -> None:
        """Nothing is touched."""
        self._backend = backend
        # A look locks a log for a moment, and must not be taken for a program by who starts one.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def start(self, request: pb.StartServiceRequest) -> pb.ServiceStatus:
        """Starts it, unless it runs, and waits until it answers."""
        place = _checked(request.place)
        if not request.command:
            raise invalid("command", "is required")
        deadline = asyncio.get_running_loop().time() + request.wait.seconds + request.wait.nanos / 1e9
        init = self._init(place)
        status = await self._look(place, init)
        if not status.answers:
            await self._start(place, request)
            status = await self._look(place, init)
        while not status.answers and asyncio.get_running_loop().time() < deadline:
            if not status.runs:
                self._init(place)
                printed = status.log[-SHOWN:].decode(errors="replace").strip()
                message = f"{place.name} ended before it answered at port {place.port}: {printed}"
                raise ApiError(grpc.StatusCode.FAILED_PRECONDITION, "SERVICE_FAILED", message)
            await asyncio.sleep(LOOK_INTERVAL)
            status = await self._look(place, init)
        return status

    async def stop(self, request: pb.StopServiceRequest) -> pb.ServiceStatus:
        """Asks it to end, and kills what is left of it after the grace."""
        place = _checked(request.place)
        clock = asyncio.get_running_loop().time
        kill_at = clock() + min(MOST_GRACE, request.grace.seconds + request.grace.nanos / 1e9)
        end_at = kill_at + KILL_TIMEOUT
        init, asked = self._init(place), set[Process]()
        while (status := await self._look(place, init)).runs and clock() < end_at:
            there = set(await asyncio.to_thread(service_log.writers, init, place.name))
            number = signal.SIGTERM if clock() < kill_at else signal.SIGKILL
            # What it has started goes on being found until it is gone; each is asked once, and killed as often as it takes.
            for process in there if number is signal.SIGKILL else there - asked:
                send_signal(process, number)
            asked |= there
            await asyncio.sleep(LOOK_INTERVAL)
        return status

    async def status(self, place: pb.ServicePlace) -> pb.ServiceStatus:
        """How it is."""
        return await self._look(place, self._init(_checked(place)))

    async def _start(self, place: pb.ServicePlace, request: pb.StartServiceRequest) -> None:
        try:
            wire = await self._backend.attach(place.attempt_id)
        except NotRunningError as error:
            raise _not_running(place) from error
        except BackendError as error:
            raise ApiError(grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE", str(error)) from error
        attachment = Attachment(wire)
        environment = wire.environment | dict(request.environment)
        start = Start(tuple(request.command), environment, request.directory or wire.directory)
        try:
            async with self._locked(place), asyncio.timeout(START_TIMEOUT):
                await attachment.start_apart(start, service_log.path(place.name))
        except AttachmentLostError as error:
            message = f"{place.name} cannot be started: {error}"
            raise ApiError(grpc.StatusCode.FAILED_PRECONDITION, "SERVICE_FAILED", message) from error
        except TimeoutError as error:
            message = f"{place.name} was not started within {START_TIMEOUT:.0f} s"
            raise ApiError(grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE", message) from error
        except ValueError as error:
            raise invalid("command", str(error)) from error
        finally:
            await attachment.close()

    def _locked(self, place: pb.ServicePlace) -> asyncio.Lock:
        return self._locks.setdefault(place.attempt_id, asyncio.Lock())

    def _init(self, place: pb.ServicePlace) -> Process:
        process = self._backend.first_process(place.attempt_id)
        if process is None:
            if place.attempt_id not in self._backend.observed():
                error = UnknownAttemptError(f"there is no attempt {place.attempt_id} here")
                message = str(error)
                raise ApiError(grpc.StatusCode.NOT_FOUND, "NOT_FOUND", message, kind="attempt", id=place.attempt_id)
            raise _not_running(place)
        return process

    async def _look(self, place: pb.ServicePlace, init: Process) -> pb.ServiceStatus:
        async with self._locked(place):
            seen = await asyncio.to_thread(service_log.look, init, place.name)
        return pb.ServiceStatus(runs=seen.runs, answers=await self._answers(place), log=seen.tail)

    async def _answers(self, place: pb.ServicePlace) -> bool:
        addresses = (*LOOPBACK, place.address) if place.address else LOOPBACK
        with suppress(PortClosedError, NetworkError, BackendError, OSError, TimeoutError):
            async with asyncio.timeout(ANSWER_TIMEOUT):
                (await connect(self._backend.namespace_path(place.attempt_id), place.port, addresses)).close()
                return True
        return False


def _checked(place: pb.ServicePlace) -> pb.ServicePlace:
    if not _NAME.fullmatch(place.name):
        raise invalid("place.name", "is not a name")
    if place.port not in _PORTS:
        raise invalid("place.port", f"must be from {_PORTS.start} to {_PORTS.stop - 1}")
    try:
        ipaddress.ip_address(place.address or LOOPBACK[0])
    except ValueError as error:
        raise invalid("place.address", str(error)) from error
    return place


def _not_running(place: pb.ServicePlace) -> ApiError:
    message = f"attempt {place.attempt_id} does not run"
    return ApiError(grpc.StatusCode.FAILED_PRECONDITION, "STATE_FORBIDS", message)
