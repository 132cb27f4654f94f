"""The few calls of the Linux kernel that Python has no function for. All raise OSError."""

from __future__ import annotations

import ctypes
import os

CLONE_FS = 0x00000200
CLONE_NEWNS = 0x00020000
MS_REC = 0x4000
MS_SLAVE = 0x80000
MNT_DETACH = 2
FALLOC_FL_KEEP_SIZE = 1
FALLOC_FL_PUNCH_HOLE = 2
IN_MODIFY = 0x0002
IN_MOVED_TO = 0x0080
IN_DELETE_SELF = 0x0400
IN_MOVE_SELF = 0x0800

_libc = ctypes.CDLL(None, use_errno=True)
_offset = ctypes.c_int64


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _text(value: str | None) -> bytes | None:
    return None if value is None else os.fsencode(value)


def unshare(flags: int) -> None:
    """Gives the calling thread namespaces of its own."""
    _checked(_libc.unshare(flags), "unshare")


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    """Mounts, or changes how something is mounted, in the calling thread's mount namespace."""
    result = _libc.mount(_text(source), _text(target), _text(kind), ctypes.c_ulong(flags), _text(options))
    _checked(result, f"mount {kind or 'flags'} at {target}")


def unmount(target: str, flags: int) -> None:
    """Unmounts in the calling thread's mount namespace."""
    _checked(_libc.umount2(_text(target), flags), f"unmount {target}")


def punch_hole(descriptor: int, offset: int, length: int) -> None:
    """Gives the space of a part of a file back; it reads as zeros, and nothing moves."""
    flags = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
    _checked(_libc.fallocate64(descriptor, flags, _offset(offset), _offset(length)), "fallocate")


def inotify(path: str, mask: int) -> int:
    """A file descriptor that turns readable when one of the events of `mask` happens to `path`."""
    descriptor = _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify_init1")
    try:
        _checked(_libc.inotify_add_watch(descriptor, _text(path), mask), f"inotify_add_watch {path}")
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
