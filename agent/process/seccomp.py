"""Builds the seccomp filter of native process kernels, by libseccomp: what container engines deny by default, denied here too.

Calls that this libseccomp knows are allowed but for those listed here, and for those that reserve space of the node's disk. Newer ones
answer ENOSYS, which programs take for an older Linux and do without. Only the native ABI is allowed: the arguments of 32-bit socket
calls cannot be inspected.
"""

from __future__ import annotations

import ctypes
import errno
import os

LIBRARY = "libseccomp.so.2"
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_BAD_ARCHITECTURE, _OPTIMIZE = 2, 8
"""Attributes of a filter: its action for calls of another ABI, and how it is compiled."""
_BINARY_TREE = 2
_GREATER, _EQUAL, _MASKED_EQUAL = 6, 4, 7
_NATIVE = 0
_LAST_NUMBER = 1023
"""Above all system calls; Linux has given out fewer than 500 numbers."""

NEW_NAMESPACES = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET."""
CLONE_NEWTIME = 0x80
"""To `unshare` only: to `clone` this bit is part of a signal's number."""
FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6 and AF_NETLINK. AF_VSOCK leads off the node past all rules, AF_ALG and others to rarely used code."""
PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
"""Linux, 32-bit machine names, release names of 2.6, and the question which it is; not executable data or fixed addresses."""
PUNCH_HOLE = 0x02
"""To `fallocate`: gives space back. All else that it does takes any amount of the node's disk at once, before anybody could look.

Programs take the answer EOPNOTSUPP for a file system that cannot do it, and write instead.
"""
RESERVATIONS = 0x40305800
"""Requests to `ioctl` from which only the last byte differs, that do the same: FS_IOC_RESVSP, XFS_IOC_ALLOCSP and the like."""
_ANY_RESERVATION = 0xFFFFFF00
DENIED = frozenset(
    (
        # The node's own state, and its devices.
        *("acct", "clock_settime", "create_module", "delete_module", "finit_module", "get_kernel_syms", "init_module"),
        *("ioperm", "iopl", "kexec_file_load", "kexec_load", "nfsservctl", "pciconfig_iobase", "pciconfig_read"),
        *("pciconfig_write", "query_module", "quotactl", "quotactl_fd", "reboot", "setdomainname", "sethostname"),
        *("settimeofday", "stime", "swapoff", "swapon", "syslog", "vhangup"),
        # Mounts and namespaces.
        *("chroot", "fsconfig", "fsmount", "fsopen", "fspick", "mount", "mount_setattr", "move_mount", "open_tree"),
        *("pivot_root", "setns", "umount", "umount2"),
        # Keyrings belong to users of the node, not to kernels.
        *("add_key", "keyctl", "request_key"),
        # Large interfaces into Linux with a history of flaws.
        *("bpf", "fanotify_init", "io_uring_enter", "io_uring_register", "io_uring_setup", "lookup_dcookie"),
        *("perf_event_open", "userfaultfd"),
        # Other processes, and files by what names them on the disk.
        *("kcmp", "migrate_pages", "move_pages", "open_by_handle_at", "pidfd_getfd", "process_madvise"),
        # Obsolete.
        *("_sysctl", "afs_syscall", "sysfs", "uselib", "ustat", "vm86", "vm86old"),
    )
)


class FilterError(Exception):
    """The filter cannot be built; the text says why."""


class _Comparison(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


def build_filter() -> bytes:
    """Returns the filter as a program of classic BPF, for the machine type this runs on. Raises FilterError."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise FilterError(f"{LIBRARY} is missing: install the package libseccomp2 ({error})") from error
    library.seccomp_init.restype = ctypes.c_void_p
    context = library.seccomp_init(ctypes.c_uint32(_ERRNO | errno.ENOSYS))
    if not context:
        raise FilterError(f"{LIBRARY} cannot make a filter")
    builder = _Builder(library, ctypes.c_void_p(context))
    try:
        _fill(builder)
        return builder.export()
    finally:
        library.seccomp_release(builder.context)


def _fill(builder: _Builder) -> None:
    builder.set(_BAD_ARCHITECTURE, _ERRNO | errno.ENOSYS)
    builder.set(_OPTIMIZE, _BINARY_TREE)
    for number, name in builder.known():
        match name:
            case "clone" | "unshare":
                bits = NEW_NAMESPACES if name == "clone" else (*NEW_NAMESPACES, CLONE_NEWTIME)
                builder.add(_ALLOW, number, (0, _MASKED_EQUAL, sum(bits), 0))
                for bit in bits:
                    builder.add(_ERRNO | errno.EPERM, number, (0, _MASKED_EQUAL, bit, bit))
            case "clone3":
                # Its flags lie in memory, where a filter cannot look; C libraries then use `clone`.
                builder.add(_ERRNO | errno.ENOSYS, number)
            case "socket":
                for family in range(max(FAMILIES) + 1):
                    action = _ALLOW if family in FAMILIES else _ERRNO | errno.EAFNOSUPPORT
                    builder.add(action, number, (0, _EQUAL, family, 0))
                builder.add(_ERRNO | errno.EAFNOSUPPORT, number, (0, _GREATER, max(FAMILIES), 0))
            case "personality":
                for value in PERSONALITIES:
                    builder.add(_ALLOW, number, (0, _EQUAL, value, 0))
            case "fallocate":
                builder.add(_ALLOW, number, (1, _MASKED_EQUAL, PUNCH_HOLE, PUNCH_HOLE))
                builder.add(_ERRNO | errno.EOPNOTSUPP, number, (1, _MASKED_EQUAL, PUNCH_HOLE, 0))
            case "ioctl":
                builder.add(_ERRNO | errno.EOPNOTSUPP, number, (1, _MASKED_EQUAL, _ANY_RESERVATION, RESERVATIONS))
                # libseccomp has no comparison for the rest: of those, some bit is another.
                for bit in (1 << place for place in range(8, 32)):
                    builder.add(_ALLOW, number, (1, _MASKED_EQUAL, bit, ~RESERVATIONS & bit))
            case _:
                builder.add(_ERRNO | errno.EPERM if name in DENIED else _ALLOW, number)


class _Builder:
    """A filter under construction."""

    def __init__(self, library: ctypes.CDLL, context: ctypes.c_void_p) -> None:
        self.context = context
        self._library = library
        self._resolve = library.seccomp_syscall_resolve_num_arch
        self._resolve.restype = ctypes.c_void_p
        self._free = ctypes.CDLL(None).free
        self._free.argtypes = (ctypes.c_void_p,)

    def known(self) -> list[tuple[int, str]]:
        """Numbers and names of the system calls of this machine type."""
        found = []
        for number in range(_LAST_NUMBER + 1):
            if name := self._resolve(ctypes.c_uint32(_NATIVE), ctypes.c_int(number)):
                found.append((number, ctypes.string_at(name).decode()))
                self._free(name)
        return found

    def set(self, attribute: int, value: int) -> None:
        """Sets an attribute of the filter."""
        self._check(self._library.seccomp_attr_set(self.context, ctypes.c_int(attribute), ctypes.c_uint32(value)))

    def add(self, action: int, number: int, comparison: tuple[int, int, int, int] | None = None) -> None:
        """Adds a rule; a comparison, which begins with the number of an argument, makes it conditional."""
        if action == _ERRNO | errno.ENOSYS:
            # The default; libseccomp refuses a rule that repeats it.
            return
        array = (_Comparison * 1)()
        if comparison is not None:
            array[0] = _Comparison(*comparison)
        count = ctypes.c_uint(0 if comparison is None else 1)
        self._check(
            self._library.seccomp_rule_add_array(
                self.context, ctypes.c_uint32(action), ctypes.c_int(number), count, array
            )
        )

    def export(self) -> bytes:
        """Compiles the filter."""
        descriptor = os.memfd_create("filter", os.MFD_CLOEXEC)
        try:
            self._check(self._library.seccomp_export_bpf(self.context, ctypes.c_int(descriptor)))
            return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        finally:
            os.close(descriptor)

    @staticmethod
    def _check(result: int) -> None:
        if result != 0:
            raise FilterError(f"{LIBRARY}: {os.strerror(-result)}")
