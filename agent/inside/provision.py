"""Provisions a kernel with what its image does not hold: an account, ssh to the other kernels,
and directories of the node.

It is put there while the kernel is held at its start barrier, so that nothing of the user's runs yet: a thread enters
the kernel's own mount namespace and attaches mounts that were detached before. The node never sees any of them, nothing
has to be unmounted, and keys lie in memory only; all of it goes with the kernel.
It is the same for every kind of kernel.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from retinue.agent.host import syscalls
from retinue.agent.host.id_mapped import OwnerMaps
from retinue.agent.host.launch_threads import in_own_thread
from retinue.agent.kernel.core.accounts import BASH, PROFILE, SHELL, SHELLS, profile, with_group, with_shell, with_user
from retinue.agent.kernel.core.ssh import CONFIG, HOST_KEY, IDENTITY, KNOWN_HOSTS, host_names, ssh_files
from retinue.agent.kernel.paths import FILES, HOME, PROGRAMS, SHELL_PROGRAM, STEP_NAMES, STEPS
from retinue.agent.kernel.ssh_programs import find_programs
from retinue.agent.network import namespaces
from retinue.agent.network.errors import NetworkError
from retinue.rpc.core.reasons import AttemptReason

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from retinue.agent.attempts import AttemptSpec, Mount, Owner
    from retinue.agent.host.processes import Process
    from retinue.agent.kernel.core.ssh import SshFiles

SEARCHED = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
PLANTED = ("/usr/local/bin", "/usr/bin", "/bin")
"""The directories in which a program of ours gets a name, in order of preference: some of it may be read-only."""
NOT_PLANTED = ("/dev", "/home", "/proc", "/root", "/run", "/sys", "/tmp", "/var")  # noqa: S108
"""Directories that are a kernel's own, in memory, or nothing that an image has its programs in."""
CLIENTS = ("ssh", "scp", "sftp")
CLIENT_CONFIG = Path("/etc/ssh/ssh_config")
NO_PRIVILEGES = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV
KEY_SPACE = {"mode": "0755", "size": "1m", "nr_inodes": "16"}
WITHOUT_RESOLVER = "# Names of the session are in /etc/hosts; there is no name server.\n"
"""The resolv.conf of kernels without egress."""
LARGEST_FILE = 1 << 20
"""Bytes of a file of an image that is read."""
NETWORK_SETTINGS = {"ipv4/ip_unprivileged_port_start": "0", "ipv4/ping_group_range": "0 2147483647"}
"""Settings of a kernel's own network, by name below net: as Docker has them, programs may listen on any port and send
echo requests.
"""
IN_MEMORY, FOR_ALL = ("/tmp", "/dev/shm"), 0o1777  # noqa: S108
"""Where kernels have a file system of their own in memory, and its permissions."""
TERMINALS, TERMINAL_LIMIT = "/dev/pts", 64
"""Where a kernel has its terminals, and how many at a time: Linux has some 3,000 for all kernels of a node together."""
TERMINAL_OPTIONS = frozenset({"uid", "gid", "mode", "ptmxmode"})
MOUNT_REFUSED = AttemptReason.MOUNT_REFUSED
"""Reason of attempts that failed for a mount."""


class UnfitFileError(OSError):
    """A file of an image that has to be read is not what one is; the text says which."""

    def __init__(self, path: object) -> None:
        """`path` is where it is in the image."""
        super().__init__(f"{path} in it is no plain file of at most {LARGEST_FILE >> 20} MiB")


class MountRefusedError(Exception):
    """A directory of the node cannot be given to a kernel; the text says which, and why."""


@dataclass(frozen=True, slots=True)
class Ssh:
    """The ssh setup of a kernel: the node's directory of programs, and files of the session."""

    programs: Path
    files: SshFiles


@dataclass(frozen=True, slots=True)
class Provision:
    """The provision of a kernel.

    `user` is the kernel's on the node, `further` are its groups beside that one's, and `default` is the owner of mounts
    that name none. `forbidden` are directories of the node that no mount may show. At `bound` there are mounts that
    give no privileges either. `steps` is the program that starts the tasks of a job. `server` has the files of an SFTP
    server by name, with whether they are for the user only: there is nothing else of an image in its kernel.
    `search_path` is that of the kernel's command. With `has_account` its files name its user, and that path, already.
    """

    user: Owner
    default: Owner
    ssh: Ssh | None = None
    mounts: Sequence[Mount] = ()
    forbidden: Sequence[Path] = ()
    further: Collection[int] = ()
    bound: Sequence[str] = ()
    steps: Path | None = None
    server: Mapping[str, tuple[bytes, bool]] = field(default_factory=dict)
    search_path: str = ""
    has_account: bool = False


def wants_ssh(spec: AttemptSpec) -> bool:
    """Returns whether a kernel is one of several that reach each other by ssh."""
    return spec.networked and bool(spec.session_secret) and spec.sftp is None


def ssh_of(spec: AttemptSpec, hosts: str, cache_dir: Path) -> Ssh | None:
    """Returns the ssh setup for a kernel of a cluster session; None for others,
    and while the programs are not built.
    """
    if not wants_ssh(spec) or (programs := find_programs(cache_dir)) is None:
        return None
    return Ssh(programs, ssh_files(spec.session_secret, host_names(hosts)))


def provision_kernel(process: Process, provision: Provision) -> None:
    """Provisions the kernel whose first process is given and waits at its start barrier. Its programs may listen on any
    port of its own network, but for an SFTP server's. Blocks.

    Raises MountRefusedError, UnfitFileError, OSError.
    """
    with contextlib.ExitStack() as stack:
        namespace = stack.enter_context(_closing(os.open(f"/proc/{process.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)))
        network = None if provision.server else stack.enter_context(_opened_network(process))
        # Paths of the node are looked up before, in the node's own view,
        # so that what is mounted later cannot be exchanged.
        shared = stack.enter_context(opened_mounts(provision))
        mounted: list[tuple[str, int]] = []
        if (ssh := provision.ssh) is not None:
            programs = stack.enter_context(_closing(_clone(ssh.programs, NO_PRIVILEGES | syscalls.MOUNT_ATTR_RDONLY)))
            keys = stack.enter_context(_closing(_key_mount(ssh.files, provision.user)))
            mounted = [(PROGRAMS, programs), (FILES, keys)]
        steps = None
        if provision.steps is not None and not provision.server:
            steps = stack.enter_context(_closing(_clone(provision.steps, NO_PRIVILEGES | syscalls.MOUNT_ATTR_RDONLY)))
        if provision.server:
            mounted = [(FILES, stack.enter_context(_closing(_server_mount(provision))))]

        terminals = _terminal_options(process.pid)

        def inside() -> None:
            if network is not None:
                # Before the kernel's mounts, which show less of /proc. One thread for both: each costs its start.
                syscalls.enter(network, syscalls.CLONE_NEWNET)
                namespaces.write_settings(NETWORK_SETTINGS)
            syscalls.unshare(syscalls.CLONE_FS)
            syscalls.enter(namespace, syscalls.CLONE_NEWNS)
            os.umask(0o022)
            for path in provision.bound:
                with _closing(os.open(path, os.O_PATH | os.O_CLOEXEC)) as there:
                    syscalls.set_attributes(there, NO_PRIVILEGES)
            if terminals is not None:
                flags = syscalls.MS_REMOUNT | syscalls.MS_NOSUID | syscalls.MS_NOEXEC
                syscalls.mount(None, TERMINALS, None, flags, terminals)
            for path in filter(os.path.ismount, IN_MEMORY):
                # runc gives a file system in memory the permissions that the image's directory has, kubelet all.
                Path(path).chmod(FOR_ALL)
            for target, mount in mounted:
                _attach(target, mount, provision)
            if not (provision.server or provision.has_account):
                _set_up_account(provision)
            if provision.ssh is not None:
                _set_up_ssh(provision.ssh, provision)
            if steps is not None:
                _set_up_steps(steps, provision)
            for wanted, mount in zip(provision.mounts, shared, strict=True):
                try:
                    _attach(wanted.target, mount, provision)
                except OSError as error:
                    raise MountRefusedError(f"{wanted.target} cannot be mounted: {error.strerror}") from error

        in_own_thread(inside)


@contextlib.contextmanager
def _opened_network(process: Process) -> Iterator[int]:
    """Yields the network of a kernel. Raises OSError."""
    try:
        with namespaces.NamespaceOf(process).opened() as network:
            yield network
    except NetworkError as error:
        raise OSError(str(error)) from error


@contextlib.contextmanager
def opened_mounts(provision: Provision) -> Iterator[Sequence[int]]:
    """Yields what a kernel's mounts show, as detached mounts. Blocks. Raises MountRefusedError."""
    with contextlib.ExitStack() as stack:
        maps = stack.enter_context(OwnerMaps(provision.user, provision.default, provision.further))
        yield [
            stack.enter_context(_closing(open_shared(mount, maps, provision.forbidden))) for mount in provision.mounts
        ]


def open_shared(mount: Mount, maps: OwnerMaps, forbidden: Sequence[Path] = ()) -> int:
    """Opens what a mount shows, as a detached mount. Links are followed as far as they stay beneath the root."""
    try:
        root = os.open(mount.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise MountRefusedError(f"{mount.root} cannot be opened on this node: {error.strerror}") from error
    with _closing(root):
        try:
            directory = syscalls.open_beneath(root, mount.path or ".")
        except OSError as error:
            raise MountRefusedError(f"{mount.source} cannot be used on this node: {_why(error)}") from error
    with _closing(directory):
        found = Path(os.readlink(f"/proc/self/fd/{directory}"))
        for path in forbidden:
            # Neither the agent's own files, nor anything they lie in.
            if found.is_relative_to(path) or path.is_relative_to(found):
                raise MountRefusedError(f"{mount.source} leads to files of the agent")
        attributes = NO_PRIVILEGES if mount.writable else NO_PRIVILEGES | syscalls.MOUNT_ATTR_RDONLY
        try:
            return maps.clone(directory, attributes, mount.owner)
        except OSError as error:
            raise MountRefusedError(f"{mount.source} cannot be mounted: {error.strerror or error}") from error


def _why(error: OSError) -> str:
    """Returns the meaning of an error of `openat2`."""
    match error.errno:
        case errno.EXDEV | errno.ELOOP:
            return "a link leads out of what may be mounted"
        case errno.ENOENT:
            return "there is no such directory"
        case errno.ENOTDIR:
            return "it is not a directory"
        case _:
            return error.strerror or str(error)


def _clone(path: Path, attributes: int) -> int:
    with _closing(os.open(path, os.O_PATH | os.O_CLOEXEC)) as opened:
        return syscalls.clone_mount(opened, attributes)


def _key_mount(files: SshFiles, user: Owner) -> int:
    mount = syscalls.memory_mount(KEY_SPACE)
    try:
        for name, content in ((HOST_KEY, files.host_key), (IDENTITY, files.identity)):
            _write_new(mount, name, content, 0o400, (user.uid, user.gid))
        for name, text in ((KNOWN_HOSTS, files.known_hosts), (CONFIG, files.config)):
            _write_new(mount, name, text.encode(), 0o444, (0, 0))
        syscalls.set_attributes(mount, NO_PRIVILEGES | syscalls.MOUNT_ATTR_NOEXEC | syscalls.MOUNT_ATTR_RDONLY)
    except BaseException:
        os.close(mount)
        raise
    return mount


def _server_mount(provision: Provision) -> int:
    """Returns a mount with the files of a server. It stays writable: keys change,
    and the host's is emptied once it was read.
    """
    mount = syscalls.memory_mount(KEY_SPACE)
    try:
        for name, (content, private) in provision.server.items():
            owner = (provision.user.uid, provision.user.gid) if private else (0, 0)
            _write_new(mount, name, content, 0o400 if private else 0o444, owner)
        syscalls.set_attributes(mount, NO_PRIVILEGES | syscalls.MOUNT_ATTR_NOEXEC)
    except BaseException:
        os.close(mount)
        raise
    return mount


def _write_new(directory: int | None, name: str, content: bytes, mode: int, owner: tuple[int, int]) -> None:
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=directory)
    try:
        os.write(descriptor, content)
        os.fchown(descriptor, *owner)
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)


def _attach(target: str, mount: int, provision: Provision) -> None:
    _make_directories(Path(target), provision)
    with _closing(os.open(target, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as directory:
        syscalls.attach_mount(mount, directory)


def _make_directories(path: Path, provision: Provision) -> None:
    for part in (*reversed(path.parents), path):
        if not part.is_dir():
            part.mkdir(mode=0o755)
            if part.is_relative_to(HOME):
                os.chown(part, provision.user.uid, provision.user.gid)


def _terminal_options(pid: int) -> str | None:
    """Returns how a kernel's terminals have to be mounted for there to be a bound; None where it has none of its own.

    What is not named again falls back to what Linux has by default.
    """
    lines = map(str.split, Path(f"/proc/{pid}/mountinfo").read_text().splitlines())
    found = {line[4]: line for line in lines}.get(TERMINALS)
    if found is None:
        return None
    if os.path.ismount(TERMINALS):
        device = Path(TERMINALS).stat().st_dev
        if found[2] == f"{os.major(device)}:{os.minor(device)}":
            return None
    kept = [word for word in found[-1].split(",") if word.partition("=")[0] in TERMINAL_OPTIONS]
    return ",".join([*kept, f"max={TERMINAL_LIMIT}"])


def _set_up_account(provision: Provision) -> None:
    """Gives the kernel's user a name, in what the image knows of users: without one, many programs do not start."""
    uid, gid, named = provision.user.uid, provision.user.gid, provision.ssh is not None
    shell = BASH if Path(BASH).exists() else SHELL
    _edit(Path("/etc/passwd"), lambda text: with_user(text, uid, gid, named=named, shell=shell))
    _edit(Path("/etc/group"), lambda text: with_group(text, gid))
    if named:
        _edit(Path(SHELLS), lambda text: with_shell(text, shell))
    if provision.search_path and Path(PROFILE).parent.is_dir():
        _edit(Path(PROFILE), lambda _text: profile(provision.search_path))


def _set_up_ssh(ssh: Ssh, provision: Provision) -> None:
    owner = (provision.user.uid, provision.user.gid)
    directory = Path(HOME, ".ssh")
    directory.mkdir(mode=0o700)
    os.chown(directory, *owner)
    _write_new(None, str(directory / "authorized_keys"), ssh.files.authorized_keys.encode(), 0o600, owner)
    if _has("ssh"):
        # A client of the image's own reads the image's configuration.
        _edit(CLIENT_CONFIG, lambda text: f"{ssh.files.config}Host *\n{text}")
    for name in CLIENTS:
        if not _has(name):
            _plant(f"{PROGRAMS}/{name}", name, _places(provision))
    if not Path(SHELL).exists() and Path(PROGRAMS, SHELL_PROGRAM).exists():
        _plant(f"{PROGRAMS}/{SHELL_PROGRAM}", SHELL_PROGRAM, (str(Path(SHELL).parent),))


def _set_up_steps(mount: int, provision: Provision) -> None:
    """Attaches the program that starts tasks, also over those of the same names that an image or a node has: they have
    no cluster.
    """
    _make_directories(Path(STEPS).parent, provision)
    Path(STEPS).touch(mode=0o755)
    with _closing(os.open(STEPS, os.O_PATH | os.O_CLOEXEC)) as file:
        syscalls.attach_mount(mount, file)
    directories = covered(provision.search_path, [mount.target for mount in provision.mounts])
    for name in STEP_NAMES:
        # Names of one directory twice, as /bin is often a link, would be covered twice.
        for directory in dict.fromkeys(map(os.path.realpath, directories)):
            _cover(Path(directory, name))
        # An image may have no place for names: the program is there all the same.
        with contextlib.suppress(OSError):
            _plant(STEPS, name, _places(provision))


def _cover(program: Path) -> None:
    """Mounts the program that starts tasks over another, where there is one. A link is covered itself, not the program
    that it leads to: that may have other names too. Raises OSError.
    """
    try:
        found = os.open(program, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    with _closing(found) as file:
        if stat.S_ISDIR(os.fstat(file).st_mode):
            return
        with _closing(_clone(Path(STEPS), NO_PRIVILEGES | syscalls.MOUNT_ATTR_RDONLY)) as mount:
            syscalls.attach_mount(mount, file)


def _has(program: str) -> bool:
    return any(Path(directory, program).exists() for directory in SEARCHED)


def places(search_path: str, mounts: Iterable[str] = ()) -> Sequence[str]:
    """Returns the directories in which programs of ours get names, in order of preference: first those in which a
    kernel's command looks for programs, as images may name others than the usual ones. `mounts` cover what is in them.
    """
    searched = _searched(search_path)
    if not searched or not set(PLANTED).isdisjoint(searched):
        return sorted(PLANTED, key=lambda place: bool(searched) and place not in searched)
    return (*_uncovered(searched, mounts), *PLANTED)


def covered(search_path: str, mounts: Iterable[str] = ()) -> Sequence[str]:
    """Returns the directories in which other programs may lie that a kernel's command would run instead of ours."""
    return (*SEARCHED, *(place for place in _uncovered(_searched(search_path), mounts) if place not in SEARCHED))


def _searched(search_path: str) -> Sequence[str]:
    return [str(PurePosixPath(part)) for part in search_path.split(":") if part.startswith("/") and ".." not in part]


def _uncovered(searched: Iterable[str], mounts: Iterable[str]) -> Iterable[str]:
    hidden = (*NOT_PLANTED, *mounts)
    return (
        place
        for place in searched
        if place != "/" and not any(PurePosixPath(place).is_relative_to(each) for each in hidden)
    )


def _places(provision: Provision) -> Sequence[str]:
    return places(provision.search_path, [mount.target for mount in provision.mounts])


def _plant(program: str, name: str, directories: Sequence[str]) -> None:
    """Gives a program a name in the first directory that takes one. Raises OSError where none does, unless all are
    read-only.
    """
    wrong: OSError | None = None
    for directory in directories:
        try:
            Path(directory).mkdir(mode=0o755, parents=True, exist_ok=True)
            Path(directory, name).symlink_to(program)
        except FileExistsError:
            if Path(directory).is_dir():
                return
        except OSError as error:
            if error.errno != errno.EROFS:
                wrong = error
        else:
            return
    if wrong is not None:
        raise wrong


def _edit(path: Path, change: Callable[[str], str]) -> None:
    """Changes a file of the image; it is made if it is not there, and stays as it is if there is nothing to change."""
    before = _read(path)
    after = change(before)
    if after != before:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.write_text(after, errors="surrogateescape")
        path.chmod(0o644)


def _read(path: Path) -> str:
    """Returns a file of the image, empty when it is not there. Nothing runs yet that could exchange it.

    An image may hold anything there: what blocks, what never ends, and a disk of the node.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        return ""
    if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST_FILE:
        raise UnfitFileError(path)
    return path.read_text(errors="surrogateescape")


@contextlib.contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)
