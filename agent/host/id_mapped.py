"""Shows a kernel the files of a mount's owner as its own user's, and those of nobody else.

On the disk, files belong to the owner that the mount names; in a kernel, to its own user, and each kernel has another
one. Linux translates in between, by the user namespace that a mount carries (mount_setattr(2), "ID-mapped mounts").
No other number of the node is shown as one of the kernel's: whatever user and groups an image names, they are those of
nobody there.

Few file systems cannot do that, NFS among them. A kernel with a mount from there runs as that mount's owner,
in its group and in no other.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.agent.host import syscalls

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from retinue.agent.attempts import Mount, Owner

LIMIT = 1 << 31
"""Numbers of users and groups of kernels, and of owners, are below this."""
MAX_GROUPS = 64
"""Further groups that a kernel with mounts may have: Linux takes a map of one page."""
# The number of user ids; the last one is not a user.
_IDS = 1 << 32


class ForeignOwnerError(OSError):
    """A mount cannot show files of its owner as the kernel's; the text says what the kernel would have to be."""


def swapped(one: int, other: int) -> str:
    """Returns the map of users, as for /proc/PID/uid_map, by which two of them change places. Pure."""
    if one == other:
        return f"0 0 {_IDS - 1}\n"
    low, high = sorted((one, other))
    extents = [(0, 0, low), (low, high, 1), (low + 1, low + 1, high - low - 1), (high, low, 1)]
    extents.append((high + 1, high + 1, _IDS - 1 - (high + 1)))
    return "".join(f"{inside} {outside} {count}\n" for inside, outside, count in extents if count > 0)


def translated(owner: int, own: int, further: Iterable[int] = ()) -> str:
    """Returns the map by which a mount shows the number `owner` as `own`. Pure.

    What belongs to a kernel's numbers on the disk, `own` and `further`, is shown as that of numbers that no kernel has.
    All else is shown as it is: Linux lets nobody write to what belongs to a number that has no place in the map.
    """
    moved = {own, *further} - {owner}
    extents = [(owner, own, 1), *((number, number + LIMIT, 1) for number in moved)]
    begin = 0
    for number in sorted({owner, *moved}):
        extents.append((begin, begin, number - begin))
        begin = number + 1
    extents.append((begin, begin, LIMIT - begin))
    return "".join(f"{inside} {outside} {count}\n" for inside, outside, count in extents if count > 0)


@contextlib.contextmanager
def user_namespace(users: str, groups: str) -> Iterator[int]:
    """Yields a descriptor of a user namespace with these maps. Blocks; raises OSError."""
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
            for name, content in (("uid_map", users), ("gid_map", groups)):
                Path(f"/proc/{holder.pid}/{name}").write_text(content)
            descriptor = os.open(f"/proc/{holder.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            holder.kill()
            holder.wait()
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class OwnerMaps(contextlib.ExitStack):
    """Clones mounts for one kernel, so that files of their owners are its user's. It holds namespaces until it exits.

    `user` is the kernel's user and group on the node, `further` are its other groups, and `default` is the owner of
    mounts that name none.
    """

    def __init__(self, user: Owner, default: Owner, further: Collection[int] = ()) -> None:
        """Makes nothing yet."""
        super().__init__()
        self._user = user
        self._default = default
        self._further = further
        self._namespaces: dict[Owner, int] = {}

    def clone(self, directory: int, attributes: int, owner: Owner | None) -> int:
        """Returns the mount at a descriptor, detached. Blocks; raises ForeignOwnerError, OSError."""
        owner = owner or self._default
        if len(self._further) > MAX_GROUPS:
            raise ForeignOwnerError(f"the kernel's image puts its user in more than {MAX_GROUPS} groups")
        try:
            return syscalls.clone_mount(directory, attributes, self._namespace(owner))
        except OSError as error:
            # EINVAL is what file systems say that have no ID-mapped mounts.
            why = (
                "its file system has no ID-mapped mounts"
                if error.errno == errno.EINVAL
                else error.strerror or str(error)
            )
            if self._user != owner:
                raise ForeignOwnerError(
                    f"{why}, and its files belong to {owner.uid}:{owner.gid}, "
                    f"but the kernel runs as {self._user.uid}:{self._user.gid}"
                ) from error
            if self._further:
                raise ForeignOwnerError(f"{why}, and the kernel's image puts its user in further groups") from error
        return syscalls.clone_mount(directory, attributes)

    def _namespace(self, owner: Owner) -> int:
        if owner not in self._namespaces:
            maps = translated(owner.uid, self._user.uid), translated(owner.gid, self._user.gid, self._further)
            self._namespaces[owner] = self.enter_context(user_namespace(*maps))
        return self._namespaces[owner]


def required_owner(mounts: Sequence[Mount], default: Owner) -> Owner | None:
    """Returns whom a kernel has to run as because a mount cannot be translated; None where all can be. Blocks.

    Directories that cannot be opened do not count.
    """
    if not mounts:
        return None
    try:
        with user_namespace(swapped(0, 0), swapped(0, 0)) as namespace:
            found = (mount for mount in mounts if not _can_be_mapped(mount.root, mount.path, namespace))
            unmapped = next(found, None)
    except OSError:
        unmapped = mounts[0]
    return None if unmapped is None else unmapped.owner or default


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
