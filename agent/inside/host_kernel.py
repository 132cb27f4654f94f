"""Reaches what runs in a kernel of this node's own Linux: a sandbox or a container.

Everything goes by the kernel's first process, with which it lives and ends; that process never leaves this module.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.agent.errors import KernelRuntimeError, NotRunningError, PausedError
from retinue.agent.fencing.watchdog import FenceTarget
from retinue.agent.host import syscalls
from retinue.agent.host.freezer import FROZEN, is_frozen
from retinue.agent.host.launch_threads import in_own_thread
from retinue.agent.host.processes import alive, open_pidfd, send_signal
from retinue.agent.inside import service_log
from retinue.agent.inside.host_work_directory import HostWorkDirectory
from retinue.agent.inside.sockets import KernelSocket, open_sockets
from retinue.agent.kernel.paths import PROGRAMS, PYTHON
from retinue.agent.network.errors import NetworkError
from retinue.agent.network.namespaces import NamespaceOf
from retinue.agent.network.sockets import connect
from retinue.agent.resources.core.usage import Usage, group_paths, usage_of

if TYPE_CHECKING:
    import signal
    import socket
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from retinue.agent.host.processes import Process
    from retinue.agent.inside.exec_session import ExecStream


PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class HostProgram:
    """A process inside a kernel, for as long as it runs."""

    _process: Process

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal; nothing happens when it has ended."""
        send_signal(self._process, number)


@dataclass(frozen=True, slots=True)
class HostKernel:
    """A kernel whose first process may or may not run. It holds nothing open."""

    _attempt_id: str
    _process: Process | None
    _work: Path | None
    _exec: Callable[[], Awaitable[ExecStream]]

    def network_attachment(self) -> NamespaceOf:
        """Returns where links of networks go. Raises NotRunningError."""
        return NamespaceOf(self._init())

    def loopback_namespace(self) -> NamespaceOf:
        """Returns the namespace of its programs. Raises NotRunningError."""
        return self.network_attachment()

    def fence_target(self) -> FenceTarget | None:
        """Returns what a watchdog ends when the agent cannot; None when nothing runs."""
        return None if self._process is None else FenceTarget(self._process)

    async def wait_ended(self) -> None:
        """Returns once the kernel does not run any more."""
        descriptor = None if self._process is None else open_pidfd(self._process)
        if descriptor is None:
            return
        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        def end() -> None:
            if not ended.done():
                ended.set_result(None)

        loop.add_reader(descriptor, end)
        try:
            await ended
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)

    async def connect(self, port: int, addresses: Sequence[str], source: str = "") -> socket.socket:
        """Connects to a port inside the kernel, at the first address where something listens;
        the socket does not block.

        Raises PortClosedError, NotRunningError, OSError, TimeoutError.
        """
        self.check_pause()
        try:
            return await connect(self.network_attachment(), port, addresses, source)
        except NetworkError as error:
            raise self._not_running() from error

    async def exec(self) -> ExecStream:
        """Starts the helper that runs one command beside the attempt's own.
        Raises NotRunningError, KernelRuntimeError.
        """
        self.check_pause()
        return await self._exec()

    def files(self) -> HostWorkDirectory:
        """Returns the work directory of a running kernel. Raises NotRunningError."""
        if self._work is None:
            raise self._not_running()
        return HostWorkDirectory(self._work)

    def usage(self) -> Usage | None:
        """Returns what the kernel has used so far; None when it does not run. Blocks."""
        process = self._process
        if process is None:
            return None
        usage = read_usage(process.pid)
        return usage if alive(process) else None

    async def look_at_app(self, name: str) -> service_log.ServiceSample:
        """Returns whether a program that was started apart runs, and its last output. Raises NotRunningError."""
        return await asyncio.to_thread(service_log.look, self._init(), name)

    async def app_programs(self, name: str) -> frozenset[HostProgram]:
        """Returns such a program and what it has started, as far as they run. Raises NotRunningError."""
        found = await asyncio.to_thread(service_log.writers, self._init(), name)
        return frozenset(map(HostProgram, found))

    async def provide_programs(self, directory: Path) -> None:
        """Puts the agent's programs for ssh into the kernel, unless they are there.
        Raises NotRunningError, KernelRuntimeError.
        """
        await asyncio.to_thread(mount_directory, self._init(), directory, PROGRAMS)

    async def provide_python(self, runtime: Path) -> None:
        """Puts the agent's Python into the kernel, unless it is there. Raises NotRunningError, KernelRuntimeError."""
        await asyncio.to_thread(mount_directory, self._init(), runtime, PYTHON)

    async def open_sockets(self, directory: str, names: tuple[str, ...]) -> Sequence[KernelSocket]:
        """Looks up Unix sockets in a directory of the kernel, through no link. Raises NotRunningError."""
        self.check_pause()
        return await asyncio.to_thread(open_sockets, self._init(), directory, names)

    def check_pause(self) -> None:
        """Raises PausedError while its control group is frozen: what is asked of it would wait."""
        if self._process is not None and is_frozen(self._process):
            raise PausedError(FROZEN)

    def _init(self) -> Process:
        if self._process is None:
            raise self._not_running()
        return self._process

    def _not_running(self) -> NotRunningError:
        return NotRunningError(f"attempt {self._attempt_id} does not run")


def mount_directory(process: Process, source: Path, target: str) -> None:
    """Mounts a directory of the node into a kernel for reading, unless something is there. Blocks.
    Raises NotRunningError, KernelRuntimeError.
    """
    try:
        namespace = os.open(f"/proc/{process.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise NotRunningError("the kernel has ended") from error
    try:
        if not alive(process):
            raise NotRunningError("the kernel has ended")

        def inside() -> None:
            directory = os.open(source, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                attributes = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV | syscalls.MOUNT_ATTR_RDONLY
                mount = syscalls.clone_mount(directory, attributes)
            finally:
                os.close(directory)
            try:
                syscalls.unshare(syscalls.CLONE_FS)
                syscalls.enter(namespace, syscalls.CLONE_NEWNS)
                os.umask(0o022)
                Path(target).mkdir(mode=0o755, parents=True, exist_ok=True)
                if any(os.scandir(target)):
                    return
                mount_point = os.open(target, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    syscalls.attach_mount(mount, mount_point)
                finally:
                    os.close(mount_point)
            finally:
                os.close(mount)

        in_own_thread(inside)
    except OSError as error:
        raise KernelRuntimeError(f"{source} cannot be put into the kernel: {error}") from error
    finally:
        os.close(namespace)


def read_usage(pid: int, proc: Path = PROC, cgroups: Path = CGROUPS) -> Usage:
    """Returns the usage of the kernel whose first process has that number; what cannot be read is None. Blocks."""
    return read_group_usage(groups_of(pid, proc), _text(proc / str(pid) / "net" / "dev"), cgroups)


def groups_of(pid: int, proc: Path = PROC) -> dict[str, str]:
    """Returns the paths of a process' control groups by controller; none of a process that is gone. Blocks."""
    return group_paths(_text(proc / str(pid) / "cgroup") or "")


def read_group_usage(paths: Mapping[str, str], network: str | None = None, cgroups: Path = CGROUPS) -> Usage:
    """Returns what the control groups with these paths, by controller, have counted. Blocks."""
    unified = (cgroups / "cgroup.controllers").exists()

    def read(controller: str, name: str) -> str | None:
        path = paths.get(controller)
        # A kernel in no group of its own is not to be counted as all of the node.
        return None if path is None or path == "/" else _text(cgroups / controller / path.lstrip("/") / name)

    return usage_of(read, unified, network)


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
