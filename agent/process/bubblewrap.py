"""Starts a command in a sandbox that shows some of the host's own root, by bubblewrap, and holds it at a start barrier.

The root is an overlay: the host's `/` below, of which `root_layer` lets visible paths through, and that layer above,
writable and private. It is in memory, counted to the kernel's limit: an upper layer that lies within the lower one is
undefined. All is mounted in a mount namespace of the thread that starts bubblewrap, so nothing is ever mounted on the
host and nothing has to be unmounted.

Inside, in this order: bubblewrap's reaper (process 1), then as process 2 `enclose`, which becomes an unprivileged user
without any capability and has Landlock keep it beneath its root, then a shell that writes a line to standard output
(the sandbox is ready), waits for a line on standard input (the start barrier) and becomes `env`, which sets the
environment and becomes the command. Standard input is a FIFO opened for reading and writing, so that the death of an
agent does not open the barrier, and a later agent can.

The user's environment travels as the values of variables `e0`, `e1`, … until then: nothing that runs with privileges
ever sees a variable that the user named, and no process list shows a value. Paths of the host are in no argument of a
process inside: bubblewrap reads its own from a descriptor.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from retinue.agent.host import syscalls
from retinue.agent.kernel.core.accounts import login_variables
from retinue.agent.kernel.paths import HOME, NO_DIRECTORY
from retinue.agent.process.root_layer import OVERLAY_OPTIONS, TOP, make_parents, mount_points

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from retinue.agent.attempts import Owner
    from retinue.agent.host.core.limits import MemoryFiles
    from retinue.agent.process.jail import Jail
    from retinue.agent.process.root_layer import RootLayer

SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
USER_NAME = "work"
MASKED = ("/run", "/root", "/home", "/mnt", "/media")
"""Directories of the host that are empty inside."""
TOPOLOGY = ("/sys/devices/system/cpu", "/sys/devices/system/node")
"""Directories of the host that say which processors and memory it has: hwloc, with which MPI begins, reads them."""
STDOUT, STDERR = "/dev/output", "/dev/errors"
"""The pipes of the command's standard output, if it has one of its own, and standard error inside."""
IDLE = ("sleep", "infinity")
READY_TIMEOUT = 30.0
"""Seconds a sandbox may take to be ready."""


class SandboxError(Exception):
    """The sandbox could not be set up; the text says why."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings common to all sandboxes of an agent.

    `mount_point` is an empty directory used inside private mount namespaces only; `layer` knows what of the host is
    visible. `filter` is what `system_calls` has built, `enclose` the program by which a command gives up its rights.
    """

    mount_point: Path
    layer: RootLayer
    filter: bytes
    enclose: Path


@dataclass(frozen=True, slots=True)
class Sandbox:
    """One sandbox to be started.

    `files` are texts by path below the root, without the leading slash; `control_groups` are the host's directories
    by path inside. `work` is the command's writable home, `stdout` the pipe of its standard output, None where that
    goes to standard error's, `stderr` that of standard error. It starts in `directory`, relative to its home. `server`
    is run beside the command, with the same environment. `memory_files` are the sizes of its file systems in memory.
    `user` is the command's. `notice` is printed where its program is not there, `directory_notice` where its directory
    is not. In a `jail`, the root holds nothing but `files` and what the jail shows, and the jail's command takes the
    place of all else.
    """

    hostname: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    files: Mapping[str, str]
    control_groups: Mapping[str, str]
    work: Path
    user: Owner
    memory_files: MemoryFiles
    server: tuple[str, ...] = ()
    jail: Jail | None = None
    stdout: Path | None = None
    stderr: Path | None = None
    directory: str = "."
    notice: str = ""
    directory_notice: str = ""


def barrier_script(sandbox: Sandbox) -> str:
    """Returns the shell's program: say ready, wait for an empty line, become the command, which is its arguments, with
    an environment of its own in the directory.

    A line before that says that the network is there: with the first of them, the server is started.
    """
    values = " ".join(f'"$e{number}"' for number in range(len(environment_of(sandbox))))
    # The server's parent ends at once, so that the command has no child it does not know of.
    server = f"(setsid env -i {values} {shlex.join(sandbox.server)} </dev/null >/dev/null 2>&1 &)"
    start = server if sandbox.server else ":"
    wait = f'while read -r word && [ "$word" ]; do [ "$up" ] || {start}; up=1; done'
    # For reading as well: the death of a reader must not end a writer. They are opened here: by what was opened on the
    # node, a program could not open them again, and would read their names there.
    errors = "" if sandbox.stderr is None else f"exec 2<>{STDERR} && "
    output = ">&2" if sandbox.stdout is None else f"1<>{STDOUT}"
    why = f"{_printed(sandbox.directory_notice)}; " if sandbox.directory_notice else ""
    enter = f"{{ cd {shlex.quote(sandbox.directory)} || {{ {why}exit {NO_DIRECTORY}; }}; }}"
    notice = f'{{ [ -e "$1" ] || {_printed(sandbox.notice)}; }} && ' if sandbox.notice else ""
    return (
        f"cd {HOME} && ulimit -c 0 && echo && {{ {wait}; }} && {errors}{enter} && {notice}"
        f'exec env -i {values} "$@" </dev/null {output}'
    )


def _printed(notice: str) -> str:
    return f"echo {shlex.quote(f'retinue: {notice}')} >&2"


def inner_arguments(sandbox: Sandbox, enclose: str) -> list[str]:
    """Returns the argument vector of what runs inside; `enclose` is the path of that program there."""
    if sandbox.jail is not None:
        return list(sandbox.jail.command)
    command = sandbox.command or IDLE
    if "=" in command[0]:
        # `env` would take it for one more variable.
        command = ("/bin/sh", "-c", 'exec "$@"', "sh", *command)
    become = [enclose, str(sandbox.user.uid), str(sandbox.user.gid)]
    return [*become, "/bin/sh", "-c", barrier_script(sandbox), "sh", *command]


def environment_of(sandbox: Sandbox) -> list[str]:
    """Returns the command's environment as `NAME=VALUE`; a few defaults, then what the user set."""
    defaults = {"PATH": SEARCH_PATH, "HOME": HOME, "LANG": "C.UTF-8"} | login_variables(USER_NAME, sandbox.environment)
    return [f"{name}={value}" for name, value in (defaults | dict(sandbox.environment)).items()]


def outer_arguments(
    sandbox: Sandbox, settings: Settings, root: str, status_descriptor: int, filter_descriptor: int
) -> list[str]:
    """Returns bubblewrap's own arguments; the filter is read from its descriptor. The root is mounted at `root`."""
    arguments = ["--bind", root, "/"]
    if sandbox.jail is not None:
        return [*arguments, *_jail_arguments(sandbox.jail), *_isolation(sandbox, status_descriptor, filter_descriptor)]
    arguments += ["--dev", "/dev", *_temporary("/dev/shm", sandbox.memory_files.shared), "--proc", "/proc"]  # noqa: S108
    arguments += [*_temporary("/tmp", sandbox.memory_files.temporary), *masks(root, settings)]  # noqa: S108
    arguments += ["--bind", str(sandbox.work), HOME, "--chdir", "/"]
    for pipe, inside in ((sandbox.stdout, STDOUT), (sandbox.stderr, STDERR)):
        if pipe is not None:
            arguments += ["--bind", str(pipe), inside]
    for path in TOPOLOGY:
        arguments += ["--ro-bind-try", path, path]
    for inside, outside in sandbox.control_groups.items():
        arguments += ["--ro-bind", outside, inside]
    return [*arguments, *_isolation(sandbox, status_descriptor, filter_descriptor)]


def masks(root: str, settings: Settings, at: str = "") -> list[str]:
    """Returns the arguments that hide paths of the host in a root that is mounted at `root`, and shown at `at`."""
    arguments: list[str] = []
    for path in settings.layer.plan().hidden:
        if os.path.isdir(f"{root}/{path}"):
            arguments += ["--tmpfs", f"{at}/{path}"]
        elif os.path.exists(f"{root}/{path}"):
            arguments += ["--ro-bind", "/dev/null", f"{at}/{path}"]
    return arguments


def _temporary(path: str, size: int) -> list[str]:
    return ["--perms", "1777", "--size", str(size), "--tmpfs", path]


def _jail_arguments(jail: Jail) -> list[str]:
    shown = [("--ro-bind", path, path) for path in jail.shown]
    devices = ("--dev-bind", "/dev/null", "/dev/null")
    return [word for words in (*shown, ("--ro-bind", str(jail.loader), jail.command[0]), devices) for word in words]


def _isolation(sandbox: Sandbox, status_descriptor: int, filter_descriptor: int) -> list[str]:
    """Returns the end of bubblewrap's argument vector: namespaces, capabilities and the filter."""
    arguments = ["--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-net", "--unshare-cgroup-try"]
    arguments += ["--hostname", sandbox.hostname, "--new-session", "--cap-drop", "ALL"]
    # Only what is needed to become another user and to give the rest up; gone once that is done.
    for capability in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"):
        arguments += ["--cap-add", capability]
    arguments += ["--seccomp", str(filter_descriptor)]
    return [*arguments, "--json-status-fd", str(status_descriptor)]


def leave_network_namespaces() -> set[str]:
    """Unmounts the names of network namespaces in the calling thread's mount namespace, and returns where anything else
    is mounted.

    A copy of such a mount would keep a namespace alive for as long as the kernel runs, after the host removed it.
    """
    with contextlib.suppress(OSError):
        syscalls.unmount("/run/netns", syscalls.MNT_DETACH)
    points = mount_points(Path("/proc/thread-self/mountinfo").read_bytes())
    for path, kind in points.items():
        if kind == "nsfs":
            with contextlib.suppress(OSError):
                syscalls.unmount(path, syscalls.MNT_DETACH)
    return {path for path, kind in points.items() if kind != "nsfs"}


def mount_root(sandbox: Sandbox, settings: Settings) -> str:
    """Mounts the root in a private mount namespace of the calling thread, which must be a throw-away thread,
    and returns where.
    """
    syscalls.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_FS)
    # Slave, not private: what the host unmounts later is unmounted here as well.
    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_SLAVE)
    points = leave_network_namespaces()
    # What is written to the root counts to the kernel's memory, like /tmp, and ends like that before it is used up.
    syscalls.mount("tmpfs", str(settings.mount_point), "tmpfs", 0, f"mode=0755,size={sandbox.memory_files.temporary}")
    upper = settings.mount_point / "upper"
    upper.mkdir()
    if sandbox.jail is not None:
        for name, text in sandbox.files.items():
            make_parents(str(upper), str(Path(name).parent))
            (upper / name).write_text(text)
            (upper / name).chmod(0o644)
        for path in (*sandbox.jail.shown, sandbox.jail.command[0], "/dev/null"):
            # Bubblewrap would make them for root alone.
            make_parents(str(upper), str(Path(path).parent))
        return str(upper)
    os.chdir(upper)
    settings.layer.write(sandbox.files)
    for inside in (*sandbox.control_groups, *TOPOLOGY):
        # Bubblewrap would make them for root alone.
        make_parents(TOP, inside)
    # Linux says inside what an overlay is made of, in these words: there is no path of the host in them.
    os.chdir("..")
    for name in ("root", "scratch", "nothing"):
        os.mkdir(name)
    options = f"lowerdir=/,upperdir=upper,workdir=scratch,{OVERLAY_OPTIONS}"
    syscalls.mount("overlay", "root", "overlay", 0, options)
    settings.layer.mount_apart(f"root/{TOP}", points)
    os.chdir("/")
    return str(settings.mount_point / "root" / TOP)


@dataclass(frozen=True, slots=True)
class Ends:
    """Files by which a sandbox is reached: `barrier` and `output`, its standard error, are FIFOs that exist;
    `status` is made.
    """

    barrier: Path
    status: Path
    output: Path


class Launch(Protocol):
    """Runs something in a thread that is used for nothing else, with the start of its argument vector, and waits."""

    def __call__(self, action: Callable[[Sequence[str]], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        """Returns the result of the action."""
        ...


def start(
    sandbox: Sandbox, settings: Settings, ends: Ends, launch: Launch, meanwhile: Callable[[], None]
) -> subprocess.Popen[bytes]:
    """Starts the sandbox and returns once it is ready at its start barrier, blocking;
    the result is the process that watches it.

    `meanwhile` is done while it is set up. Raises SandboxError or OSError, and then what was started may not be gone.
    """
    ready, announce = os.pipe()
    try:
        monitor = _start(sandbox, settings, ends, launch, announce)
    except BaseException:
        os.close(ready)
        raise
    finally:
        os.close(announce)
    try:
        meanwhile()
        poller = select.poll()
        poller.register(ready, select.POLLIN)
        answered = bool(poller.poll(READY_TIMEOUT * 1000))
        if not answered or os.read(ready, 1) != b"\n":
            raise SandboxError("it ended before it was ready" if answered else "it took too long to be ready")
    except BaseException:
        monitor.kill()
        monitor.wait()
        raise
    finally:
        os.close(ready)
    return monitor


def _start(sandbox: Sandbox, settings: Settings, ends: Ends, launch: Launch, announce: int) -> subprocess.Popen[bytes]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    # For reading as well: the death of a reader must not end a writer.
    with (
        _opened(ends.barrier, os.O_RDWR) as barrier,
        _opened(ends.output, os.O_RDWR) as output,
        _opened(ends.status, flags) as status,
        memory_file(settings.filter) as calls,
        _opened(settings.enclose, os.O_RDONLY) as enclose,
    ):

        def inside(prefix: Sequence[str]) -> subprocess.Popen[bytes]:
            root = mount_root(sandbox, settings)
            arguments = outer_arguments(sandbox, settings, root, status, calls)
            with memory_file(b"".join(os.fsencode(word) + b"\0" for word in arguments)) as outer:
                return run(prefix, outer)

        def run(prefix: Sequence[str], outer: int) -> subprocess.Popen[bytes]:
            return subprocess.Popen(  # noqa: S603
                [*prefix, "bwrap", "--args", str(outer), "--", *inner_arguments(sandbox, f"/proc/self/fd/{enclose}")],
                stdin=barrier,
                stdout=announce,
                stderr=output,
                pass_fds=(status, calls, outer, enclose),
                env={"PATH": SEARCH_PATH} | {f"e{n}": value for n, value in enumerate(environment_of(sandbox))},
                start_new_session=True,
            )

        return launch(inside)


@contextlib.contextmanager
def memory_file(content: bytes) -> Iterator[int]:
    """Yields a descriptor from which one process reads the content."""
    descriptor = os.memfd_create("content", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
