"""Starts a command in a sandbox over the host's own root, by bubblewrap, and holds it at a start barrier.

The root is an overlay: the host's `/` below, a private writable layer above. That layer is in memory, counted to the
kernel's limit: an upper layer that lies within the lower one is undefined. All is mounted in a mount namespace of the
thread that starts bubblewrap, so nothing is ever mounted on the host and nothing has to be unmounted.

Inside, in this order: bubblewrap's reaper (process 1), then as process 2 `setpriv`, which becomes an unprivileged user
without any capability, then a shell that writes a line to standard output (the sandbox is ready), waits for a line on
standard input (the start barrier) and becomes `env`, which sets the environment and becomes the command. Standard input
is a FIFO opened for reading and writing, so that the death of an agent does not open the barrier,
and a later agent can.

The user's environment travels as the values of variables `e0`, `e1`, … until then: nothing that runs with privileges
ever sees a variable that the user named, and no process list shows a value.
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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from retinue.agent.attempts import Owner
    from retinue.agent.host.core.limits import MemoryFiles
    from retinue.agent.process.jail import Jail

SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
USER_NAME = "work"
MASKED = ("/run", "/root", "/home", "/mnt", "/media")
"""Directories of the host that are empty inside."""
SEPARATE = ("/usr", "/usr/local", "/opt", "/srv", "/var", "/var/lib")
"""Directories that may be mounts of their own on the host; an overlay of `/` does not reach into those."""
TOPOLOGY = ("/sys/devices/system/cpu", "/sys/devices/system/node")
"""Directories of the host that say which processors and memory it has: hwloc, with which MPI begins, reads them."""
STDOUT = "/dev/output"
"""The pipe of the command's standard output inside, if it has one of its own."""
IDLE = ("sleep", "infinity")
READY_TIMEOUT = 30.0
"""Seconds a sandbox may take to be ready."""


class SandboxError(Exception):
    """The sandbox could not be set up; the text says why."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings common to all sandboxes of an agent.

    `mount_point` is an empty directory used inside private mount namespaces only; `hidden` are paths of the host that
    are empty inside, besides the usual ones. `filter` is what `system_calls` has built.
    """

    mount_point: Path
    hidden: tuple[str, ...]
    filter: bytes


@dataclass(frozen=True, slots=True)
class Root:
    """The mount point of the root, and the replacements of directories that are mounts of their own on the host."""

    path: str
    separate: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Sandbox:
    """One sandbox to be started.

    `files` are texts by path below the root, without the leading slash; `control_groups` are the host's directories
    by path inside. `work` is the command's writable home, `stdout` the pipe of its standard output, None where that
    goes to standard error's. It starts in `directory`, relative to its home. `server` is run beside the command, with
    the same environment. `memory_files` are the sizes of its file systems in memory. `user` is the command's. In a
    `jail`, the root holds nothing but `files` and what the jail shows, and the jail's command takes the place of all
    else.
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
    directory: str = "."


def hidden_paths(paths: Iterable[Path]) -> tuple[str, ...]:
    """Returns the paths that have to be hidden one by one, links followed; others lie in a hidden directory."""
    masked = [Path(path) for path in ("/tmp", *MASKED)]  # noqa: S108
    real = {path.resolve() for path in paths}
    return tuple(sorted(str(path) for path in real if not any(path.is_relative_to(mask) for mask in masked)))


def barrier_script(variables: int, server: Sequence[str] = (), *, stdout: bool = False, directory: str = ".") -> str:
    """Returns the shell's program: say ready, wait for an empty line, become the command with
    an environment of its own in `directory`.

    A line before that says that the network is there: with the first of them, the server is started. With `stdout`
    standard output has a pipe of its own, else it is standard error.
    """
    values = " ".join(f'"$e{number}"' for number in range(variables))
    # The server's parent ends at once, so that the command has no child it does not know of.
    start = f"(setsid env -i {values} {shlex.join(server)} </dev/null >/dev/null 2>&1 &)" if server else ":"
    wait = f'while read -r word && [ "$word" ]; do [ "$up" ] || {start}; up=1; done'
    # For reading as well: the death of a reader must not end a writer.
    output = f"1<>{STDOUT}" if stdout else ">&2"
    enter = f"{{ cd {shlex.quote(directory)} || exit {NO_DIRECTORY}; }}"
    return (
        f'cd {HOME} && ulimit -c 0 && echo && {{ {wait}; }} && {enter} && exec env -i {values} "$@" </dev/null {output}'
    )


def inner_arguments(sandbox: Sandbox) -> list[str]:
    """Returns the argument vector of what runs inside."""
    if sandbox.jail is not None:
        return list(sandbox.jail.command)
    command = sandbox.command or IDLE
    if "=" in command[0]:
        # `env` would take it for one more variable.
        command = ("/bin/sh", "-c", 'exec "$@"', "sh", *command)
    become = ["setpriv", f"--reuid={sandbox.user.uid}", f"--regid={sandbox.user.gid}", "--clear-groups"]
    become += ["--bounding-set=-all", "--inh-caps=-all"]
    script = barrier_script(
        len(environment_of(sandbox)),
        sandbox.server,
        stdout=sandbox.stdout is not None,
        directory=sandbox.directory,
    )
    return [*become, "/bin/sh", "-c", script, "sh", *command]


def environment_of(sandbox: Sandbox) -> list[str]:
    """Returns the command's environment as `NAME=VALUE`; a few defaults, then what the user set."""
    defaults = {"PATH": SEARCH_PATH, "HOME": HOME, "LANG": "C.UTF-8"} | login_variables(USER_NAME, sandbox.environment)
    return [f"{name}={value}" for name, value in (defaults | dict(sandbox.environment)).items()]


def outer_arguments(
    sandbox: Sandbox, settings: Settings, root: Root, status_descriptor: int, filter_descriptor: int
) -> list[str]:
    """Returns the argument vector of bubblewrap, up to the inner command; the filter is read from its descriptor."""
    arguments = ["bwrap", "--bind", root.path, "/"]
    if sandbox.jail is not None:
        return [*arguments, *_jail_arguments(sandbox.jail), *_isolation(sandbox, status_descriptor, filter_descriptor)]
    for path, shown in root.separate.items():
        arguments += ["--ro-bind", shown, path]
    arguments += ["--dev", "/dev", *_temporary("/dev/shm", sandbox.memory_files.shared), "--proc", "/proc"]  # noqa: S108
    arguments += _temporary("/tmp", sandbox.memory_files.temporary)  # noqa: S108
    for path in (*MASKED, *settings.hidden):
        if Path(path).is_dir():
            arguments += ["--tmpfs", path]
        elif Path(path).exists():
            arguments += ["--ro-bind", "/dev/null", path]
    arguments += ["--bind", str(sandbox.work), HOME, "--chdir", "/"]
    if sandbox.stdout is not None:
        arguments += ["--bind", str(sandbox.stdout), STDOUT]
    for path in TOPOLOGY:
        arguments += ["--ro-bind-try", path, path]
    for inside, outside in sandbox.control_groups.items():
        arguments += ["--ro-bind", outside, inside]
    return [*arguments, *_isolation(sandbox, status_descriptor, filter_descriptor)]


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
    return [*arguments, "--json-status-fd", str(status_descriptor), "--"]


def leave_network_namespaces() -> None:
    """Unmounts the names of network namespaces in the calling thread's mount namespace.

    A copy of such a mount would keep a namespace alive for as long as the kernel runs, after the host removed it.
    """
    with contextlib.suppress(OSError):
        syscalls.unmount("/run/netns", syscalls.MNT_DETACH)
    for line in Path("/proc/thread-self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith("nsfs "):
            with contextlib.suppress(OSError):
                syscalls.unmount(before.split()[4].encode().decode("unicode_escape"), syscalls.MNT_DETACH)


def mount_root(sandbox: Sandbox, settings: Settings) -> Root:
    """Mounts the root in a private mount namespace of the calling thread, which must be a throw-away thread."""
    syscalls.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_FS)
    # Slave, not private: what the host unmounts later is unmounted here as well.
    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_SLAVE)
    leave_network_namespaces()
    # What is written to the root counts to the kernel's memory, like /tmp, and ends like that before it is used up.
    syscalls.mount("tmpfs", str(settings.mount_point), "tmpfs", 0, f"mode=0755,size={sandbox.memory_files.temporary}")
    root, upper, scratch = (settings.mount_point / name for name in ("root", "upper", "scratch"))
    for directory in (root, upper, scratch):
        directory.mkdir()
    for name, text in sandbox.files.items():
        _make_parents(upper, Path(name).parent)
        (upper / name).write_text(text)
        (upper / name).chmod(0o644)
    if sandbox.jail is not None:
        for path in (*sandbox.jail.shown, sandbox.jail.command[0], "/dev/null"):
            # Bubblewrap would make them for root alone.
            _make_parents(upper, Path(path.lstrip("/")).parent)
        return Root(str(upper), {})
    for inside in (*sandbox.control_groups, *TOPOLOGY):
        # Bubblewrap would make them for root alone.
        _make_parents(upper, Path(inside.lstrip("/")))
    syscalls.mount("overlay", str(root), "overlay", 0, f"lowerdir=/,upperdir={upper},workdir={scratch}")
    return Root(str(root), _mount_separate(settings.mount_point))


def _mount_separate(mount_point: Path) -> dict[str, str]:
    """Shows the host's separate mounts through overlays as well: sockets of daemons in them lead nowhere then."""
    shown: dict[str, str] = {}
    nothing = mount_point / "nothing"
    for path in filter(os.path.ismount, SEPARATE):
        nothing.mkdir(exist_ok=True)
        overlay = mount_point / f"separate{len(shown)}"
        overlay.mkdir()
        # Without an upper layer it takes two lower ones, and is read-only.
        syscalls.mount("overlay", str(overlay), "overlay", 0, f"lowerdir={path}:{nothing}")
        shown[path] = str(overlay)
    return shown


def _make_parents(base: Path, relative: Path) -> None:
    for part in (*reversed(relative.parents[:-1]), relative):
        directory = base / part
        if part != Path() and not directory.exists():
            directory.mkdir()
            directory.chmod(0o755)


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
        filter_file(settings.filter) as calls,
    ):

        def inside(prefix: Sequence[str]) -> subprocess.Popen[bytes]:
            root = mount_root(sandbox, settings)
            return subprocess.Popen(  # noqa: S603
                [
                    *(*prefix, *outer_arguments(sandbox, settings, root, status, calls)),
                    *inner_arguments(sandbox),
                ],
                stdin=barrier,
                stdout=announce,
                stderr=output,
                pass_fds=(status, calls),
                env={"PATH": SEARCH_PATH} | {f"e{n}": value for n, value in enumerate(environment_of(sandbox))},
                start_new_session=True,
            )

        return launch(inside)


@contextlib.contextmanager
def filter_file(program: bytes) -> Iterator[int]:
    """Yields a descriptor from which one process reads the filter."""
    descriptor = os.memfd_create("filter", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, program)
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
