"""Named network namespaces without a child process: as `ip netns` sees them, under /run/netns.

Entering a namespace is per thread (setns(2), unshare(2)). A thread that entered must not be used again, and a process
that serves gRPC must not fork: so one thread is started for each function that runs inside, and then ends.
All functions block for a short time.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

DIRECTORY = Path("/run/netns")

_CLONE_NEWNET = 0x40000000
_MS_BIND, _MS_REC, _MS_SHARED = 0x1000, 0x4000, 1 << 20
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
# ioctl(2) of a namespace's file: its kind, one of the CLONE_NEW* flags.
_NS_GET_NSTYPE = 0xB703

_libc = ctypes.CDLL(None, use_errno=True)
_Result = TypeVar("_Result")


def create(name: str, prepare: Callable[[], None] = lambda: None, *, exclusive: bool = False) -> None:
    """Makes the namespace unless it exists; `prepare` is called inside before it can be found. Raises OSError.

    With `exclusive`, raises FileExistsError when there is anything of that name.
    """
    _prepare_directory()
    path = DIRECTORY / name
    if not exclusive and is_namespace(path):
        return
    flags = os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_EXCL if exclusive else 0)
    os.close(os.open(path, flags, 0o444))

    def make() -> None:
        _check(_libc.unshare(_CLONE_NEWNET))
        prepare()
        # The mount comes last: a namespace that can be found is whole.
        _mount("/proc/thread-self/ns/net", str(path), _MS_BIND)

    try:
        in_thread(make)
    except BaseException:
        if exclusive:
            path.unlink(missing_ok=True)
        raise


def anonymous() -> int:
    """Makes a namespace without a name and returns its descriptor: it ends once that is closed and nothing else uses
    it. Raises OSError.
    """

    def make() -> int:
        _check(_libc.unshare(_CLONE_NEWNET))
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    return in_thread(make)


def delete(name: str) -> None:
    """Removes the name, if it exists; the namespace ends when nothing uses it any more. Raises OSError."""
    path = DIRECTORY / name
    # More than one mount may lie on the name. Other mount namespaces that follow this one lose theirs with it.
    while _libc.umount2(os.fsencode(path), _MNT_DETACH | _UMOUNT_NOFOLLOW) == 0:
        pass
    if ctypes.get_errno() not in {errno.EINVAL, errno.ENOENT}:
        _check(-1)
    path.unlink(missing_ok=True)


def names(prefix: str = "") -> list[str]:
    """Returns the names that begin with `prefix`, sorted, those of half-made namespaces included. Raises OSError."""
    try:
        return sorted(name for name in os.listdir(DIRECTORY) if name.startswith(prefix))
    except FileNotFoundError:
        return []


def open_namespace(path: str | os.PathLike[str]) -> int:
    """Returns a descriptor of the network namespace at `path`. Raises OSError unless it is one."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if fcntl.ioctl(descriptor, _NS_GET_NSTYPE) != _CLONE_NEWNET:
            raise OSError(errno.EINVAL, "it is a namespace of another kind")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def is_namespace(path: Path) -> bool:
    """Returns whether a network namespace is mounted there; a start that was cut off may leave an empty file.
    Raises OSError.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        with suppress(OSError):
            return fcntl.ioctl(descriptor, _NS_GET_NSTYPE) == _CLONE_NEWNET
        return False
    finally:
        os.close(descriptor)


def enter(descriptor: int) -> None:
    """Moves the calling thread into a network namespace. Raises OSError."""
    _check(_libc.setns(descriptor, _CLONE_NEWNET))


def in_thread(function: Callable[[], _Result]) -> _Result:
    """Calls `function` in a thread that ends then; returns or raises what it does."""
    results: list[_Result] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:  # noqa: BLE001  # it is raised again in the thread that waits
            failures.append(error)

    thread = threading.Thread(target=run, name="inside-namespace", daemon=True)
    thread.start()
    thread.join()
    if failures:
        try:
            raise failures[0]
        finally:
            # The error's traceback holds this frame; without this the two keep one another alive.
            failures.clear()
    return results[0]


def _prepare_directory() -> None:
    """Makes the directory a shared mount, as `ip netns add` does: unmounts then reach other mount namespaces."""
    DIRECTORY.mkdir(mode=0o755, parents=True, exist_ok=True)
    descriptor = os.open(DIRECTORY, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # iproute2 takes the same lock: two that come first would else mount one over the other.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            _mount(None, str(DIRECTORY), _MS_SHARED | _MS_REC)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            _mount(str(DIRECTORY), str(DIRECTORY), _MS_BIND | _MS_REC)
            _mount(None, str(DIRECTORY), _MS_SHARED | _MS_REC)
    finally:
        os.close(descriptor)


def _mount(source: str | None, target: str, flags: int) -> None:
    _check(_libc.mount(source and source.encode(), target.encode(), b"none", ctypes.c_ulong(flags), None))


def _check(result: int) -> None:
    if result:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
