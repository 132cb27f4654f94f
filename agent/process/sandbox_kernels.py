"""What kernels in sandboxes have on the node, whatever runs in the sandbox: work directories, users, control groups,
and threads to start in.

Every attempt has, under its id, control groups, and a work directory under the scratch directory.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from signal import SIGKILL
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from retinue.agent.errors import KernelRuntimeError, KernelStartError, in_words
from retinue.agent.host.cgroups import CgroupError, Cgroups
from retinue.agent.host.freezer import resume
from retinue.agent.host.launch_threads import SPARE, Launchers
from retinue.agent.host.processes import alive, send_signal, wait_end
from retinue.agent.host.seccomp import FilterError
from retinue.agent.host.users import Users, UsersError
from retinue.agent.inside import work_disk
from retinue.agent.inside.provision import MOUNT_REFUSED, MountRefusedError
from retinue.agent.inside.workdir import empty_work, remove_work
from retinue.agent.kernel.build import ENCLOSE, PUMP, SRUN, BuildError, build
from retinue.agent.process import bubblewrap
from retinue.agent.process.options import ProcessOptions
from retinue.agent.process.root_layer import RootLayer
from retinue.agent.runtime.bwrap_status import Status, parse_status
from retinue.agent.runtime.disk_use import DiskFootprint, bound_work, devices_of, slot_bounds
from retinue.agent.runtime.rebuild import LiveKernel, find_kernel
from retinue.rpc.core.amounts import DISK
from retinue.rpc.core.reasons import AttemptReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from retinue.agent.attempts import AttemptSpec, Owner
    from retinue.agent.conditions import Conditions
    from retinue.agent.host.processes import Process
    from retinue.agent.state.damaged import DamagedFiles

Options = TypeVar("Options", bound=ProcessOptions)
Result = TypeVar("Result")

STATUS = "status"
"""Name of the file of the process that watches over a sandbox, in the directory of the attempt's record."""
CLOSE_TIMEOUT = 1.0
"""Seconds to wait for processes that are ending when the agent stops."""
END_TIMEOUT = 5.0
"""Seconds to wait at a time for killed processes to be gone."""


_START_ERRORS = (CgroupError, UsersError, BuildError, OSError, ValueError)


class SandboxKernels(Generic[Options]):
    """All kernels of one agent in sandboxes of one kind. Every method blocks: none belongs on an event loop."""

    words: ClassVar[str]
    """The kind, in the words of messages."""
    programs: ClassVar[tuple[str, ...]] = ("bwrap",)
    spares: ClassVar[int]
    """Threads kept ready to start kernels."""

    def __init__(
        self, options: Options, damaged: DamagedFiles, conditions: Conditions, family: str, mount_point: str
    ) -> None:
        """Looks at the node and makes the agent's own directories and control groups. Raises KernelRuntimeError.

        Control groups are of that `family`; roots are assembled at that name in the state directory. What is in the
        place of a directory is set aside in `damaged`. A work directory that Linux does not bound is a condition.
        """
        for program in self.programs:
            if shutil.which(program) is None:
                raise KernelRuntimeError(f"the program {program} is missing")
        self._options = options
        self._conditions = conditions
        try:
            mount = options.state_dir.resolve() / mount_point
            for directory in (options.state_dir, options.scratch_dir, mount):
                damaged.make_directory(directory)
            enclose = build(options.cache_dir, ENCLOSE)
            self._settings = bubblewrap.Settings(mount, RootLayer(options.visible), self._filter(), enclose)
            self._pump, self._steps = (build(options.cache_dir, program) for program in (PUMP, SRUN))
            self._users = Users(options.scratch_dir, options.users, options.owner)
            self._cgroups = Cgroups(family)
            # From here on this is the only process of the agent on the node.
            self._cgroups.open()
            for name in self._cgroups.names():
                # Spare groups that a former agent kept ready.
                if name.startswith(SPARE):
                    self._cgroups.remove(name, END_TIMEOUT)
            self._launchers = Launchers(self._cgroups, self.spares)
        except (CgroupError, FilterError, BuildError, OSError) as error:
            raise KernelRuntimeError(f"{self.words} cannot run here: {in_words(error)}") from error

    def _filter(self) -> bytes:
        """Returns the filter of system calls for all that runs in the sandboxes; none when it is empty.
        Raises FilterError.
        """
        return b""

    def close(self) -> None:
        """Removes what was kept ready, and the agent's own control groups if nothing is left in them."""
        self._launchers.close()
        self._cgroups.close(CLOSE_TIMEOUT)

    def names(self) -> set[str]:
        """Returns the attempts there is a control group of."""
        return {name for name in self._cgroups.names() if not name.startswith(SPARE)}

    def groups(self, attempt_id: str) -> Mapping[str, str]:
        """Returns the paths of its control groups by controller, whether or not anything runs."""
        return self._cgroups.paths(attempt_id)

    def shelter(self, monitor: Process) -> None:
        """Moves the process that watches over a kernel out of the kernel's limits;
        takes a while, and may be repeated.
        """
        if alive(monitor):
            self._cgroups.watch_over(monitor.pid)

    def find(self, attempt_id: str) -> LiveKernel | None:
        """Looks for a kernel by its control groups alone; None when nothing of it runs."""
        return find_kernel(self._cgroups.processes(attempt_id))

    def status(self, directory: Path) -> Status:
        """Returns what the monitor wrote so far; nothing when the file is lost or damaged."""
        try:
            return parse_status((directory / STATUS).read_text(errors="replace"))
        except OSError:
            return Status()

    def status_time(self, directory: Path) -> float:
        """Returns the time of the monitor's last write, in seconds since the epoch: with an exit code,
        the kernel's end.
        """
        return (directory / STATUS).stat().st_mtime

    def kill(self, attempt_id: str, init: Process | None) -> None:
        """Sends SIGKILL to everything in the kernel."""
        if init is not None:
            send_signal(init, SIGKILL)
        self._cgroups.kill(attempt_id)

    def resume(self, attempt_id: str, init: Process) -> None:
        """Has a paused kernel run. Raises OSError."""
        # On version 1, the agent makes no group that can be frozen: one that is may have other kernels.
        resume(init, self._cgroups.processes(attempt_id))

    def memory_kills(self, attempt_id: str) -> int:
        """Returns how many processes the node has killed in the kernel as its memory was used up."""
        return self._cgroups.out_of_memory_kills(attempt_id)

    def end(self, attempt_id: str, init: Process | None) -> int | None:
        """Ends what is left in the kernel and removes its control groups; None when something does not end in time.

        Else, returns how many processes the node has killed in it as its memory was used up.
        """
        if init is not None:
            send_signal(init, SIGKILL)
            if not wait_end(init, END_TIMEOUT):
                return None
        kills = self.memory_kills(attempt_id)
        return kills if self._cgroups.remove(attempt_id, END_TIMEOUT) else None

    def remove(self, attempt_id: str) -> None:
        """Removes all of a kernel but the directory of its record. Raises
        KernelRuntimeError when something does not end.
        """
        if not self._cgroups.remove(attempt_id, END_TIMEOUT):
            raise KernelRuntimeError(f"processes of attempt {attempt_id} do not end")
        remove_work(self.work(attempt_id))

    def empty(self, attempt_id: str) -> None:
        """Gives back the space of a kernel of which nothing runs; its directory stays,
        as what says that it was there.
        """
        empty_work(self.work(attempt_id))

    def footprint(self, attempt_id: str, disk: int) -> DiskFootprint:
        """Returns the disk footprint of a kernel with a slot of so many bytes; 0 without one."""
        work = self.work(attempt_id)
        if work_disk.is_bounded(work):
            return DiskFootprint(())
        bounds = slot_bounds(disk, self._options.work_files)
        return DiskFootprint((work,), self._cgroups.processes(attempt_id), devices_of(work), bounds=bounds)

    def work(self, attempt_id: str) -> Path:
        """Returns the attempt's work directory on the node."""
        return self._options.scratch_dir / attempt_id

    def _make_work(self, spec: AttemptSpec) -> Owner:
        """Makes an attempt's work directory, and returns the user it belongs to.
        Raises KernelStartError, UsersError, OSError.
        """
        work = self.work(spec.id)
        try:
            work.mkdir(mode=0o700)
        except FileExistsError as error:
            # It goes with the attempt's record: without one, the attempt was started before.
            raise KernelStartError("its record was lost after it was started", AttemptReason.RECORD_LOST) from error
        owner = self._users.assign(work, spec.mounts)
        bound_work(work, spec.slots.get(DISK, 0), self._options, self._conditions)
        return owner

    def restore_work(self, attempt_id: str) -> None:
        """Has the work directory of a kernel that runs reached by this process. Raises OSError."""
        work_disk.restore(self.work(attempt_id))


@contextlib.contextmanager
def as_start_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Raises KernelStartError for what goes wrong at a start, errors of further kinds among it."""
    errors: tuple[type[Exception], ...] = (*_START_ERRORS, *kinds)
    try:
        yield
    except MountRefusedError as error:
        raise KernelStartError(str(error), MOUNT_REFUSED) from error
    except errors as error:
        raise KernelStartError(in_words(error)) from error


def on_cores(cores: tuple[int, ...], action: Callable[[Sequence[str]], Result]) -> Callable[[Sequence[str]], Result]:
    """Wraps `action` so that what it starts runs on the cores: the thread that runs it is discarded afterwards."""

    def pinned(prefix: Sequence[str]) -> Result:
        if cores:
            os.sched_setaffinity(0, cores)
        return action(prefix)

    return pinned
