"""Named network namespaces without a child process: as `ip netns` sees them, under /run/netns.

Entering a namespace is a matter of one thread (setns(2), unshare(2)), so that everything that has to happen inside one
is done by a thread that is thrown away after: a process that serves gRPC must not fork, and a thread that entered must
not be used again. Everything here blocks for a short time.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import os
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from retinue.agent.network.errors import NetworkError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DIRECTORY = Path("/run/netns")

_CLONE_NEWNET = 0x40000000
_MS_BIND, _MS_REC, _MS_SHARED = 0x1000, 0x4000, 1 << 20
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
# ioctl(2) of a namespace's file: its kind, one of the CLONE_NEW* flags.
_NS_GET_NSTYPE = 0xB703

_libc = ctypes.CDLL(None, use_errno=True)
_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")


def create(name: str, settings: dict[str, str]) -> None:
    """Makes the namespace unless it is there; `settings` are written to files under /proc/sys/net in it first.

    A setting this Linux does not have, or does not let us write, is left out. Raises NetworkError.
    """
    with _explained(f"make network namespace {name}"):
        _prepare_directory()
        path = DIRECTORY / name
        if _is_namespace(path):
            return
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o444))

        def make() -> None:
            _check(_libc.unshare(_CLONE_NEWNET))
            write_settings(settings)
            # The mount comes last: a namespace that can be found is whole.
            _mount("/proc/thread-self/ns/net", str(path), _MS_BIND)

        _in_thread(make)


def delete(name: str) -> None:
    """Removes the name; the namespace ends when nothing uses it any more. Nothing to do when there is no such name.

    Raises NetworkError.
    """
    path = DIRECTORY / name
    with _explained(f"remove network namespace {name}"):
        # More than one mount may lie on the name. Other mount namespaces that follow this one lose theirs with it.
        while _libc.umount2(os.fsencode(path), _MNT_DETACH | _UMOUNT_NOFOLLOW) == 0:
            pass
        if ctypes.get_errno() not in {errno.EINVAL, errno.ENOENT}:
            _check(-1)
        path.unlink(missing_ok=True)


def names() -> set[str]:
    """All names there are, those of half-made namespaces included. Raises NetworkError."""
    with _explained("list network namespaces"):
        try:
            return set(os.listdir(DIRECTORY))
        except FileNotFoundError:
            return set()


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[int]:
    """A descriptor of the network namespace at `path`, closed at the end. Raises NetworkError unless it is one."""
    with _explained(f"open network namespace {os.fspath(path)}"):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with _explained(f"open network namespace {os.fspath(path)}"):
            if fcntl.ioctl(descriptor, _NS_GET_NSTYPE) != _CLONE_NEWNET:
                raise OSError(errno.EINVAL, "it is a namespace of another kind")
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def opened_name(name: str) -> Iterator[int | None]:
    """A descriptor of the named namespace, closed at the end; None when there is none, or only a half-made one.

    Raises NetworkError.
    """
    with _explained(f"open network namespace {name}"):
        there = _is_namespace(DIRECTORY / name)
    if not there:
        yield None
        return
    with opened(DIRECTORY / name) as descriptor:
        yield descriptor


def same(one: int, other: int | str) -> bool:
    """Whether two descriptors, or a descriptor and a path, are of one namespace. Raises NetworkError."""
    with _explained("compare network namespaces"):
        return os.path.samestat(os.fstat(one), os.stat(other))


def run_inside(descriptor: int, function: Callable[[], _Result]) -> _Result:
    """What `function` answers when it is called by a thread inside the namespace; what it raises is raised.

    Raises NetworkError when the namespace cannot be entered.
    """

    def enter() -> _Result:
        with _explained("enter a network namespace"):
            _check(_libc.setns(descriptor, _CLONE_NEWNET))
        return function()

    return _in_thread(enter)


def write_settings(settings: dict[str, str]) -> None:
    """Writes values to files under /proc/sys/net, in the calling thread's namespace; leaves out what it cannot."""
    for name, value in settings.items():
        try:
            Path("/proc/sys/net", name).write_text(value)
        except OSError as error:
            _log.debug("net/%s is left as it is: %s", name, error)


def _in_thread(function: Callable[[], _Result]) -> _Result:
    results: list[_Result] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:  # noqa: BLE001 - it is raised again in the thread that waits
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


def _is_namespace(path: Path) -> bool:
    """Whether a network namespace is mounted there; an empty file may be left of a start that was cut off."""
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


def _mount(source: str | None, target: str, flags: int) -> None:
    _check(_libc.mount(source and source.encode(), target.encode(), b"none", ctypes.c_ulong(flags), None))


def _check(result: int) -> None:
    if result:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


@contextmanager
def _explained(purpose: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NetworkError(f"cannot {purpose}: {error.strerror or error}") from error
