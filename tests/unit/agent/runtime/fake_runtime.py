"""A runtime in memory, which needs no rights and no node: it passes the suite that every runtime passes."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shlex
import signal
import socket
import stat
import time
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from retinue.agent.attempts import AttemptSpec, ObservedAttempt, Phase
from retinue.agent.errors import KernelRuntimeError, NotRunningError, PortClosedError, UnknownAttemptError
from retinue.agent.fencing.watchdog import FenceTarget
from retinue.agent.host.processes import Process
from retinue.agent.inside.exec_session import ExecStream, SocketChannel
from retinue.agent.inside.log_file import Output
from retinue.agent.inside.service_log import ServiceSample
from retinue.agent.inside.upload import DigestError, UploadHeader
from retinue.agent.inside.workdir import Entry, MissingError, parts_of
from retinue.agent.kernel.core import frames
from retinue.agent.kernel.core.accounts import login_variables
from retinue.agent.resources.core.usage import FinalUsage, Usage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from retinue.agent.runtime.kernel import KernelSocket, Program


@dataclass
class State:
    """What outlives the agent: attempts that run or have ended, those that were removed, and their files."""

    logs: Path
    attempts: dict[str, ObservedAttempt] = field(default_factory=dict)
    commands: dict[str, tuple[str, ...]] = field(default_factory=dict)
    environments: dict[str, Mapping[str, str]] = field(default_factory=dict)
    files: dict[str, dict[str, bytes | None]] = field(default_factory=dict)
    modes: dict[str, int] = field(default_factory=dict)
    partial: dict[UploadHeader, bytes] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    ends: dict[str, asyncio.Event] = field(default_factory=dict)


def outcome(command: Sequence[str], environment: Mapping[str, str] = MappingProxyType({})) -> tuple[bytes, int | None]:
    """Returns what a command prints and its exit code; None for one that does not end by itself."""
    match list(command):
        case [] | ["sleep", _]:
            return b"", None
        case ["true"]:
            return b"", 0
        case ["env"]:
            everything = {"HOME": "/home/work", "SHELL": "/bin/sh"} | login_variables("work", environment)
            everything |= environment
            return "".join(f"{name}={value}\n" for name, value in everything.items()).encode(), 0
        case ["echo", *words]:
            return f"{' '.join(words)}\n".encode(), 0
        case ["sh", "-c", script] if shlex.split(script)[0] == "exit":
            return b"", int(shlex.split(script)[1])
        case _:
            return b"", 127


class FakeRuntime:
    """Runs nothing, and says what would have come of it."""

    name = "fake"
    capacity: Mapping[str, int] | None = None

    def __init__(self, state: State, clock: Callable[[], float] = time.monotonic) -> None:
        """Takes over what an earlier one has left in `state`; `clock` is that of the reconciler."""
        self._state = state
        self._clock = clock
        self._listener: Callable[[], None] = lambda: None

    async def open(self, listener: Callable[[], None]) -> None:
        self._listener = listener

    async def close(self) -> None:
        self._listener = lambda: None

    def observe(self) -> Mapping[str, ObservedAttempt]:
        return self._state.attempts

    async def prepare(self, spec: AttemptSpec, hosts: str) -> None:
        del hosts
        attempt = ObservedAttempt(spec.id, spec.session_id, spec.kernel_id, spec.networked, Phase.CREATED)
        if spec.id in self._state.removed:
            self._set(replace(attempt, phase=Phase.FAILED, reason="ALREADY_REMOVED"))
        elif spec.id not in self._state.attempts:
            self._state.commands[spec.id] = spec.command
            self._state.environments[spec.id] = spec.environment
            self._state.files[spec.id] = {}
            self._state.ends[spec.id] = asyncio.Event()
            self._set(attempt)

    async def decline(self, spec: AttemptSpec, phase: Phase, reason: str, message: str) -> None:
        if spec.id not in self._state.attempts:
            attempt = ObservedAttempt(spec.id, spec.session_id, spec.kernel_id, spec.networked, phase)
            self._set(replace(attempt, reason=reason, message=message, end_time=time.time()))

    async def identify(self, spec: AttemptSpec) -> None:
        self._set(replace(self._attempt(spec.id), session_id=spec.session_id, rebuilt=False))

    def kernel(self, attempt_id: str) -> FakeKernel:
        self._attempt(attempt_id)
        return FakeKernel(self._state, attempt_id)

    async def mark_attached(self, attempt_id: str) -> None:
        self._set(replace(self._attempt(attempt_id), attached=True))

    async def authorize(self, attempt_id: str, keys: tuple[str, ...]) -> None:
        raise NotImplementedError

    async def start(self, attempt_id: str) -> None:
        attempt = self._attempt(attempt_id)
        if attempt.phase is not Phase.CREATED:
            return
        output, code = outcome(self._state.commands[attempt_id], self._state.environments[attempt_id])
        self._log(attempt_id).write_bytes(output)
        self._set(replace(attempt, phase=Phase.RUNNING, start_time=time.time()))
        if code is not None:
            self._end(attempt_id, "EXITED", code)

    async def stop(self, attempt_id: str, grace: float) -> None:
        attempt = self._attempt(attempt_id)
        if attempt.phase is Phase.CREATED:
            self._set(replace(attempt, phase=Phase.STOPPING, stop_grace=0.0, kill_at=self._clock()))
        elif attempt.phase is Phase.RUNNING:
            self._set(replace(attempt, phase=Phase.STOPPING, stop_grace=grace, kill_at=self._clock() + grace))
            self._end(attempt_id, "STOPPED", 128 + signal.SIGTERM)

    async def kill(self, attempt_id: str) -> None:
        attempt = self._attempt(attempt_id)
        if not attempt.phase.ended:
            stopped = attempt.phase is Phase.STOPPING
            code = None if attempt.start_time is None else 128 + signal.SIGKILL
            self._end(attempt_id, "STOPPED" if stopped else "KILLED", code)

    async def remove(self, attempt_id: str) -> None:
        if not self._attempt(attempt_id).phase.ended:
            raise KernelRuntimeError(f"attempt {attempt_id} has not ended")
        del self._state.attempts[attempt_id]
        self._state.removed.add(attempt_id)
        self._listener()

    def output(self, attempt_id: str) -> Output:
        self._attempt(attempt_id)
        return Output(self._log(attempt_id), lambda: self._attempt(attempt_id).phase.ended)

    def _log(self, attempt_id: str) -> Path:
        return self._state.logs / attempt_id

    def _attempt(self, attempt_id: str) -> ObservedAttempt:
        if (attempt := self._state.attempts.get(attempt_id)) is None:
            raise UnknownAttemptError(f"there is no attempt {attempt_id}")
        return attempt

    def _end(self, attempt_id: str, reason: str, code: int | None) -> None:
        ended = replace(self._attempt(attempt_id), phase=Phase.EXITED, exit_code=code, reason=reason, kill_at=None)
        usage = FinalUsage(time.time(), cpu=1, memory_peak=1) if ended.start_time is not None else None
        self._set(replace(ended, end_time=time.time(), usage=usage))
        self._state.ends[attempt_id].set()

    def _set(self, attempt: ObservedAttempt) -> None:
        self._state.attempts[attempt.id] = attempt
        self._listener()


class FakeNamespace:
    """A network namespace that is a number only."""

    @contextlib.contextmanager
    def opened(self) -> Iterator[int]:
        yield 0


@dataclass(frozen=True)
class FakeKernel:
    """A kernel in which nothing runs but what it is asked for."""

    _state: State
    _attempt_id: str

    def _check(self, *phases: Phase) -> None:
        attempt = self._state.attempts.get(self._attempt_id)
        if attempt is None or attempt.phase.ended or (phases and attempt.phase not in phases):
            raise NotRunningError(f"attempt {self._attempt_id} does not run")

    def network_attachment(self) -> FakeNamespace:
        self._check()
        return FakeNamespace()

    def loopback_namespace(self) -> FakeNamespace:
        return self.network_attachment()

    def fence_target(self) -> FenceTarget | None:
        with contextlib.suppress(NotRunningError):
            self._check()
            return FenceTarget(Process(1, abs(hash(self._attempt_id))))
        return None

    async def wait_ended(self) -> None:
        await self._state.ends[self._attempt_id].wait()

    async def connect(self, port: int, addresses: Sequence[str], source: str = "") -> socket.socket:
        del addresses
        self._check()
        raise PortClosedError(f"nothing listens on port {port}")

    async def exec(self) -> ExecStream:
        self._check(Phase.RUNNING)
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours)
        answering = asyncio.create_task(_answer(theirs))

        async def ended() -> None:
            await answering

        return ExecStream(SocketChannel(reader, writer), ended, {})

    def files(self) -> FakeWorkDirectory:
        self._check(Phase.RUNNING)
        return FakeWorkDirectory(self._state, self._attempt_id)

    def usage(self) -> Usage | None:
        with contextlib.suppress(NotRunningError):
            self._check()
            return Usage(tasks=1)
        return None

    async def look_at_app(self, name: str) -> ServiceSample:
        del name
        self._check()
        return ServiceSample()

    async def app_programs(self, name: str) -> frozenset[Program]:
        del name
        self._check()
        return frozenset()

    async def provide_programs(self, directory: Path) -> None:
        raise NotImplementedError

    async def provide_python(self, runtime: Path) -> None:
        del runtime
        self._check()

    async def open_sockets(self, directory: str, names: tuple[str, ...]) -> Sequence[KernelSocket]:
        raise NotRunningError(f"there are no sockets {', '.join(names)} in {directory}")


async def _answer(connection: socket.socket) -> None:
    """Speaks for the helper inside a kernel: takes the command, and says what came of it."""
    reader, writer = await asyncio.open_connection(sock=connection)
    try:
        _, length = frames.HEADER.unpack(await reader.readexactly(frames.HEADER.size))
        texts = (await reader.readexactly(length)).decode().split("\0")
        output, code = outcome(texts[5 : 5 + int(texts[4])])
        writer.write(frames.frame(frames.STARTED, b""))
        if output:
            writer.write(frames.frame(frames.OUTPUT, output))
        if code is not None:
            writer.write(frames.frame(frames.EXITED, frames.NUMBER.pack(code)))
        await writer.drain()
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


class FakeUpload:
    """One incoming file."""

    def __init__(self, directory: FakeWorkDirectory, announced: UploadHeader, content: bytes) -> None:
        self._directory = directory
        self._announced = announced
        self._content = content

    @property
    def offset(self) -> int:
        return len(self._content)

    @property
    def complete(self) -> bool:
        return self.offset == self._announced.size

    @property
    def resumed(self) -> bytes:
        return hashlib.sha256(self._content).digest()

    async def write(self, data: bytes | memoryview) -> None:
        if self.offset + len(data) > self._announced.size:
            raise DigestError(f"more than {self._announced.size} bytes came")
        self._content += data

    async def store(self) -> None:
        if hashlib.sha256(self._content).digest() != self._announced.digest:
            raise DigestError("the content is not what the digest says")
        self._directory.put(self._announced, self._content)

    async def close(self) -> None:
        self._directory.keep(self._announced, self._content)


@dataclass(frozen=True)
class FakeFile:
    """A file that is open for reading."""

    entry: Entry
    content: bytes

    async def read(self, size: int, offset: int) -> bytes:
        return self.content[offset : offset + size]

    def close(self) -> None:
        """Holds nothing."""


class FakeWorkDirectory:
    """Files by path; None is a directory."""

    def __init__(self, state: State, attempt_id: str) -> None:
        self._files = state.files[attempt_id]
        self._state = state

    async def remove_stale_uploads(self) -> None:
        """Keeps none that is stale."""

    async def begin_upload(self, announced: UploadHeader, *, resume: bool) -> FakeUpload:
        parts_of(announced.path)
        return FakeUpload(self, announced, self._state.partial.get(announced, b"") if resume else b"")

    def keep(self, announced: UploadHeader, content: bytes) -> None:
        self._state.partial[announced] = content

    def put(self, announced: UploadHeader, content: bytes) -> None:
        parts = parts_of(announced.path)
        for depth in range(1, len(parts)):
            self._files.setdefault("/".join(parts[:depth]), None)
        self._files[announced.path] = content
        self._state.modes[announced.path] = announced.mode

    async def make_directory(self, path: str, mode: int) -> None:
        self._files[path] = None
        self._state.modes[path] = mode

    async def make_link(self, path: str, target: str) -> None:
        self._files[path] = f"-> {target}".encode()

    async def open(self, path: str) -> FakeFile:
        parts_of(path)
        content = self._files.get(path)
        if content is None:
            raise MissingError(f"there is no file {path}")
        return FakeFile(self._entry(path), content)

    async def entries(self, path: str, *, recursive: bool) -> AsyncGenerator[list[Entry], None]:
        prefix = f"{path}/" if path else ""
        for found in self._files:
            if found.startswith(prefix) and (recursive or os.sep not in found.removeprefix(prefix)):
                yield [self._entry(found)]

    def _entry(self, path: str) -> Entry:
        content = self._files[path]
        kind = stat.S_IFDIR if content is None else stat.S_IFREG
        return Entry(path, kind, len(content or b""), self._state.modes.get(path, 0o755), 0, "")
