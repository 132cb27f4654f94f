"""The engine's process: started in a session of its own, so that it outlives the router, and adopted by the next one.

One that is of another version than it should be, or is configured otherwise, is replaced without a cut: the next one
starts beside it and listens at the same port; then the former one takes no new connections, and ends with its last.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf import json_format

from retinue.router.envoy.admin import Admin, AdminError
from retinue.router.envoy.bootstrap import admin_socket, barrier_socket
from retinue.router.envoy.steering import connected, steer_to_newest, waiting
from retinue.rpc.files import replace_file
from retinue.rpc.retrying import Retrying

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from envoy.config.bootstrap.v3.bootstrap_pb2 import Bootstrap

_log = logging.getLogger(__name__)

_STOP_SECONDS = 5.0
# One that ends sooner after its start waits before the next.
_STEADY_SECONDS, _MIN_PAUSE, _MAX_PAUSE = 5.0, 0.05, 2.0
_START_SECONDS, _POLL_SECONDS = 10.0, 0.02
_POLL_SECONDS = 1.0
_MAX_LOOKS = 10
_SERVES = "LIVE"
# Streams of a former engine, and of a former listener, may last so long.
_DRAIN_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class Identity:
    """A process, whatever else gets its number later; `start` is in clock ticks since boot.

    `epoch` counts starts; `program` identifies the version that runs.
    """

    pid: int
    start: int
    epoch: int
    program: str

    def alive(self) -> bool:
        """Returns whether it runs."""
        return _start_of(self.pid) == self.start


def _start_of(pid: int) -> int | None:
    """Returns when a process started; None when it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _identity(values: Mapping[str, Any]) -> Identity:
    """Reads what `asdict` made. Raises ValueError, KeyError and TypeError."""
    return Identity(int(values["pid"]), int(values["start"]), int(values["epoch"]), str(values["program"]))


def _version(path: Path) -> str:
    """Returns what identifies a version of a program. Raises OSError."""
    found = path.stat()
    return f"{path} {found.st_size} {found.st_mtime_ns}"


def _send(identity: Identity, number: signal.Signals) -> None:
    if identity.alive():
        with contextlib.suppress(ProcessLookupError):
            os.kill(identity.pid, number)


class Engine:
    """Keeps one engine running; belongs on one event loop."""

    def __init__(self, path: Path, directory: Path, configuration: Callable[[int], Bootstrap], port: int) -> None:
        """Files and sockets are in `directory`; `configuration` makes that of a start by its epoch.
        Clients connect to `port`.
        """
        self._path = path
        self._directory = directory
        self._configuration = configuration
        self._port = port
        self._identity: Identity | None = None
        self._former: list[Identity] = []
        self._draining: set[int] = set()
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def admin(self) -> Admin:
        """Returns the admin interface of the engine."""
        return self._admin(self.epoch)

    @property
    def running(self) -> int:
        """Returns how many engines run: more than one while former ones still have connections."""
        return sum(found.alive() for found in (self._identity, *self._former) if found is not None)

    def admins(self) -> list[Admin]:
        """Returns the admin interfaces of the engine and of former ones that still have connections."""
        return [self.admin, *(self._admin(former.epoch) for former in self._former if former.alive())]

    def _admin(self, epoch: int) -> Admin:
        return Admin(admin_socket(self._directory, epoch))

    @property
    def epoch(self) -> int:
        """Returns the number of the engine's start; 0 before the first."""
        return 0 if self._identity is None else self._identity.epoch

    @property
    def pid(self) -> int | None:
        """Returns the engine's process while it runs."""
        return self._identity.pid if self._identity is not None and self._identity.alive() else None

    async def run(self) -> None:
        """Adopts or starts the engine, and starts it again whenever it ends, until cancelled: it runs on then."""
        looking = asyncio.create_task(self._end_former(), name="former engines")
        try:
            await self._keep_running()
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    async def _keep_running(self) -> None:
        pause = _MIN_PAUSE
        starting = Retrying("the engine does not start", _log, level=logging.ERROR, part="engine")
        while True:
            if not await self._adopted():
                try:
                    self._start()
                except OSError as error:
                    starting.fail(error)
                    await asyncio.sleep(_MAX_PAUSE)
                    continue
            starting.succeed()
            began = time.monotonic()
            await self._wait_ended()
            _log.error("the engine has ended; starting it again")
            pause = _MIN_PAUSE if time.monotonic() - began > _STEADY_SECONDS else min(pause * 2, _MAX_PAUSE)
            await asyncio.sleep(pause)

    async def wait_followed(self) -> None:
        """Returns once what the engine has acknowledged is true for requests:
        it acknowledges on another thread than it serves.

        The thread that serves clients answers after it applied everything that its main thread sent before.
        """
        for epoch in (self.epoch, *(former.epoch for former in self._former if former.alive())):
            with contextlib.suppress(AdminError):
                await Admin(barrier_socket(self._directory, epoch)).get("/")

    async def stop(self) -> None:
        """Ends the engine, and former ones: requests in progress break."""
        for former in self._former:
            _send(former, signal.SIGKILL)
        identity = self._identity
        if identity is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not identity.alive():
                self._reap()
                return
            _send(identity, number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STOP_SECONDS):
                    await self._wait_ended()

    async def _adopted(self) -> bool:
        """Takes over the engine that a former router has left, if it runs and answers."""
        try:
            values = json.loads((self._directory / "engine.json").read_text())
            identity = _identity(values)
            former = [*map(_identity, values["former"])]
            same = values["configuration"] == self._values(identity.epoch)
            same = same and identity.program == _version(self._path)
        except (OSError, ValueError, KeyError, TypeError):
            return False
        if self._identity is None:
            self._identity, self._former = identity, former
        if not identity.alive():
            return False
        # One that was to take over when the former router ended is waited for: others still serve.
        others = any(found.alive() for found in self._former)
        state = await self._answered(identity, _SERVES if others else "")
        if state and same:
            _log.info("adopted the engine, process %d", identity.pid)
            return True
        if state == _SERVES:
            # Two at a time: those that a router has left behind in the middle of this come first.
            for one in self._former:
                await self._drain(one)
            await self._replace(identity)
            return True
        _log.warning("the engine, process %d, does not answer or serves nothing: ending it", identity.pid)
        if others:
            _send(identity, signal.SIGKILL)
        else:
            await self.stop()
        return False

    async def _answered(self, identity: Identity, wanted: str = "") -> str:
        """Returns the state of an engine once it answers, or once that is the one that is wanted;
        empty when it does not come to that.
        """
        deadline = time.monotonic() + _START_SECONDS
        while identity.alive() and time.monotonic() < deadline:
            with contextlib.suppress(AdminError):
                state = await self._admin(identity.epoch).state()
                if state and wanted in {"", state}:
                    return state
            await asyncio.sleep(_POLL_SECONDS)
        return ""

    async def _replace(self, former: Identity) -> None:
        """Starts another engine beside one that serves; the former one stays in its place
        when the other does not come to serve.
        """
        child = self._child
        self._former.append(former)
        try:
            self._start()
            assert self._identity is not None  # noqa: S101  # it was started
            if await self._answered(self._identity, _SERVES):
                _log.warning("process %d takes over from the engine, process %d", self._identity.pid, former.pid)
                await self._drain(former)
                return
            _send(self._identity, signal.SIGKILL)
            self._reap()
        except OSError as error:
            _log.error("the engine that is to take over does not start: %s", error)
        _log.error("the former engine, process %d, stays", former.pid)
        self._former.remove(former)
        self._identity, self._child = former, child
        with contextlib.suppress(OSError):
            self._record()

    async def _drain(self, former: Identity) -> None:
        """Has a former engine take no new connections, and tell those that it has to end when they can."""
        try:
            await asyncio.to_thread(steer_to_newest, former.pid, self._port)
        except OSError as error:
            _log.warning("connections that come while the former engine closes may be lost: %s", error)
        # Those that are on their way to it still arrive, and have to be accepted.
        for _ in range(_MAX_LOOKS):
            await asyncio.sleep(_POLL_SECONDS)
            if not await asyncio.to_thread(waiting, former.pid, self._port):
                break
        try:
            admin = self._admin(former.epoch)
            await admin.post("/drain_listeners?graceful")
            await admin.post("/drain_listeners")
        except AdminError as error:
            _log.warning("the former engine, process %d, does not close: %s", former.pid, error)
        self._draining.add(former.pid)

    async def _end_former(self) -> None:
        """Ends each former engine when it has no connections of clients any more."""
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            for former in list(self._former):
                if former.alive() and former.pid not in self._draining:
                    # Another one has just begun to take over, or a router that has ended began it.
                    if self._identity is not None and await self._answered(self._identity, _SERVES):
                        await self._drain(former)
                    continue
                if former.alive() and await asyncio.to_thread(connected, former.pid, self._port):
                    continue
                _send(former, signal.SIGTERM)
                self._former.remove(former)
                self._draining.discard(former.pid)
                _log.info("the former engine, process %d, has no connections any more", former.pid)
                with contextlib.suppress(OSError):
                    self._record()
                    self._unlink(former.epoch)

    def _unlink(self, epoch: int) -> None:
        for path in (admin_socket(self._directory, epoch), barrier_socket(self._directory, epoch)):
            path.unlink(missing_ok=True)

    def _values(self, epoch: int) -> dict[str, Any]:
        """Returns the configuration of a start in the form in which the engine reads it from a file."""
        return json_format.MessageToDict(self._configuration(epoch))

    def _start(self) -> None:
        """Starts an engine. Raises OSError."""
        if all(former.epoch != self.epoch for former in self._former):
            self._unlink(self.epoch)
        epoch = self.epoch + 1
        configuration = self._directory / "bootstrap.json"
        replace_file(configuration, json.dumps(self._values(epoch)).encode())
        command = [str(self._path), "-c", str(configuration), "--concurrency", "1", "--disable-hot-restart"]
        command += ["--log-level", "warning", "--drain-strategy", "immediate", "--drain-time-s", str(_DRAIN_SECONDS)]
        with (self._directory / "engine.log").open("ab") as log:
            # Its own session: a signal to the router's group is none to it.
            child = subprocess.Popen(  # noqa: S603  # the program that the operator named
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
                env={"PATH": os.defpath, "HOME": "/nonexistent"},
            )
        self._child = child
        start = _start_of(child.pid)
        self._identity = Identity(child.pid, -1 if start is None else start, epoch, _version(self._path))
        self._record()
        _log.info("started the engine, process %d", child.pid)

    def _record(self) -> None:
        """Writes down what runs, for the next router. Raises OSError."""
        if self._identity is not None:
            values = asdict(self._identity) | {
                "configuration": self._values(self._identity.epoch),
                "former": [asdict(former) for former in self._former],
            }
            replace_file(self._directory / "engine.json", json.dumps(values).encode())

    async def _wait_ended(self) -> None:
        """Waits until the engine ends, also one that an earlier process started."""
        identity = self._identity
        if identity is None or not identity.alive():
            self._reap()
            return
        try:
            descriptor = os.pidfd_open(identity.pid)
        except ProcessLookupError:
            return
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        try:
            loop.add_reader(descriptor, ended.set)
            if identity.alive():
                await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
            self._reap()

    def _reap(self) -> None:
        """Takes the exit status of an engine that was started here."""
        if self._child is not None:
            self._child.poll()
