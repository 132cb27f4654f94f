"""Starts QEMU in a sandbox: a user of its own, no capability, and namespaces of its own,
with a tap for each network of the kernel.

All it sees of the node is what a native process sees, read-only, the directory of its sockets, and what the guest is
shown: the work directory and mounts, and the node's root for kernels without an image.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.agent.attempts import Owner
from retinue.agent.host import syscalls
from retinue.agent.host.core.limits import MemoryFiles
from retinue.agent.host.id_mapped import swapped, user_namespace
from retinue.agent.host.launch_threads import in_own_thread
from retinue.agent.inside.provision import opened_mounts
from retinue.agent.process import bubblewrap
from retinue.agent.vm.core.machine import (
    MOUNT,
    ROOT,
    SHARE,
    SHARED_PROGRAMS,
    SHARED_PYTHON,
    SOCKETS,
    Descriptors,
    Machine,
    arguments,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from retinue.agent.host.processes import Process
    from retinue.agent.inside.provision import Provision
    from retinue.agent.kernel.guest_linux import GuestLinux

TUN = "/dev/net/tun"
KVM = Path("/dev/kvm")
_TUNSETIFF = 0x400454CA
# A tap without packet information, whose frames say which checksums are to be made.
_TAP_FLAGS = 0x0002 | 0x1000 | 0x4000
TAP = "tap{}"
WORK = "work"


@dataclass(frozen=True, slots=True)
class Ends:
    """Files by which a machine is reached. `output`, `console` and `machine_status` are FIFOs that exist;
    `status` is made.
    """

    status: Path
    output: Path
    console: Path
    machine_status: Path
    sockets: Path


@dataclass(frozen=True, slots=True)
class VmSandbox:
    """One virtual machine to be started. `image` is the file of an image's root; None shows the node's own.
    `uid` and `gid` are QEMU's user; the guest sees them as those `shown`, the user and group that an image names.
    """

    machine: Machine
    work: Path
    uid: int
    gid: int
    taps: int
    image: Path | None = None
    shown: tuple[int, int] | None = None


def start_qemu(
    sandbox: VmSandbox, settings: bubblewrap.Settings, ends: Ends, linux: GuestLinux, prefix: Sequence[str]
) -> subprocess.Popen[bytes]:
    """Starts QEMU in a thread that is used for nothing else; the result is the process that watches over it.
    Raises OSError.

    `prefix` is the start of the argument vector.
    """
    with contextlib.ExitStack() as stack:

        def opened(path: Path, flags: int) -> int:
            descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, descriptor)
            return descriptor

        status = opened(ends.status, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        # For reading as well: the death of a reader must lose nothing.
        fifos = (ends.machine_status, ends.output, ends.console)
        readers = [opened(fifo, os.O_RDONLY | os.O_NONBLOCK) for fifo in fifos]
        writers = [opened(fifo, os.O_WRONLY | os.O_APPEND) for fifo in fifos]
        files = (opened(linux.linux, os.O_RDONLY), opened(linux.initramfs, os.O_RDONLY))
        image = None if sandbox.image is None else opened(sandbox.image, os.O_RDONLY)
        namespace = None
        if (shown := sandbox.shown) is not None:
            maps = swapped(sandbox.uid, shown[0]), swapped(sandbox.gid, shown[1])
            namespace = stack.enter_context(user_namespace(*maps))
        syscalls.unshare(syscalls.CLONE_NEWNET)
        taps = tuple(stack.enter_context(open_tap(TAP.format(number))) for number in range(sandbox.taps))
        view = bubblewrap.Sandbox(
            "vm", (), {}, {}, {}, sandbox.work, Owner(sandbox.uid, sandbox.gid), MemoryFiles.of({}, 0)
        )
        root = bubblewrap.mount_root(view, settings)
        descriptors = Descriptors(writers[0], writers[1], writers[2], files[0], files[1], taps, image)
        passed = [status, *readers, *writers, *files, *taps, *(one for one in (image, namespace) if one is not None)]
        return subprocess.Popen(  # noqa: S603
            [
                *(*prefix, "bwrap", *_outer(sandbox, settings, ends, root, status), "--", *_become(sandbox, namespace)),
                *arguments(sandbox.machine, descriptors),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=writers[2],
            pass_fds=passed,
            env={"PATH": bubblewrap.SEARCH_PATH},
            start_new_session=True,
        )


@contextlib.contextmanager
def open_tap(name: str) -> Iterator[int]:
    """Makes a tap in the calling thread's network namespace; QEMU never opens a device by itself."""
    descriptor = os.open(TUN, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TAP_FLAGS))
        yield descriptor
    finally:
        os.close(descriptor)


def _become(sandbox: VmSandbox, namespace: int | None) -> list[str]:
    """Returns the argument vector by which QEMU becomes its user.

    In a user `namespace` it is another one by number only: the files of the work directory are its own there, and the
    guest is shown that number.
    """
    uid, gid = sandbox.shown or (sandbox.uid, sandbox.gid)
    enter = [] if namespace is None else ["nsenter", f"--user=/proc/self/fd/{namespace}"]
    further = further_groups(sandbox.machine)
    groups = f"--groups={','.join(map(str, further))}" if further else "--clear-groups"
    user = [f"--reuid={uid}", f"--regid={gid}"]
    return [*enter, "setpriv", *user, groups, "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]


def further_groups(machine: Machine) -> tuple[int, ...]:
    """Returns the groups that QEMU is in beside that of its user. Raises OSError."""
    return (KVM.stat().st_gid,) if machine.accelerator == "kvm" else ()


def _outer(sandbox: VmSandbox, settings: bubblewrap.Settings, ends: Ends, root: str, status: int) -> list[str]:
    """Returns bubblewrap's own arguments."""
    words = [*_node(root, settings, "/"), "--dev", "/dev", "--proc", "/proc"]
    if sandbox.machine.accelerator == "kvm":
        words += ["--dev-bind", str(KVM), str(KVM)]
    if sandbox.image is None:
        words += _node(root, settings, ROOT)
    for path in (SHARE, f"{SHARE}/{SHARED_PROGRAMS}", f"{SHARE}/{SHARED_PYTHON}"):
        # Bubblewrap would make them for root alone.
        words += ["--perms", "0755", "--dir", path]
    words += ["--bind", str(ends.sockets), SOCKETS, "--bind", str(sandbox.work), f"{SHARE}/{WORK}"]
    words += ["--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try", "--new-session"]
    words += ["--cap-drop", "ALL"]
    # Only what is needed to become another user and to give the rest up; gone once that is done.
    for capability in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"):
        words += ["--cap-add", capability]
    return [*words, "--json-status-fd", str(status)]


def _node(root: str, settings: bubblewrap.Settings, at: str) -> list[str]:
    """Returns the arguments that show the node's root, as native processes see it, read-only."""
    prefix = at.rstrip("/")
    words = ["--ro-bind", root, at]
    for path in ("/tmp", *bubblewrap.MASKED):  # noqa: S108
        words += ["--tmpfs", prefix + path]
    return [*words, *bubblewrap.masks(root, settings, prefix)]


def show_mounts(init: Process, provision: Provision) -> None:
    """Shows directories of the node in the share of a machine, whose first process is `init`. Blocks.
    Raises MountRefusedError, OSError.
    """
    with contextlib.ExitStack() as stack:
        namespace = os.open(f"/proc/{init.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, namespace)
        # In the node's own view: what is mounted later cannot be exchanged.
        shown = stack.enter_context(opened_mounts(provision))

        def inside() -> None:
            syscalls.unshare(syscalls.CLONE_FS)
            syscalls.enter(namespace, syscalls.CLONE_NEWNS)
            os.umask(0o022)
            for number, mount in enumerate(shown):
                target = Path(SHARE, MOUNT.format(number))
                target.mkdir(mode=0o755)
                place = os.open(target, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    syscalls.attach_mount(mount, place)
                finally:
                    os.close(place)

        in_own_thread(inside)
