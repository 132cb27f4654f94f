"""The files, container and directory of a container kernel on the node, and the blocking operations on them.

Every attempt has, under its id: files in a directory given by its record (start barrier, output, names), a container, and a work
directory under the scratch directory.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import stat
import time
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from signal import SIGTERM
from typing import TYPE_CHECKING, TypeVar

from retinue.agent.docker.core.container_spec import BOUND, INSIDE, Container, Files, body, container_name, runs_as_root
from retinue.agent.docker.engine import EngineError, EngineUnavailableError
from retinue.agent.docker.image_defaults import INVALID
from retinue.agent.docker.registry_addresses import RegistryAddresses
from retinue.agent.host.processes import PROC, Process, alive, identify, owner_of, send_signal, wait_end
from retinue.agent.host.users import UserRange, Users, UsersError
from retinue.agent.inside.output_pump import make_pipe, pumping
from retinue.agent.inside.provision import (
    LARGEST_FILE,
    MOUNT_REFUSED,
    MountRefusedError,
    Provision,
    UnfitFileError,
    provision_kernel,
    ssh_of,
)
from retinue.agent.inside.workdir import empty_work, remove_work
from retinue.agent.kernel.build import ATTACH, CACHE, PUMP, build, store
from retinue.agent.kernel.core.ssh import server_command
from retinue.agent.process.sandboxes import GATE, WITHOUT_RESOLVER, KernelError
from retinue.agent.process.seccomp import build_container_filter
from retinue.agent.resources.discovery import MIN_STARTS
from retinue.agent.runtime.disk_use import Area, devices_of, host_directory

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    from retinue.agent.attempts import AttemptSpec
    from retinue.agent.docker.engine import ContainerState, Engine, Written
    from retinue.agent.docker.images import Image
    from retinue.agent.inside.provision import Ssh
    from retinue.agent.resources.core.holdings import Holding
    from retinue.agent.runtime.attempt_records import Record

HOSTS, RESOLVER = "hosts", "resolv.conf"
ACCOUNTS = ("/etc/passwd", "/etc/group")
READY_TIMEOUT = 30.0
"""Seconds that a started container may take to be at its start barrier."""
READY_POLL = 0.001
END_TIMEOUT = 5.0
"""Seconds to wait at a time for killed processes to be gone."""
TRIES, TRY_PAUSE = 3, 0.5
"""The number of tries, and the seconds between them, of a request to the engine that may or may not have been carried out."""

# In the words of engines and runc, for a user or group that an image names and does not have.
_UNKNOWN_USER = re.compile(r"unable to find (?:user|group) |no matching entries in (?:passwd|group) file")

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class DockerOptions:
    """The options of containers; `tasks` bounds their processes and threads, `output_limit` is in bytes.

    `work_size` and `work_files` bound what a kernel has on the disk, in bytes and files; 0 means a part of it.

    Where an image names no user, or root, a kernel has one of `users` and the group `gid`, and files in shared directories
    belong to `uid`. `cache_dir` is for what is built once.
    `registry_config` holds credentials for registries, as Docker's `config.json` does; `registry_addresses` says where they may be.
    `resolver` is the resolv.conf of kernels that have egress. So many `starts` are under way at a time.
    """

    agent_id: str
    host: str
    state_dir: Path
    scratch_dir: Path
    boot_id: str
    uid: int = 60_000
    gid: int = 60_000
    users: UserRange = field(default_factory=UserRange)
    tasks: int = 4096
    output_limit: int = 64 << 20
    work_size: int = 0
    work_files: int = 0
    cache_dir: Path = CACHE
    registry_config: Path | None = None
    registry_addresses: RegistryAddresses = field(default_factory=RegistryAddresses)
    resolver: str = WITHOUT_RESOLVER
    starts: int = MIN_STARTS


class DockerKernels:
    """All containers of one agent. Every method blocks: none belongs on an event loop."""

    def __init__(self, options: DockerOptions, engine: Engine) -> None:
        """Makes the agent's directories, and the first process of containers if need be.

        Raises BuildError, FilterError, OSError.
        """
        self._options = options
        self._engine = engine
        options.scratch_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._users = Users(options.scratch_dir, options.users, options.uid, options.gid)
        self._init = build(options.cache_dir)
        self._attach = build(options.cache_dir, ATTACH)
        self._pump = build(options.cache_dir, PUMP)
        self._filter = store("filter", build_container_filter(), options.cache_dir)
        # Images of which the engine can read what they say of users.
        self._checked: set[str] = set()
        self._open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        if self._open_files == resource.RLIM_INFINITY:
            self._open_files = 1 << 20

    def attempts(self) -> set[str]:
        """Returns the attempts of this agent there is a container of."""
        return self._engine.attempts(self._options.agent_id)

    def foreign(self) -> list[str]:
        """Returns the names of containers that have this agent's labels and were not made by it; they are left alone."""
        return self._engine.foreign(self._options.agent_id)

    def find(self, attempt_id: str) -> ContainerState | None:
        """Returns the state of the attempt's own container; None when there is none, or another one has its name."""
        there = self._engine.inspect(container_name(attempt_id))
        labels = (self._options.agent_id, attempt_id)
        return there if there is not None and (there.agent_id, there.attempt_id) == labels else None

    def start(self, spec: AttemptSpec, hosts: str, image: Image, holding: Holding, place: Path) -> Process:
        """Starts a kernel and holds it at its start barrier; the result is its first process.

        `place` is the directory for its files. Raises KernelError; whether anything runs then is not known.
        """
        try:
            files = self._make_files(spec, hosts, place)
            options = self._options
            user = image.user
            if runs_as_root(image.user):
                user = f"{self._users.assign(files.home, spec.mounts)}:{options.gid}"
            ssh = ssh_of(spec, hosts, options.cache_dir)
            container = Container(
                options.agent_id,
                spec,
                image.identity.id,
                user,
                options.tasks,
                self._open_files,
                files,
                () if ssh is None else tuple(server_command(spec.hostname)),
                holding,
            )
            with pumping(self._pump, place, options.output_limit):
                init = self._run(container, place)
                uid, gid = owner_of(init)
                if uid != 0 and gid == 0:
                    # An image that names no group; which number goes with its user is known only now.
                    self._engine.remove(container_name(spec.id))
                    init = self._run(replace(container, user=f"{uid}:{options.gid}"), place)
            self._provision(init, ssh, spec, place)
            return init
        except MountRefusedError as error:
            raise KernelError(str(error), MOUNT_REFUSED) from error
        except UnfitFileError as error:
            raise KernelError(f"image {spec.image} cannot be used: {error}", INVALID) from error
        except EngineError as error:
            # The next node would find the same image.
            raise KernelError(str(error), INVALID if _UNKNOWN_USER.search(str(error)) else "") from error
        except (UsersError, OSError) as error:
            raise KernelError(str(error)) from error

    def _run(self, container: Container, place: Path) -> Process:
        """Creates and starts a container, and returns its first process once that waits at the start barrier."""
        name = container_name(container.spec.id)
        # Only one that existed before has to be checked: it may be of a try whose answer was lost.
        if not _persist(lambda: self._engine.create(name, body(container))) and not self._is_ours(container.spec.id):
            raise KernelError(f"there is a container {name} already")
        self._check_accounts(name, container.image_id)
        _persist(lambda: self._engine.start(name))
        return self._wait_ready(name, place)

    def _check_accounts(self, name: str, image_id: str) -> None:
        """Looks at where an image names users and groups, once: engine and runc read it whatever it is, and one that blocks is never given up."""
        if image_id in self._checked:
            return
        for path in ACCOUNTS:
            found = _persist(partial(self._engine.file, name, path))
            if found is not None and not (found.plain and found.size <= LARGEST_FILE):
                raise UnfitFileError(path)
        self._checked.add(image_id)

    def _is_ours(self, attempt_id: str) -> bool:
        """Returns whether a container is this attempt's and was not started: a container is never started twice."""
        there = self.find(attempt_id)
        return there is not None and there.fresh

    def _provision(self, init: Process, ssh: Ssh | None, spec: AttemptSpec, place: Path) -> None:
        uid, gid = owner_of(init)
        if uid == 0:
            raise KernelError(f"image {spec.image} cannot be used: its user is root by another name", INVALID)
        # Only now is the number known that goes with the name of an image's user.
        home = self.work(spec.id)
        os.chown(home, uid, gid)
        os.chown(place / GATE, uid, gid)
        home.chmod(0o700)
        forbidden = (self._options.state_dir, self._options.scratch_dir)
        on_disk = self._options.uid if uid in self._options.users else None
        provision_kernel(init.pid, Provision(uid, gid, ssh, spec.mounts, forbidden, on_disk, BOUND))

    def _wait_ready(self, name: str, place: Path) -> Process:
        state = self._engine.inspect(name)
        init = identify(state.pid) if state is not None and state.pid > 0 else None
        deadline = time.monotonic() + READY_TIMEOUT
        while init is not None and alive(init):
            with _gate(place) as gate:
                if gate is not None:
                    return init
            if time.monotonic() > deadline:
                raise KernelError("it took too long to be ready")
            time.sleep(READY_POLL)
        raise KernelError("it ended before it was ready")

    def _make_files(self, spec: AttemptSpec, hosts: str, place: Path) -> Files:
        """Makes the attempt's files; the directory around them is closed to all but root, so their modes can be open."""
        home = self.work(spec.id)
        home.mkdir(mode=0o700, exist_ok=True)
        # Its owner is set once the kernel is there.
        os.mkfifo(place / GATE, 0o600)
        (place / GATE).chmod(0o666)
        output = make_pipe(place, 0o666)
        resolver = self._options.resolver if spec.egress else WITHOUT_RESOLVER
        for name, text in ((HOSTS, hosts), (RESOLVER, resolver)):
            (place / name).write_text(text)
            (place / name).chmod(0o644)
        return Files(
            self._init, self._attach, self._filter, place / GATE, output, place / HOSTS, place / RESOLVER, home
        )

    def attach(self, attempt_id: str) -> tuple[str, socket.socket] | None:
        """Starts a helper in the container; returns its id at the engine, and a connection to it, by frames.

        None when the container does not run. Raises EngineError.
        """
        return self._engine.execute(container_name(attempt_id), [f"{INSIDE}/attach", "confine", f"{INSIDE}/filter"])

    def end_attached(self, execution: str) -> bool:
        """Signals a helper that its caller is gone, in case the engine did not; False while it still runs. Raises EngineError."""
        pid = self._engine.executing(execution)
        helper = None if pid is None else identify(pid)
        return helper is None or not send_signal(helper, SIGTERM)

    def end(self, attempt_id: str, init: Process | None) -> ContainerState | None:
        """Ends what is left in the kernel, and says how it ended; None when there is no container.

        Raises EngineError when the engine does not answer, or something does not end in time.
        """
        name = container_name(attempt_id)
        state = self.find(attempt_id)
        if state is not None and state.running:
            # Another first process than ours is that of a restart by another program: an attempt is not run twice.
            if init is None or alive(init) or state.pid not in {0, init.pid}:
                self._engine.kill(name)
                if init is not None:
                    wait_end(init, END_TIMEOUT)
            try:
                self._engine.wait(name, END_TIMEOUT)
            except EngineUnavailableError:
                # An engine whose containerd was away when it ended hears of it only when it tries to kill it.
                self._engine.kill(name)
                self._engine.wait(name)
            state = self._engine.inspect(name)
            if state is not None and state.running:
                raise EngineError("its processes do not end")
        return state

    def remove(self, attempt_id: str) -> None:
        """Removes all of a kernel but the directory of its record. Raises EngineError, OSError."""
        if self.find(attempt_id) is not None:
            self._engine.remove(container_name(attempt_id))
        remove_work(self.work(attempt_id))

    def empty(self, attempt_id: str) -> None:
        """Gives back the space of a kernel that has ended; its directory stays, as what says that it was there. Raises EngineError."""
        empty_work(self.work(attempt_id))
        if self.find(attempt_id) is not None:
            self._engine.remove(container_name(attempt_id))

    def work(self, attempt_id: str) -> Path:
        """Returns the attempt's work directory on the node."""
        return self._options.scratch_dir / attempt_id


def area_of(record: Record, work: Path, upper: Path | None, written: Written) -> Area:
    """Returns the disk area of a kernel; `upper` has what was written over the image, if that can be examined. Blocks."""
    found = (upper, *map(host_directory, written.volumes))
    directories = (work, *(directory for directory in found if directory is not None))
    processes: tuple[int, ...] = ()
    with contextlib.suppress(OSError):
        processes = tuple(map(int, (Path(record.memory_group) / "cgroup.procs").read_text().split()))
    roots = [PROC / str(record.init.pid) / "root"] if record.init is not None else []
    layer = written.layer if upper is None else 0
    return Area(directories, processes, devices_of(*directories, *roots), layer)


@contextlib.contextmanager
def _gate(place: Path, init: Process | None = None) -> Iterator[int | None]:
    """Opens the writing end of the start barrier; None while no process waits at it. For a running kernel, it is found without its name."""
    gates = [place / GATE]
    if init is not None:
        gates.append(PROC / str(init.pid) / "root" / INSIDE.lstrip("/") / "gate")
    descriptor = None
    for gate in gates:
        try:
            descriptor = os.open(gate, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            break
        os.close(descriptor)
        descriptor = None
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def waits_at_gate(place: Path, init: Process) -> bool:
    """Returns whether the command of a running kernel was not released yet."""
    with _gate(place, init) as gate:
        return gate is not None


def memory_was_used_up(place: Path) -> bool:
    """Returns whether the first process reported it before its end: an engine that was away does not know, and the group may be gone."""
    try:
        return stat.S_IMODE((place / GATE).stat().st_mode) == 0
    except OSError:
        return False


def start_server(place: Path, init: Process | None) -> None:
    """Has the server beside the command started, if there is one: the network is there. A second time does no harm."""
    _tell(place, init, b"s")


def open_barrier(place: Path, init: Process | None) -> None:
    """Releases the command; a second call does nothing, and an engine is not needed."""
    _tell(place, init, b"\n")


def _tell(place: Path, init: Process | None, byte: bytes) -> None:
    with _gate(place, init) as gate:
        if gate is not None:
            # A full pipe was filled by the command, which was released before.
            with contextlib.suppress(BlockingIOError):
                os.write(gate, byte)


def _persist(action: Callable[[], Result]) -> Result:
    """Asks again while the engine does not answer: what was done the first time is found done."""
    for _ in range(TRIES - 1):
        try:
            return action()
        except EngineUnavailableError:
            time.sleep(TRY_PAUSE)
    return action()


def boot_time() -> float:
    """Returns the time at which the node was started, in seconds since the epoch."""
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith("btime "):
            return float(line.split()[1])
    raise OSError("/proc/stat does not say when the node was started")
