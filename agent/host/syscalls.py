"""The few calls of the Linux kernel that Python has no function for. All raise OSError."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

AT_EMPTY_PATH = 0x1000
CLONE_FS = 0x00000200
CLONE_NEWNS = 0x00020000
CLONE_NEWNET = 0x40000000
MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_SLAVE = 0x80000
MNT_DETACH = 2
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOEXEC = 1, 2, 4, 8
RESOLVE_NO_XDEV, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH = 0x01, 0x02, 0x04, 0x08
FALLOC_FL_KEEP_SIZE = 1
FALLOC_FL_PUNCH_HOLE = 2
IN_MODIFY = 0x0002
IN_MOVED_TO = 0x0080
IN_DELETE_SELF = 0x0400
IN_MOVE_SELF = 0x0800

_libc = ctypes.CDLL(None, use_errno=True)
_offset = ctypes.c_int64
# Calls the C library has no function for; these numbers are the same for every machine type.
_OPEN_TREE, _MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT, _OPENAT2, _MOUNT_SETATTR = 428, 429, 430, 431, 432, 437, 442
_PIDFD_SEND_SIGNAL = 424
_SI_QUEUE = -1
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_EMPTY_PATHS = 0x04 | 0x40
_FSOPEN_CLOEXEC = _FSMOUNT_CLOEXEC = 1
_FSCONFIG_SET_STRING, _FSCONFIG_CMD_CREATE = 1, 6
_MS_PRIVATE = 1 << 18
_MOUNT_ATTR_IDMAP = 0x00100000


class _SignalInfo(ctypes.Structure):
    # What Linux reads of it is as long on every machine type.
    _fields_ = (
        ("number", ctypes.c_int),
        ("error", ctypes.c_int),
        ("code", ctypes.c_int),
        ("rest", ctypes.c_byte * 116),
    )


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class _MountAttributes(ctypes.Structure):
    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("user_namespace", ctypes.c_uint64),
    )


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


def enter(descriptor: int, kind: int) -> None:
    """Moves the calling thread into a namespace; for one of mounts, it must share its root with no other thread."""
    _checked(_libc.setns(descriptor, kind), "setns")


def open_beneath(directory: int, path: str) -> int:
    """Returns a descriptor of a directory somewhere beneath another, whatever links there are;
    never of one outside of it.
    """
    return _open(directory, path, os.O_PATH | os.O_DIRECTORY, RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS)


def open_strictly(directory: int, path: str, flags: int) -> int:
    """Returns a descriptor of a file beneath a directory, through no link and on the same file system.

    With O_PATH and O_NOFOLLOW in `flags`, the file itself may be a link.
    """
    strict = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV
    return _open(directory, path, flags, strict)


def _open(directory: int, path: str, flags: int, resolve: int) -> int:
    how = _OpenHow(flags | os.O_CLOEXEC, 0, resolve)
    size = ctypes.c_size_t(ctypes.sizeof(how))
    return _called("openat2", _OPENAT2, directory, os.fsencode(path), ctypes.byref(how), size)


def clone_mount(descriptor: int, attributes: int, user_namespace: int | None = None) -> int:
    """Clones the mount at a descriptor and returns it detached; it disappears when its last descriptor is closed.

    What is mounted further below is not part of it. `attributes` are those of MOUNT_ATTR_*. With a descriptor of a user
    namespace, owners of files are shown as that maps them.
    """
    flags = ctypes.c_uint(_OPEN_TREE_CLONE | AT_EMPTY_PATH | os.O_CLOEXEC)
    mount = _called("open_tree", _OPEN_TREE, descriptor, b"", flags)
    try:
        set_attributes(mount, attributes, user_namespace)
    except OSError:
        os.close(mount)
        raise
    return mount


def set_attributes(mount: int, attributes: int, user_namespace: int | None = None) -> None:
    """Adds attributes to a mount; what happens around it does not reach it any more."""
    if user_namespace is not None:
        attributes |= _MOUNT_ATTR_IDMAP
    values = _MountAttributes(attributes, 0, _MS_PRIVATE, user_namespace or 0)
    size = ctypes.c_size_t(ctypes.sizeof(values))
    _called("mount_setattr", _MOUNT_SETATTR, mount, b"", ctypes.c_uint(AT_EMPTY_PATH), ctypes.byref(values), size)


def memory_mount(options: Mapping[str, str]) -> int:
    """Returns a new file system in memory, not mounted yet; gone with its last descriptor and mount."""
    context = _called("fsopen", _FSOPEN, b"tmpfs", ctypes.c_uint(_FSOPEN_CLOEXEC))
    try:
        for name, value in options.items():
            _called("fsconfig", _FSCONFIG, context, _FSCONFIG_SET_STRING, name.encode(), value.encode(), 0)
        _called("fsconfig", _FSCONFIG, context, _FSCONFIG_CMD_CREATE, None, None, 0)
        return _called("fsmount", _FSMOUNT, context, ctypes.c_uint(_FSMOUNT_CLOEXEC), ctypes.c_uint(0))
    finally:
        os.close(context)


def attach_mount(mount: int, target: int) -> None:
    """Puts a detached mount over the directory or file of a descriptor, in the calling thread's namespace."""
    _called("move_mount", _MOVE_MOUNT, mount, b"", target, b"", ctypes.c_uint(_MOVE_MOUNT_EMPTY_PATHS))


def _called(what: str, number: int, *arguments: object) -> int:
    return _checked(_libc.syscall(ctypes.c_long(number), *arguments), what)


def queue_signal(descriptor: int, number: int) -> None:
    """Sends a signal with a value, 0, to the process of a pidfd: its receiver can tell it from that of kill(2)."""
    information = _SignalInfo(number=number, code=_SI_QUEUE)
    _called("pidfd_send_signal", _PIDFD_SEND_SIGNAL, descriptor, number, ctypes.byref(information), ctypes.c_uint(0))


def punch_hole(descriptor: int, offset: int, length: int) -> None:
    """Gives the space of a part of a file back; it reads as zeros, and nothing moves."""
    flags = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
    _checked(_libc.fallocate64(descriptor, flags, _offset(offset), _offset(length)), "fallocate")


def inotify(path: str, mask: int) -> int:
    """Returns a file descriptor that turns readable when one of the events of `mask` happens to `path`."""
    descriptor = _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify_init1")
    try:
        _checked(_libc.inotify_add_watch(descriptor, _text(path), mask), f"inotify_add_watch {path}")
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
