"""The files, sandbox and groups of a native process kernel on the node, and the blocking operations on them.

Every attempt has, under its id: files of the running sandbox in a directory given by its record (start barrier, status, output and its pipe),
control groups, and a work directory under the scratch directory.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL, SIGTERM
from stat import S_ISFIFO
from typing import TYPE_CHECKING, TypeVar

from retinue.agent.errors import BackendError
from retinue.agent.host.cgroups import MOUNT, CgroupError, Cgroups, Limits
from retinue.agent.host.launch_threads import SPARE, Launchers
from retinue.agent.host.processes import PROC, Process, alive, command_of, identify, send_signal, wait_end
from retinue.agent.host.users import UserRange, Users, UsersError
from retinue.agent.inside.output_pump import make_pipe, pumping
from retinue.agent.inside.provision import MOUNT_REFUSED, MountRefusedError, Provision, provision_kernel, ssh_of
from retinue.agent.inside.workdir import empty_work, remove_work
from retinue.agent.kernel.build import CACHE, PUMP, BuildError, build
from retinue.agent.kernel.core.ssh import server_command
from retinue.agent.kernel.paths import HOME
from retinue.agent.process import bubblewrap
from retinue.agent.process.entry import Confinement
from retinue.agent.process.seccomp import FilterError, build_filter
from retinue.agent.reasons import AttemptReason
from retinue.agent.runtime.bwrap_status import Status, parse_status
from retinue.agent.runtime.disk_use import Area, devices_of
from retinue.agent.runtime.rebuild import Found, find_kernel, waits_at_barrier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from retinue.agent.attempts import AttemptSpec
    from retinue.agent.state.damaged import DamagedFiles

Result = TypeVar("Result")

GATE, STATUS = "gate", "status"
WITHOUT_RESOLVER = "# Names of the session are in /etc/hosts; there is no name server.\n"
"""The resolv.conf of kernels without egress."""
CLOSE_TIMEOUT = 1.0
"""Seconds to wait for processes that are ending when the agent stops."""
SPARES = 4
"""Threads kept ready to start kernels."""
END_TIMEOUT = 5.0
"""Seconds to wait at a time for killed processes to be gone."""


class KernelError(Exception):
    """A kernel could not be started; the text says why, and `reason` as a word. Nothing of it runs any more."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """The options of process kernels; `tasks` bounds their processes and threads, `output_limit` is in bytes.

    `work_size` and `work_files` bound what a kernel has on the disk, in bytes and files; 0 means a part of it.

    `cache_dir` is for what is built once. Each kernel has a user of `users`; files in shared directories belong to `uid`.
    `resolver` is the resolv.conf of kernels that have egress.
    """

    agent_id: str
    state_dir: Path
    scratch_dir: Path
    boot_id: str
    uid: int = 60_000
    gid: int = 60_000
    users: UserRange = field(default_factory=UserRange)
    hidden: tuple[Path, ...] = ()
    tasks: int = 4096
    output_limit: int = 64 << 20
    work_size: int = 0
    work_files: int = 0
    cache_dir: Path = CACHE
    resolver: str = WITHOUT_RESOLVER


@dataclass(frozen=True, slots=True)
class Started:
    """A kernel at its start barrier: the process that watches over it, which is a child of this one, and its first process."""

    child: subprocess.Popen[bytes]
    monitor: Process
    init: Process


class Kernels:
    """All kernels of one agent on the node. Every method blocks: none belongs on an event loop."""

    def __init__(self, options: ProcessOptions, damaged: DamagedFiles) -> None:
        """Looks at the node and makes the agent's own directories and control groups. Raises BackendError.

        What is in the place of a directory is set aside in `damaged`.
        """
        for program in ("bwrap", "setpriv"):
            if shutil.which(program) is None:
                raise BackendError(f"the program {program} is missing")
        self._options = options
        mount_point = options.state_dir.resolve() / "mount"
        try:
            for directory in (options.state_dir, options.scratch_dir, mount_point):
                damaged.make_directory(directory)
            hidden = bubblewrap.hidden_paths((options.state_dir, options.scratch_dir, *options.hidden))
            self._settings = bubblewrap.Settings(mount_point, options.gid, hidden, build_filter())
            self._pump = build(options.cache_dir, PUMP)
            self._users = Users(options.scratch_dir, options.users, options.uid, options.gid)
            self._cgroups = Cgroups(options.agent_id)
            # From here on this is the only process of the agent on the node.
            self._cgroups.open()
            for name in self._cgroups.names():
                # Spare groups that a former agent kept ready.
                if name.startswith(SPARE):
                    self._cgroups.remove(name, END_TIMEOUT)
            self._launchers = Launchers(self._cgroups, SPARES)
        except (CgroupError, FilterError, BuildError, OSError) as error:
            raise BackendError(f"kernels of kind `process` cannot run here: {error}") from error

    def close(self) -> None:
        """Removes what was kept ready, and the agent's own control groups if nothing is left in them."""
        self._launchers.close()
        self._cgroups.close(CLOSE_TIMEOUT)

    def names(self) -> set[str]:
        """Returns the attempts there is a control group of."""
        return {name for name in self._cgroups.names() if not name.startswith(SPARE)}

    def confinement(self, attempt_id: str) -> Confinement:
        """Returns the confinement of the attempt's processes."""
        groups = tuple(self._cgroups.places(attempt_id).values())
        uid = self.work(attempt_id).stat().st_uid
        return Confinement(uid, self._settings.gid, self._settings.filter, groups)

    def shelter(self, monitor: Process) -> None:
        """Moves the process that watches over a kernel out of the kernel's limits; takes a while, and may be repeated."""
        if alive(monitor):
            self._cgroups.watch_over(monitor.pid)

    def start(
        self, spec: AttemptSpec, hosts: str, cores: tuple[int, ...], place: Path, meanwhile: Callable[[], None]
    ) -> Started:
        """Starts a kernel and holds it at its start barrier; `place` is the directory for its files.

        It runs on `cores`; none means on any. `meanwhile` is done while the sandbox is set up. Raises KernelError.
        """
        try:
            return self._start(spec, hosts, cores, place, meanwhile)
        except MountRefusedError as error:
            raise KernelError(str(error), MOUNT_REFUSED) from error
        except (bubblewrap.SandboxError, CgroupError, UsersError, OSError, ValueError) as error:
            raise KernelError(str(error)) from error

    def _start(
        self, spec: AttemptSpec, hosts: str, cores: tuple[int, ...], place: Path, meanwhile: Callable[[], None]
    ) -> Started:
        limits = Limits.of(spec.slots, self._options.tasks)
        work = self.work(spec.id)
        try:
            work.mkdir(mode=0o700)
        except FileExistsError as error:
            # It goes with the attempt's record: without one, the attempt was started before.
            raise KernelError("its record was lost after it was started", AttemptReason.RECORD_LOST) from error
        uid = self._users.assign(work, spec.mounts)
        os.mkfifo(place / GATE, 0o600)
        places = self._cgroups.places(spec.id)
        ssh = ssh_of(spec, hosts, self._options.cache_dir)
        kernel = bubblewrap.Sandbox(
            hostname=spec.hostname,
            command=spec.command,
            environment=spec.environment,
            files=self._files(spec.hostname, hosts, uid, egress=spec.egress),
            control_groups={str(MOUNT / name): str(path) for name, path in places.items()},
            work=work,
            uid=uid,
            server=() if ssh is None else tuple(server_command(spec.hostname)),
            shared_memory=spec.shared_memory,
        )
        pipe = make_pipe(place, 0o600)
        # Its own, as a container's is: /dev/stdout can be opened.
        os.chown(pipe, uid, self._settings.gid)
        ends = bubblewrap.Ends(place / GATE, place / STATUS, pipe)

        def prepare() -> None:
            self._cgroups.limit(spec.id, limits)
            with pumping(self._pump, place, self._options.output_limit):
                meanwhile()

        try:
            # The output of a sandbox that ends at once is kept until the pump is there.
            with open(pipe, "r+b", buffering=0):
                child = bubblewrap.start(
                    kernel,
                    self._settings,
                    ends,
                    lambda action: self._launchers.launch(spec.id, _on(cores, action)),
                    prepare,
                )
        finally:
            self._launchers.refill()
        self._cgroups.limit_cpu(spec.id, limits)
        number = self.status(place).init
        monitor, init = identify(child.pid), None if number is None else identify(number)
        if monitor is None or init is None:
            child.kill()
            child.wait()
            raise bubblewrap.SandboxError("it ended as soon as it was ready")
        if ssh is not None or spec.mounts:
            forbidden = (self._options.state_dir, self._options.scratch_dir, *self._options.hidden)
            try:
                gid, on_disk = self._settings.gid, self._options.uid
                provision_kernel(init.pid, Provision(uid, gid, ssh, spec.mounts, forbidden, on_disk))
            except BaseException:
                child.kill()
                child.wait()
                raise
        return Started(child, monitor, init)

    def _files(self, hostname: str, hosts: str, uid: int, *, egress: bool) -> dict[str, str]:
        """Returns the files of the kernel's own under /etc: its names, and a user beside those of the host."""
        gid = self._settings.gid
        user = f"{bubblewrap.USER_NAME}:x:{uid}:{gid}::{HOME}:/bin/sh\n"
        group = f"{bubblewrap.USER_NAME}:x:{gid}:\n"
        return {
            "etc/hostname": f"{hostname}\n",
            "etc/hosts": hosts,
            "etc/resolv.conf": self._options.resolver if egress else WITHOUT_RESOLVER,
            "etc/passwd": user + Path("/etc/passwd").read_text(),
            "etc/group": group + Path("/etc/group").read_text(),
        }

    def find(self, attempt_id: str) -> Found | None:
        """Looks for a kernel by its control groups alone; None when nothing of it runs."""
        return find_kernel(self._cgroups.processes(attempt_id), GATE)

    def status(self, place: Path) -> Status:
        """Returns what the monitor wrote so far; nothing when the file is lost or damaged."""
        try:
            return parse_status((place / STATUS).read_text(errors="replace"))
        except OSError:
            return Status()

    def status_time(self, place: Path) -> float:
        """Returns the time of the monitor's last write, in seconds since the epoch: with an exit code, the kernel's end."""
        return (place / STATUS).stat().st_mtime

    def start_server(self, init: Process | None, place: Path) -> None:
        """Has the server beside the command started, if there is one: the network is there. A second time does no harm."""
        self._tell(init, place, b"serve\n")

    def open_barrier(self, init: Process | None, place: Path) -> None:
        """Releases the command; a second call does nothing."""
        self._tell(init, place, b"\n")

    def _tell(self, init: Process | None, place: Path, line: bytes) -> None:
        for barrier in _barriers(init, place):
            # No process reads at the other end when the sandbox is gone, and then there is nothing to release.
            with contextlib.suppress(OSError):
                descriptor = os.open(barrier, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                try:
                    if S_ISFIFO(os.fstat(descriptor).st_mode):
                        os.write(descriptor, line)
                        return
                finally:
                    os.close(descriptor)

    def ask_to_end(self, init: Process) -> None:
        """Sends SIGTERM to the command, and to it only."""
        command = command_of(init)
        if command is not None:
            send_signal(command, SIGTERM)

    def kill(self, attempt_id: str, init: Process | None) -> None:
        """Sends SIGKILL to everything in the kernel."""
        if init is not None:
            send_signal(init, SIGKILL)
        self._cgroups.kill(attempt_id)

    def end(self, attempt_id: str, init: Process | None) -> bool | None:
        """Ends what is left in the kernel and removes its control groups; None when something does not end in time.

        Else, says whether the kernel ran out of memory.
        """
        if init is not None:
            send_signal(init, SIGKILL)
            if not wait_end(init, END_TIMEOUT):
                return None
        out_of_memory = self._cgroups.out_of_memory_kills(attempt_id) > 0
        return out_of_memory if self._cgroups.remove(attempt_id, END_TIMEOUT) else None

    def remove(self, attempt_id: str) -> None:
        """Removes all of a kernel but the directory of its record. Raises BackendError when something does not end."""
        if not self._cgroups.remove(attempt_id, END_TIMEOUT):
            raise BackendError(f"processes of attempt {attempt_id} do not end")
        remove_work(self.work(attempt_id))

    def empty(self, attempt_id: str) -> None:
        """Gives back the space of a kernel of which nothing runs; its directory stays, as what says that it was there."""
        empty_work(self.work(attempt_id))

    def area(self, attempt_id: str) -> Area:
        """Returns the disk area of a kernel."""
        work = self.work(attempt_id)
        return Area((work,), self._cgroups.processes(attempt_id), devices_of(work))

    def work(self, attempt_id: str) -> Path:
        """Returns the attempt's work directory on the node."""
        return self._options.scratch_dir / attempt_id


def _barriers(init: Process | None, place: Path) -> Iterator[Path]:
    """Yields the names of the start barrier; the later ones take longer to find."""
    yield place / GATE
    command = None if init is None else command_of(init)
    if command is not None and waits_at_barrier(command, GATE):
        # The FIFO itself, should its name be lost.
        yield PROC / str(command.pid) / "fd" / "0"


def _on(cores: tuple[int, ...], action: Callable[[Sequence[str]], Result]) -> Callable[[Sequence[str]], Result]:
    """Wraps `action` so that what it starts runs on the cores: the thread that runs it is discarded afterwards."""

    def pinned(prefix: Sequence[str]) -> Result:
        if cores:
            os.sched_setaffinity(0, cores)
        return action(prefix)

    return pinned
