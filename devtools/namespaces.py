"""Named network namespaces, as `ip netns` sees them, made and entered by threads: this process never forks for them.

Forking crashes a process that uses gRPC, and the namespace calls of pyroute2 fork. `setns` and `unshare` are per
thread, so a thread that exits afterwards does the same without harm.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

NAMESPACES = Path("/run/netns")

_CLONE_NEWNET = 0x40000000
_MS_BIND, _MS_REC, _MS_SHARED, _MNT_DETACH = 4096, 16384, 1 << 20, 2
_libc = ctypes.CDLL(None, use_errno=True)
_Value = TypeVar("_Value")


def create(name: str) -> None:
    """Makes a namespace. Raises FileExistsError when there is one of that name, PermissionError when not root."""
    _share_directory()
    path = NAMESPACES / name
    os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0))

    def make() -> None:
        _check(_libc.unshare(_CLONE_NEWNET), "unshare")
        source = f"/proc/self/task/{threading.get_native_id()}/ns/net"
        _mount(source, str(path), _MS_BIND)

    try:
        in_thread(make)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def delete(name: str) -> None:
    """Removes a namespace's name, and with its last process the namespace; one that is not there is no error."""
    path = NAMESPACES / name
    if _libc.umount2(os.fsencode(path), _MNT_DETACH) != 0 and ctypes.get_errno() not in (errno.EINVAL, errno.ENOENT):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    path.unlink(missing_ok=True)


def names(prefix: str = "") -> list[str]:
    """The names of the namespaces that start with `prefix`, sorted."""
    try:
        return sorted(entry.name for entry in NAMESPACES.iterdir() if entry.name.startswith(prefix))
    except FileNotFoundError:
        return []


def run_in(name: str, function: Callable[[], _Value]) -> _Value:
    """Runs a function in a thread inside the namespace, and waits for it. Raises FileNotFoundError when there is none."""

    def enter() -> _Value:
        descriptor = os.open(NAMESPACES / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _check(_libc.setns(descriptor, _CLONE_NEWNET), f"setns {name}")
        finally:
            os.close(descriptor)
        return function()

    return in_thread(enter)


def netlink_socket(name: str) -> socket.socket:
    """A netlink socket that belongs to the namespace, usable from any thread. The namespace lives while it is open."""

    def make() -> socket.socket:
        return socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, 0)

    return run_in(name, make)


def in_thread(function: Callable[[], _Value]) -> _Value:
    """Runs a function in a new thread that is not used again, waits, and returns or raises what it did."""
    values: list[_Value] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            values.append(function())
        except BaseException as error:  # noqa: BLE001  # raised again below
            errors.append(error)

    thread = threading.Thread(target=run, name="namespace")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return values[0]


def _share_directory() -> None:
    """Makes the directory a shared mount once, as iproute2 does: so that names show in mount namespaces made before."""
    NAMESPACES.mkdir(mode=0o755, parents=True, exist_ok=True)
    if _libc.mount(b"", os.fsencode(NAMESPACES), b"none", _MS_SHARED | _MS_REC, None) == 0:
        return
    if ctypes.get_errno() != errno.EINVAL:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(NAMESPACES))
    _mount(str(NAMESPACES), str(NAMESPACES), _MS_BIND | _MS_REC)
    _mount("", str(NAMESPACES), _MS_SHARED | _MS_REC)


def _mount(source: str, target: str, flags: int) -> None:
    _check(_libc.mount(source.encode(), target.encode(), b"none", flags, None), f"mount {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
