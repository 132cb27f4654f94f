"""Builds the seccomp filters of kernels, by libseccomp: what container engines deny by default.

That of native processes is all there is: system calls that this libseccomp knows are allowed but for those denied here.
Newer ones answer ENOSYS, which programs take for an older Linux and do without. Only the native ABI is allowed: the
arguments of 32-bit socket calls cannot be inspected.

That of containers stands on top of the engine's own, and denies nothing else than Docker's default profile does:
engines may be older than that profile, or be configured to have none. It holds for all ABIs of the machine, but that
programs of i386 make sockets of any family, as far as the engine lets them: their `socketcall` cannot be inspected.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

LIBRARY = "libseccomp.so.2"
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
# Attributes of a filter: its action for calls of another ABI, and how it is compiled.
_BAD_ARCHITECTURE, _OPTIMIZE = 2, 8
_BINARY_TREE = 2
_GREATER, _EQUAL, _MASKED_EQUAL = 6, 4, 7
_NATIVE = 0
# Tokens of the other ABIs that a machine type has, but for those in which `socketcall` makes sockets.
_COMPATIBLE = {
    # x32, whose token is that of x86_64 with a 32-bit class.
    "x86_64": (0x4000003E,),
    # Arm, little-endian.
    "aarch64": (0x40000028,),
}
# Tokens of those: i386.
_WITH_SOCKETCALL = {"x86_64": (0x40000003,)}
# Above all system calls; Linux has given out fewer than 500 numbers.
_LAST_NUMBER = 1023

NEW_NAMESPACES = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET."""
CLONE_NEWTIME = 0x80
"""To `unshare` only: to `clone` this bit is part of a signal's number."""
FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6 and AF_NETLINK. AF_VSOCK leads off the node past all rules,
AF_ALG and others to rarely used code.
"""
DENIED_FAMILIES = (38, 40)
"""AF_ALG and AF_VSOCK: what Docker denies of families."""
PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
"""Linux, 32-bit machine names, release names of 2.6, and the question which it is;
not executable data or fixed addresses.
"""
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

SET_ID_BITS = (0o4000, 0o2000)
"""Bits of a file's mode by which a program gets the rights of its owner or group."""
MODES = {
    "chmod": 1,
    "fchmod": 1,
    "fchmodat": 2,
    "fchmodat2": 2,
    "creat": 1,
    "open": 2,
    "openat": 3,
    "mkdir": 1,
    "mkdirat": 2,
}
"""Which argument is a mode, by system call. Programs that make no file pass 0."""
DENIED_IN_JAILS = frozenset(("mknod", "mknodat", "openat2", "ptrace", "process_vm_readv", "process_vm_writev"))
"""What makes devices and FIFOs, a call whose mode lies in memory, and what reaches into other processes."""


# In place of the number of a system call that this libseccomp does not know.
_UNKNOWN = -1
# A comparison: the number of an argument, an operator, and what it compares with.
_Rule = tuple[int, int, int, int]


class FilterError(Exception):
    """The filter cannot be built; the text says why."""


class _Comparison(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


def build_filter(*, jail: bool = False) -> bytes:
    """Returns the filter of native processes as a program of classic BPF, for the machine type this runs on.
    Raises FilterError.

    In a `jail`, no file can be given a set-id bit, and there are no devices to be made.
    """
    with _builder(default=_ERRNO | errno.ENOSYS) as builder:
        for name in builder.known():
            denials = _denials(name)
            if jail and name in DENIED_IN_JAILS:
                denials = [(_ERRNO | errno.EPERM, None)]
            if jail and (mode := MODES.get(name)) is not None:
                for bit in SET_ID_BITS:
                    builder.add(_ERRNO | errno.EPERM, name, (mode, _MASKED_EQUAL, bit, bit))
                builder.add(_ALLOW, name, (mode, _MASKED_EQUAL, sum(SET_ID_BITS), 0))
                continue
            for action, comparison in denials:
                builder.add(action, name, comparison)
            if all(comparison is not None for _, comparison in denials):
                _allow_rest(builder, name)
        return builder.export()


def build_container_filter() -> bytes:
    """Returns the filter that containers have on top of their engine's, as `build_filter` does. Raises FilterError."""
    with _builder(default=_ALLOW) as builder:
        for architecture in _COMPATIBLE.get(platform.machine(), ()):
            builder.add_architecture(architecture)
        for family in DENIED_FAMILIES:
            builder.add(_ERRNO | errno.EAFNOSUPPORT, "socket", (0, _EQUAL, family, 0))
        # An ABI has the rules that come after it. Those for sockets would deny all that `socketcall` makes:
        # libseccomp cannot see the family.
        for architecture in _WITH_SOCKETCALL.get(platform.machine(), ()):
            builder.add_architecture(architecture)
        # Other ABIs have calls that the native one has not.
        for name in sorted({*DENIED, *builder.known()}):
            for action, comparison in _denials(name):
                builder.add(action, name, comparison)
        return builder.export()


def _denials(name: str) -> list[tuple[int, _Rule | None]]:
    """Returns the denials of both filters for a system call: actions, each with its condition, or None for always."""
    match name:
        case "clone" | "unshare":
            return [(_ERRNO | errno.EPERM, (0, _MASKED_EQUAL, bit, bit)) for bit in _namespaces(name)]
        case "clone3":
            # Its flags lie in memory, where a filter cannot look; C libraries then use `clone`.
            return [(_ERRNO | errno.ENOSYS, None)]
        case _:
            return [(_ERRNO | errno.EPERM, None)] if name in DENIED else []


def _namespaces(name: str) -> tuple[int, ...]:
    return NEW_NAMESPACES if name == "clone" else (*NEW_NAMESPACES, CLONE_NEWTIME)


def _allow_rest(builder: _Builder, name: str) -> None:
    """Adds rules that allow native processes what is not denied of a system call."""
    match name:
        case "clone" | "unshare":
            builder.add(_ALLOW, name, (0, _MASKED_EQUAL, sum(_namespaces(name)), 0))
        case "socket":
            for family in range(max(FAMILIES) + 1):
                action = _ALLOW if family in FAMILIES else _ERRNO | errno.EAFNOSUPPORT
                builder.add(action, name, (0, _EQUAL, family, 0))
            builder.add(_ERRNO | errno.EAFNOSUPPORT, name, (0, _GREATER, max(FAMILIES), 0))
        case "personality":
            for value in PERSONALITIES:
                builder.add(_ALLOW, name, (0, _EQUAL, value, 0))
        case _:
            builder.add(_ALLOW, name)


@contextlib.contextmanager
def _builder(default: int) -> Iterator[_Builder]:
    """Yields a filter under construction, for the native ABI; `default` is its action for calls that no rule names.
    Raises FilterError.
    """
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise FilterError(f"{LIBRARY} is missing: install the package libseccomp2 ({error})") from error
    library.seccomp_init.restype = ctypes.c_void_p
    context = library.seccomp_init(ctypes.c_uint32(default))
    if not context:
        raise FilterError(f"{LIBRARY} cannot make a filter")
    builder = _Builder(library, ctypes.c_void_p(context), default)
    try:
        builder.set(_BAD_ARCHITECTURE, _ERRNO | errno.ENOSYS)
        builder.set(_OPTIMIZE, _BINARY_TREE)
        yield builder
    finally:
        library.seccomp_release(builder.context)


class _Builder:
    """A filter under construction."""

    def __init__(self, library: ctypes.CDLL, context: ctypes.c_void_p, default: int) -> None:
        self.context = context
        self._library = library
        self._default = default
        self._resolve = library.seccomp_syscall_resolve_num_arch
        self._resolve.restype = ctypes.c_void_p
        self._free = ctypes.CDLL(None).free
        self._free.argtypes = (ctypes.c_void_p,)

    def known(self) -> list[str]:
        """Returns the names of the system calls of this machine type."""
        found = []
        for number in range(_LAST_NUMBER + 1):
            if name := self._resolve(ctypes.c_uint32(_NATIVE), ctypes.c_int(number)):
                found.append(ctypes.string_at(name).decode())
                self._free(name)
        return found

    def set(self, attribute: int, value: int) -> None:
        """Sets an attribute of the filter."""
        self._check(self._library.seccomp_attr_set(self.context, ctypes.c_int(attribute), ctypes.c_uint32(value)))

    def add_architecture(self, token: int) -> None:
        """Has the rules hold for another ABI too, as far as it has the system calls."""
        self._check(self._library.seccomp_arch_add(self.context, ctypes.c_uint32(token)))

    def add(self, action: int, name: str, comparison: _Rule | None = None) -> None:
        """Adds a rule; a comparison, which begins with the number of an argument, makes it conditional.

        Nothing is done for a system call that libseccomp does not know.
        """
        number = self._library.seccomp_syscall_resolve_name(name.encode())
        # libseccomp refuses a rule that repeats the default.
        if action == self._default or number == _UNKNOWN:
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
