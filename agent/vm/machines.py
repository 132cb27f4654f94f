"""The files, machine and groups of a virtual machine kernel on the node, and the blocking operations on them.

Every attempt has, under its id: files in a directory given by its record (status, output and its pipe), control groups,
and a work directory under the scratch directory; its sockets lie in a directory of their own,
because their paths must be short.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import socket
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from retinue.agent.errors import KernelStartError
from retinue.agent.host.cgroups import CgroupError, Cgroups
from retinue.agent.host.core.limits import Limits
from retinue.agent.host.processes import Process, identify
from retinue.agent.inside.host_kernel import mount_directory
from retinue.agent.inside.output_pump import OUTPUT, drain, make_pipe, pumping
from retinue.agent.inside.provision import Provision
from retinue.agent.kernel.guest_linux import NoLinuxError, find
from retinue.agent.process.sandbox_kernels import STATUS, SandboxKernels, as_start_errors, on_cores
from retinue.agent.runtime.bwrap_status import parse_status as parse_monitor_status
from retinue.agent.runtime.exit_reason import KILLED, ExitEvidence
from retinue.agent.vm.channels import opened_socket
from retinue.agent.vm.core.guest_frames import GuestStatus, parse_status
from retinue.agent.vm.core.machine import (
    CONTROL,
    SHARE,
    SHARED_PROGRAMS,
    STREAMS,
    Machine,
    TooSmallError,
    machine_of,
    stream,
)
from retinue.agent.vm.options import VmOptions
from retinue.agent.vm.sandbox import Ends, VmSandbox, further_groups, show_mounts, start_qemu

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from retinue.agent.attempts import AttemptSpec, Owner
    from retinue.agent.conditions import Conditions
    from retinue.agent.kernel.core.accounts import Account
    from retinue.agent.runtime.rebuild import LiveKernel
    from retinue.agent.state.damaged import DamagedFiles

MACHINE_STATUS, CONSOLE = "machine-status", "console"
"""Names of the directories of what the guest says last, and of its console."""
CONSOLE_LIMIT, STATUS_LIMIT = 64 << 10, 64 << 10
"""Bytes that are kept of them."""
CONSOLE_TAIL = 2_000
DRAIN_TIMEOUT = 5.0
"""Seconds that a process which takes what the guest said may take for the rest."""
START_TIMEOUT, START_POLL = 30.0, 0.01
FAMILY = "{}.vm"
"""Control groups of virtual machines lie beside those of the agent's native processes; no agent's id has a dot."""


@dataclass(frozen=True, slots=True)
class Start:
    """A machine to be started: `directory` is for its files, `image` the root of its image, `account` the user that
    the image names, `programs` those of the agent for ssh.

    It runs on `cores`; none means on any.
    """

    spec: AttemptSpec
    directory: Path
    accelerator: str
    cores: tuple[int, ...] = ()
    image: Path | None = None
    account: Account | None = None
    programs: Path | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """A machine that boots: the process that watches over it, which is a child of this one, its first process,
    and its user.
    """

    child: subprocess.Popen[bytes]
    monitor: Process
    init: Process
    user: Owner


class Machines(SandboxKernels[VmOptions]):
    """All virtual machines of one agent on the node. Every method blocks: none belongs on an event loop."""

    words = "virtual machines"
    programs = ("bwrap", "setpriv", "tc")
    spares = 2

    def __init__(self, options: VmOptions, damaged: DamagedFiles, conditions: Conditions) -> None:
        """Looks at the node and makes the agent's own directories and control groups. Raises KernelRuntimeError."""
        super().__init__(options, damaged, conditions, FAMILY.format(options.agent_id), "vm-mount")
        options.run_dir.mkdir(mode=0o711, parents=True, exist_ok=True)

    def start(self, start: Start) -> Started:
        """Starts a machine, which boots then. Raises KernelStartError."""
        with as_start_errors(NoLinuxError, TooSmallError):
            return self._start(start)

    def _start(self, start: Start) -> Started:
        spec, directory = start.spec, start.directory
        machine = machine_of(spec.slots, start.accelerator)
        linux = find(self._options.cache_dir)
        limits = Limits.of(spec.slots, self._options.tasks)
        user = self._make_work(spec)
        sockets = self.sockets(spec.id)
        self._remove_sockets(spec.id)
        sockets.mkdir(mode=0o700)
        os.chown(sockets, user.uid, user.gid)
        ends = self._ends(directory, sockets)
        taps = int(spec.networked) + int(spec.has_egress_link)
        account = start.account
        shown = None if account is None else (account.uid, account.gid)
        sandbox = VmSandbox(machine, self.work(spec.id), user.uid, user.gid, taps, start.image, shown)
        with contextlib.ExitStack() as stack:
            for place, limit in (
                (directory, self._options.output_limit),
                *pipes(directory),
            ):
                stack.enter_context(pumping(self._pump, place, limit))
            try:
                action = functools.partial(start_qemu, sandbox, self._settings, ends, linux)
                child = self._launchers.launch(spec.id, on_cores(start.cores, action))
            finally:
                self._launchers.refill()
            try:
                self._cgroups.limit(spec.id, limits)
                monitor, init = self._wait_started(child, ends)
                self._show(spec, init, user, machine, start.programs)
                self._cgroups.limit_cpu(spec.id, limits)
            except BaseException:
                self._cgroups.kill(spec.id)
                child.kill()
                child.wait()
                raise
        return Started(child, monitor, init, user)

    def _show(self, spec: AttemptSpec, init: Process, user: Owner, machine: Machine, programs: Path | None) -> None:
        """Shows the guest directories of the node."""
        options = self._options
        forbidden = (options.state_dir, options.scratch_dir, *options.hidden)
        provision = Provision(
            user, options.owner, mounts=spec.mounts, forbidden=forbidden, further=further_groups(machine)
        )
        show_mounts(init, provision)
        if programs is not None:
            mount_directory(init, programs, f"{SHARE}/{SHARED_PROGRAMS}")

    def _ends(self, directory: Path, sockets: Path) -> Ends:
        for name in (MACHINE_STATUS, CONSOLE):
            (directory / name).mkdir(mode=0o700, exist_ok=True)
        return Ends(
            directory / STATUS,
            make_pipe(directory, 0o600),
            make_pipe(directory / CONSOLE, 0o600),
            make_pipe(directory / MACHINE_STATUS, 0o600),
            sockets,
        )

    def _wait_started(self, child: subprocess.Popen[bytes], ends: Ends) -> tuple[Process, Process]:
        """Returns the processes of a machine once QEMU listens for the agent."""
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline:
            if child.poll() is not None:
                raise KernelStartError("QEMU ended as soon as it was started")
            with contextlib.suppress(OSError):
                number = self.status(ends.status.parent).init
                # The last one that it makes.
                last = ends.sockets / stream(STREAMS - 1)
                with opened_socket(last) as there, socket.socket(socket.AF_UNIX) as probe:
                    probe.connect(there)
                monitor, init = identify(child.pid), None if number is None else identify(number)
                if monitor is not None and init is not None:
                    return monitor, init
            time.sleep(START_POLL)
        raise KernelStartError("QEMU took too long to start")

    def find(self, attempt_id: str) -> LiveKernel | None:
        """Looks for a machine by its control groups alone; None when nothing of it runs."""
        kernel = super().find(attempt_id)
        return None if kernel is None else replace(kernel, waiting=not self._released(attempt_id).exists())

    def note_release(self, attempt_id: str) -> None:
        """Notes on the node that the command is about to be released, in case the record is lost."""
        self._released(attempt_id).touch(mode=0o600)

    def end(self, attempt_id: str, init: Process | None) -> int | None:
        """Ends what is left of the machine, its sockets as well; None when something does not end in time.

        Else, returns how often the node ended QEMU because the kernel's memory was used up.
        """
        kills = super().end(attempt_id, init)
        if kills is not None:
            self._remove_sockets(attempt_id)
        return kills

    def remove(self, attempt_id: str) -> None:
        """Removes all of a machine but the directory of its record.
        Raises KernelRuntimeError when something does not end.
        """
        super().remove(attempt_id)
        self._remove_sockets(attempt_id)

    def _remove_sockets(self, attempt_id: str) -> None:
        shutil.rmtree(self.sockets(attempt_id), ignore_errors=True)
        self._released(attempt_id).unlink(missing_ok=True)

    def _released(self, attempt_id: str) -> Path:
        # Beside the directory of the sockets, which is QEMU's own.
        return self.sockets(attempt_id).with_suffix(".released")

    def sockets(self, attempt_id: str) -> Path:
        """Returns the directory of the machine's sockets."""
        return sockets_of(self._options, attempt_id)

    def control(self, attempt_id: str) -> Path:
        """Returns the socket of the guest's first process."""
        return self.sockets(attempt_id) / CONTROL


def sockets_of(options: VmOptions, attempt_id: str) -> Path:
    """Returns the directory of the sockets of an attempt's machine."""
    name = hashlib.sha256(f"{options.agent_id}/{attempt_id}".encode()).hexdigest()[:16]
    return options.run_dir / name


def have_groups(options: VmOptions) -> bool:
    """Returns whether a former process of the agent made control groups for virtual machines. Blocks."""
    try:
        return bool(Cgroups(FAMILY.format(options.agent_id)).names())
    except CgroupError:
        return False


def pipes(directory: Path) -> tuple[tuple[Path, int], ...]:
    """Returns the directories of a machine's pipes beside its output,
    each with the bytes that are kept of what comes.
    """
    return (directory / MACHINE_STATUS, STATUS_LIMIT), (directory / CONSOLE, CONSOLE_LIMIT)


def console(directory: Path) -> str:
    """Returns the end of what the guest's console, and QEMU itself, said. Blocks."""
    try:
        with (directory / CONSOLE / OUTPUT).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - CONSOLE_TAIL))
            said = file.read(CONSOLE_TAIL).decode(errors="replace")
    except OSError:
        return ""
    return "".join(character for character in said if character.isprintable() or character == "\n").strip()


def said_of_guest(directory: Path) -> GuestStatus:
    """Returns what the guest of a machine has said of itself so far. Blocks."""
    try:
        with (directory / MACHINE_STATUS / OUTPUT).open("rb") as file:
            return parse_status(file.read(STATUS_LIMIT))
    except OSError:
        return GuestStatus()


def look_at_end(directory: Path, *, killed: bool) -> ExitEvidence:
    """Returns what is left of a machine that has ended; `directory` has its files. Blocks.

    `killed` says that the node ended QEMU for its memory.
    """
    for pipe, _ in pipes(directory):
        drain(pipe, DRAIN_TIMEOUT)
    said = directory / MACHINE_STATUS / OUTPUT
    status, when = said_of_guest(directory), None
    with contextlib.suppress(OSError):
        when = None if status.exit_code is None else said.stat().st_mtime
    words = console(directory)
    whose = "its node ended its virtual machine: the machine used more than its memory" if killed else ""
    if status.memory_kills:
        whose = "the memory of its virtual machine was used up"
    failure = f"its virtual machine failed: {words}" if _ended_by_itself(directory) else ""
    return ExitEvidence(status.exit_code, when, whose, status.memory_kills or int(killed), failure, words)


def _ended_by_itself(directory: Path) -> bool:
    """Returns whether QEMU ended without being killed: a guest that panics, or a defect of QEMU's own."""
    try:
        code = parse_monitor_status((directory / STATUS).read_text(errors="replace")).exit_code
    except OSError:
        return False
    return code is not None and code != KILLED
