"""The node's side of a container kernel: its files, user, work directory and footprint on the disk. All of it blocks.

Every attempt has, under its id: files in a directory given by its record (start barrier, output, names), and a work
directory under the scratch directory.
"""

from __future__ import annotations

import contextlib
import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.agent.attempts import Owner
from retinue.agent.docker.barrier import at_barrier
from retinue.agent.docker.core.container_spec import BOUND, Files, runs_as_root
from retinue.agent.docker.image_defaults import INVALID
from retinue.agent.errors import KernelStartError
from retinue.agent.host.cgroups import limit_tcp_buffers
from retinue.agent.host.processes import PROC, Process, alive, further_groups, identify, owner_of
from retinue.agent.host.seccomp import build_container_filter
from retinue.agent.host.users import Users
from retinue.agent.inside import work_disk
from retinue.agent.inside.output_pump import STDOUT_PIPE, make_pipe, pumping
from retinue.agent.inside.provision import WITHOUT_RESOLVER, Provision, Ssh, provision_kernel, ssh_of
from retinue.agent.kernel.build import ATTACH, PUMP, SRUN, build, store
from retinue.agent.kernel.paths import HOME
from retinue.agent.runtime.disk_use import DiskFootprint, bound_work, devices_of, host_directory
from retinue.agent.runtime.rebuild import BARRIER
from retinue.rpc.core.amounts import DISK, MEMORY
from retinue.rpc.core.reasons import AgentConditionReason, AgentConditionType

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from retinue.agent.attempts import AttemptSpec
    from retinue.agent.conditions import Conditions
    from retinue.agent.docker.core.container_state import Written
    from retinue.agent.runtime.attempt_records import Record
    from retinue.agent.runtime.disk_use import Bounds
    from retinue.agent.runtime.options import RuntimeOptions

HOSTS, RESOLVER = "hosts", "resolv.conf"
READY_TIMEOUT = 30.0
"""Seconds that a started container may take to be at its start barrier."""
READY_POLL = 0.001


@dataclass(frozen=True, slots=True)
class Made:
    """The files of an attempt, the user that its container is to have, and its ssh keys if it gets any."""

    files: Files
    user: str
    ssh: Ssh | None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A kernel's first process, which waits at the start barrier, whom it runs as, and the further groups that an image
    puts its user in.
    """

    init: Process
    user: Owner
    further: Collection[int]

    @classmethod
    def of(cls, init: Process) -> Waiting:
        """Reads it from the process. Raises OSError."""
        return cls(init, Owner(*owner_of(init)), further_groups(init))


class KernelFiles:
    """The files of all containers of one agent."""

    def __init__(
        self, options: RuntimeOptions, bound: Sequence[str] = BOUND, conditions: Conditions | None = None
    ) -> None:
        """Makes the agent's directories, and the first process of containers if need be;
        `bound` are the paths of what is mounted there. With `conditions`, work directories get file systems of their
        own, and the node has a condition while they cannot; without, they are measured only.

        Raises BuildError, FilterError, OSError.
        """
        self._options = options
        self._bound = bound
        self._conditions = conditions
        # Until an engine did not see a file system that the agent has mounted.
        self._sees_mounts = True
        options.scratch_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._users = Users(options.scratch_dir, options.users, options.owner)
        self.init = build(options.cache_dir)
        self._attach = build(options.cache_dir, ATTACH)
        self._pump = build(options.cache_dir, PUMP)
        self._steps = build(options.cache_dir, SRUN)
        self._filter = store("filter", build_container_filter(), options.cache_dir)
        self.open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        if self.open_files == resource.RLIM_INFINITY:
            self.open_files = 1 << 20

    def make(
        self, spec: AttemptSpec, hosts: str, user: str, directory: Path, until_started: contextlib.ExitStack
    ) -> Made:
        """Makes the attempt's files in `directory`, and starts the pump of its output, which `until_started` keeps.

        `user` is the image's. Raises UsersError, OSError.
        """
        options = self._options
        files = self._make_files(spec, hosts, directory)
        if runs_as_root(user) or self._users.required(spec.mounts) is not None:
            # With a group, so that no group of the image comes with it.
            own = self._users.assign(files.home, spec.mounts)
            user = f"{own.uid}:{own.gid}"
        until_started.enter_context(pumping(self._pump, directory, options.output_limit))
        return Made(files, user, ssh_of(spec, hosts, options.cache_dir))

    def _make_files(self, spec: AttemptSpec, hosts: str, directory: Path) -> Files:
        """Makes the attempt's files; the directory around them is closed to all but root,
        so their modes can be open.
        """
        options = self._options
        home = options.scratch_dir / spec.id
        home.mkdir(mode=0o700, exist_ok=True)
        if self._conditions is not None and self._sees_mounts:
            bound_work(home, spec.slots.get(DISK, 0), options, self._conditions)
        # Its owner is set once the kernel is there.
        os.mkfifo(directory / BARRIER, 0o600)
        (directory / BARRIER).chmod(0o666)
        output, stdout = make_pipe(directory, 0o666), make_pipe(directory, 0o666, STDOUT_PIPE)
        resolver = options.resolver() if spec.egress else WITHOUT_RESOLVER
        for name, text in ((HOSTS, hosts), (RESOLVER, resolver)):
            (directory / name).write_text(text)
            (directory / name).chmod(0o644)
        return Files(
            self.init,
            self._attach,
            self._filter,
            directory / BARRIER,
            output,
            stdout,
            directory / HOSTS,
            directory / RESOLVER,
            home,
        )

    def provision(self, waiting: Waiting, ssh: Ssh | None, spec: AttemptSpec, directory: Path) -> None:
        """Prepares what a kernel finds inside. Raises KernelStartError, MountRefusedError, UnfitFileError, OSError."""
        user = waiting.user
        if user.uid == 0:
            raise KernelStartError(f"image {spec.image} cannot be used: its user is root by another name", INVALID)
        # Only now is the number known that goes with the name of an image's user.
        options = self._options
        home = options.scratch_dir / spec.id
        self._check_mount(waiting.init, home)
        os.chown(home, user.uid, user.gid)
        os.chown(directory / BARRIER, user.uid, user.gid)
        home.chmod(0o700)
        forbidden = (options.state_dir, options.scratch_dir)
        limit_tcp_buffers(waiting.init.pid, spec.slots.get(MEMORY))
        provision = Provision(
            user,
            options.owner,
            ssh,
            spec.mounts,
            forbidden,
            waiting.further,
            self._bound,
            self._steps,
            search_path=_search_path(waiting.init.pid),
        )
        provision_kernel(waiting.init, provision)

    def _check_mount(self, init: Process, home: Path) -> None:
        """Gives a work directory's file system up if the kernel has the directory beneath it: its engine has mounts of
        its own, as that of an agent in a container. Raises OSError.
        """
        if not work_disk.is_bounded(home) or os.path.samestat(
            os.stat(PROC / str(init.pid) / f"root{HOME}"), home.stat()
        ):
            return
        work_disk.remove(home)
        self._sees_mounts = False
        if self._conditions is not None:
            text = "the container engine has other mounts than the agent: work directories of containers have no file "
            text += "systems of their own, and containers may fill the disk"
            self._conditions.set(AgentConditionType.OTHER, text, AgentConditionReason.ENGINE_APART)


def _search_path(pid: int) -> str:
    """Returns the search path of a kernel's first process, which an image may name; empty if there is none."""
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next((os.fsdecode(each[5:]) for each in variables if each.startswith(b"PATH=")), "")


def wait_ready(pid: int, directory: Path) -> Waiting:
    """Returns the first process of a container once it waits at its start barrier; `pid` is 0 where there is none.
    Raises KernelStartError.
    """
    init = identify(pid) if pid > 0 else None
    deadline = time.monotonic() + READY_TIMEOUT
    while init is not None and alive(init):
        with at_barrier(directory) as pipe:
            if pipe is not None:
                return Waiting.of(init)
        if time.monotonic() > deadline:
            raise KernelStartError("it took too long to be ready")
        time.sleep(READY_POLL)
    raise KernelStartError("it ended before it was ready")


def footprint_of(
    record: Record, bounds: Bounds | None, work: Path, upper: Path | None, written: Written
) -> DiskFootprint:
    """Returns the disk footprint of a kernel; `upper` has what was written over the image, if that can be examined."""
    found = (upper, *map(host_directory, written.volumes))
    # Linux bounds a work directory that has a file system of its own, but not the sum.
    bounded = work if work_disk.is_bounded(work) else None
    directories = (*(() if bounded else (work,)), *(directory for directory in found if directory is not None))
    processes: tuple[int, ...] = ()
    with contextlib.suppress(OSError):
        processes = tuple(map(int, (Path(record.memory_group) / "cgroup.procs").read_text().split()))
    roots = [PROC / str(record.init.pid) / "root"] if record.init is not None else []
    layer = written.layer if upper is None else 0
    return DiskFootprint(directories, processes, devices_of(*directories, *roots), layer, bounded, bounds)


def boot_time() -> float:
    """Returns the time at which the node was started, in seconds since the epoch."""
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith("btime "):
            return float(line.split()[1])
    raise OSError("/proc/stat does not say when the node was started")
