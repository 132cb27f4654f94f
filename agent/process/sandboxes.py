"""The files, sandbox and groups of a native process kernel on the node, and the blocking operations on them.

Every attempt has, under its id: files of the running sandbox in a directory given by its record (start barrier, status,
output and its pipe), control groups, and a work directory under the scratch directory.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from stat import S_ISFIFO
from typing import TYPE_CHECKING

from retinue.agent.errors import WorkDirectoryMissingError
from retinue.agent.host.cgroups import MOUNT
from retinue.agent.host.core.limits import Limits, MemoryFiles, thread_variables
from retinue.agent.host.processes import PROC, Process, command_of, descended, identify, send_signal
from retinue.agent.host.seccomp import build_filter
from retinue.agent.inside.output_pump import PIPE, STDOUT_PIPE, make_pipe, pumping
from retinue.agent.inside.provision import (
    WITHOUT_RESOLVER,
    Provision,
    provision_kernel,
    ssh_of,
)
from retinue.agent.kernel.build import JAIL, build
from retinue.agent.kernel.core.accounts import BASH, PROFILE, SHELL, profile
from retinue.agent.kernel.core.signals import Delivery, Target
from retinue.agent.kernel.core.ssh import server_command
from retinue.agent.kernel.paths import HOME
from retinue.agent.process import authorized_keys, bubblewrap, jail
from retinue.agent.process.entry import Confinement
from retinue.agent.process.options import ProcessOptions
from retinue.agent.process.sandbox_kernels import STATUS, SandboxKernels, as_start_errors, on_cores
from retinue.agent.runtime.rebuild import BARRIER, waits_at_barrier

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable, Iterator

    from retinue.agent.attempts import AttemptSpec, Owner
    from retinue.agent.conditions import Conditions
    from retinue.agent.state.damaged import DamagedFiles


@dataclass(frozen=True, slots=True)
class Started:
    """A kernel at its start barrier: the process that watches over it, which is a child of this one,
    and its first process.
    """

    child: subprocess.Popen[bytes]
    monitor: Process
    init: Process


class Kernels(SandboxKernels[ProcessOptions]):
    """All kernels of one agent on the node that are native processes.
    Every method blocks: none belongs on an event loop.
    """

    words = "kernels of kind `process`"
    spares = 4

    def __init__(self, options: ProcessOptions, damaged: DamagedFiles, conditions: Conditions) -> None:
        """Looks at the node and makes the agent's own directories and control groups. Raises KernelRuntimeError."""
        super().__init__(options, damaged, conditions, options.agent_id, "mount")

    def _filter(self) -> bytes:
        self._jail_filter = build_filter(jail=True)
        return build_filter()

    def confinement(self, attempt_id: str) -> Confinement:
        """Returns the confinement of the attempt's processes. Raises WorkDirectoryMissingError."""
        groups = tuple(self._cgroups.directories(attempt_id).values())
        try:
            owner = self.work(attempt_id).stat()
        except FileNotFoundError as error:
            raise WorkDirectoryMissingError from error
        return Confinement(owner.st_uid, owner.st_gid, self._settings.filter, groups)

    def start(
        self, spec: AttemptSpec, hosts: str, cores: tuple[int, ...], directory: Path, meanwhile: Callable[[], None]
    ) -> Started:
        """Starts a kernel and holds it at its start barrier; `directory` is the directory for its files.

        It runs on `cores`; none means on any. `meanwhile` is done while the sandbox is set up. Raises KernelStartError.
        """
        with as_start_errors(bubblewrap.SandboxError, jail.NoServerError):
            return self._start(spec, hosts, cores, directory, meanwhile)

    def _start(
        self, spec: AttemptSpec, hosts: str, cores: tuple[int, ...], directory: Path, meanwhile: Callable[[], None]
    ) -> Started:
        limits = Limits.of(spec.slots, self._options.tasks)
        user, work = self._make_work(spec), self.work(spec.id)
        os.mkfifo(directory / BARRIER, 0o600)
        ssh = None if spec.sftp is not None else ssh_of(spec, hosts, self._options.cache_dir)
        if spec.sftp is not None:
            kernel, settings = self._jail(spec, work, user), replace(self._settings, filter=self._jail_filter)
        else:
            settings = self._settings
            kernel = bubblewrap.Sandbox(
                hostname=spec.hostname,
                command=spec.command,
                environment=thread_variables(spec.slots)
                | {"SHELL": BASH if _has_bash() else SHELL}
                | dict(spec.environment),
                files=self._files(spec, hosts, user),
                control_groups={str(MOUNT / name): str(path) for name, path in self._cgroups.shown(spec.id).items()},
                work=work,
                user=user,
                memory_files=MemoryFiles.of(spec.slots, spec.shared_memory),
                server=() if ssh is None else tuple(server_command(spec.hostname)),
                # A jail has one stream only: the lines of its server.
                stdout=directory / STDOUT_PIPE,
                stderr=directory / PIPE,
                directory=spec.directory,
                notice=self._why_missing(spec, spec.command[0] if spec.command else ""),
                directory_notice=self._why_missing(spec, spec.working_directory),
            )
        pipe = make_pipe(directory, 0o600)
        # Its own, as a container's is: /dev/stdout can be opened.
        os.chown(pipe, user.uid, user.gid)
        if kernel.stdout is not None:
            os.chown(make_pipe(directory, 0o600, STDOUT_PIPE), user.uid, user.gid)
        ends = bubblewrap.Ends(directory / BARRIER, directory / STATUS, pipe)

        def prepare() -> None:
            self._cgroups.limit(spec.id, limits)
            with pumping(self._pump, directory, self._options.output_limit):
                meanwhile()

        try:
            # The output of a sandbox that ends at once is kept until the pump is there.
            with open(pipe, "r+b", buffering=0):
                child = bubblewrap.start(
                    kernel,
                    settings,
                    ends,
                    lambda action: self._launchers.launch(spec.id, on_cores(cores, action)),
                    prepare,
                )
        finally:
            self._launchers.refill()
        self._cgroups.limit_cpu(spec.id, limits)
        number = self.status(directory).init
        monitor, init = identify(child.pid), None if number is None else identify(number)
        if monitor is None or init is None:
            child.kill()
            child.wait()
            raise bubblewrap.SandboxError("it ended as soon as it was ready")
        forbidden = (self._options.state_dir, self._options.scratch_dir, *self._options.hidden)
        try:
            server = {} if spec.sftp is None else jail.files(spec.sftp, spec.mounts)
            default = self._options.owner
            provision = Provision(
                user,
                default,
                ssh,
                spec.mounts,
                forbidden,
                steps=self._steps,
                server=server,
                search_path=_search_path(spec),
                has_account=True,
            )
            provision_kernel(init, provision)
        except BaseException:
            child.kill()
            child.wait()
            raise
        return Started(child, monitor, init)

    def _why_missing(self, spec: AttemptSpec, path: str) -> str:
        return self._settings.layer.visible.why_missing(path, [mount.target for mount in spec.mounts])

    def _jail(self, spec: AttemptSpec, work: Path, user: Owner) -> bubblewrap.Sandbox:
        return bubblewrap.Sandbox(
            hostname=spec.hostname,
            command=(),
            environment={},
            files=jail.account(user.uid, user.gid, spec.mounts),
            control_groups={},
            work=work,
            user=user,
            memory_files=MemoryFiles.of(spec.slots, spec.shared_memory),
            jail=jail.jail(
                build(self._options.cache_dir, JAIL),
                user.uid,
                user.gid,
                0 if spec.sftp is None else spec.sftp.max_file_bytes,
                0o022 if spec.sftp is None else spec.sftp.umask,
            ),
        )

    def _files(self, spec: AttemptSpec, hosts: str, own: Owner) -> dict[str, str]:
        """Returns the files of the kernel's own under /etc: its names, a user beside those of the host, and the search
        path of its shells.
        """
        user = f"{bubblewrap.USER_NAME}:x:{own.uid}:{own.gid}::{HOME}:{BASH if _has_bash() else SHELL}\n"
        group = f"{bubblewrap.USER_NAME}:x:{own.gid}:\n"
        return {
            "etc/hostname": f"{spec.hostname}\n",
            "etc/hosts": hosts,
            "etc/resolv.conf": self._options.resolver() if spec.egress else WITHOUT_RESOLVER,
            "etc/passwd": user + Path("/etc/passwd").read_text(),
            "etc/group": group + Path("/etc/group").read_text(),
            **({PROFILE.lstrip("/"): profile(_search_path(spec))} if Path(PROFILE).parent.is_dir() else {}),
        }

    def authorize(self, attempt_id: str, init: Process, keys: tuple[str, ...], printed: Iterable[str]) -> int:
        """Has a jail's server let in by these keys only; returns how many processes of other connections were ended.

        Raises NotRunningError, OSError.
        """
        if not authorized_keys.change(init, keys):
            return 0
        ended = authorized_keys.end_others(init, keys, self._cgroups.processes(attempt_id), printed)
        authorized_keys.settle(init, keys)
        return ended

    def start_server(self, init: Process | None, directory: Path) -> None:
        """Has the server beside the command started, if there is one: the network is there.
        A second time does no harm.
        """
        self._write_to_barrier(init, directory, b"serve\n")

    def open_barrier(self, init: Process | None, directory: Path) -> None:
        """Releases the command; a second call does nothing."""
        self._write_to_barrier(init, directory, b"\n")

    def _write_to_barrier(self, init: Process | None, directory: Path, line: bytes) -> None:
        for barrier in _barriers(init, directory):
            # No process reads at the other end when the sandbox is gone, and then there is nothing to release.
            with contextlib.suppress(OSError):
                descriptor = os.open(barrier, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                try:
                    if S_ISFIFO(os.fstat(descriptor).st_mode):
                        os.write(descriptor, line)
                        return
                finally:
                    os.close(descriptor)

    def signal(self, attempt_id: str, init: Process, delivery: Delivery) -> None:
        """Sends a signal to the command, to what it has started, or to both."""
        command = command_of(init)
        started = [] if delivery.target is Target.COMMAND else self.of_command(attempt_id, init)
        if delivery.target is Target.STARTED:
            started = [process for process in started if process != command]
        for process in started or filter(None, (command,)):
            send_signal(process, delivery.signal)

    def of_command(self, attempt_id: str, init: Process) -> list[Process]:
        """Returns the processes of the command: those of its session, which its first process leads, and their
        descendants.
        """
        return descended(init.pid, self._cgroups.processes(attempt_id) - {init.pid})


def _search_path(spec: AttemptSpec) -> str:
    return dict(spec.environment).get("PATH", bubblewrap.SEARCH_PATH)


def _has_bash() -> bool:
    return os.access(BASH, os.X_OK)


def _barriers(init: Process | None, directory: Path) -> Iterator[Path]:
    """Yields the names of the start barrier; the later ones take longer to find."""
    yield directory / BARRIER
    command = None if init is None else command_of(init)
    if command is not None and waits_at_barrier(command):
        # The FIFO itself, should its name be lost.
        yield PROC / str(command.pid) / "fd" / "0"
