"""Shows a kernel the files of shared directories as its own user's, although each kernel has a user of its own.

On the disk all of them belong to one user, the agent's `--uid`: so kernels of different users of a project, and one
after another, work on the same files. Linux translates in between, by the user namespace that a mount carries
(mount_setattr(2), "ID-mapped mounts"). Few file systems cannot do that, NFS among them;
kernels with mounts from there run as the common user.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.agent.host import syscalls

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from retinue.agent.attempts import Mount

_IDS = 1 << 32
"""The number of user ids; the last one is not a user."""


def swapped(one: int, other: int) -> str:
    """Returns the map of users, as for /proc/PID/uid_map, by which two of them change places. Pure."""
    if one == other:
        return f"0 0 {_IDS - 1}\n"
    low, high = sorted((one, other))
    extents = [(0, 0, low), (low, high, 1), (low + 1, low + 1, high - low - 1), (high, low, 1)]
    extents.append((high + 1, high + 1, _IDS - 1 - (high + 1)))
    return "".join(f"{inside} {outside} {count}\n" for inside, outside, count in extents if count > 0)


@contextlib.contextmanager
def user_namespace(on_disk: int, uid: int, groups: tuple[int, int] = (0, 0)) -> Iterator[int]:
    """Yields a descriptor of a user namespace by which a mount shows files of `on_disk` as those of `uid`,
    and those of the first of two `groups` as the other's. Blocks; raises OSError.
    """
    ours, theirs = socket.socketpair()
    command = ["unshare", "--user", "cat"]
    with ours, theirs:
        holder = subprocess.Popen(command, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=subprocess.DEVNULL)  # noqa: S603
        try:
            theirs.close()
            ours.send(b".")
            # It answers only from inside the namespace.
            if ours.recv(1) != b".":
                raise OSError("no user namespace can be made: /proc/sys/user/max_user_namespaces says how many")
            for name, content in (("uid_map", swapped(on_disk, uid)), ("gid_map", swapped(*groups))):
                Path(f"/proc/{holder.pid}/{name}").write_text(content)
            descriptor = os.open(f"/proc/{holder.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            holder.kill()
            holder.wait()
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def can_be_mapped(mounts: Sequence[Mount], on_disk: int, uid: int) -> bool:
    """Returns whether all directories lie where their owners can be translated;
    those that cannot be opened do not count. Blocks.
    """
    if not mounts:
        return True
    try:
        with user_namespace(on_disk, uid) as namespace:
            return all(_can_be_mapped(mount.root, mount.path, namespace) for mount in mounts)
    except OSError:
        return False


def _can_be_mapped(root: str, path: str, namespace: int) -> bool:
    try:
        above = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        directory = syscalls.open_beneath(above, path or ".")
    except OSError:
        return True
    finally:
        os.close(above)
    try:
        os.close(syscalls.clone_mount(directory, 0, namespace))
    except OSError:
        return False
    finally:
        os.close(directory)
    return True
