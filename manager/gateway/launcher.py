"""Becomes another program: as another user, unable to gain rights, and not for longer than its parent. Run by its path.

    launcher.py PROGRAM_DESCRIPTOR PARENT UID GID PRIVILEGED_PORT ARGUMENT…

The program is an open file, so that its user needs no access to its path. UID -1 leaves user and group as they are.
With PRIVILEGED_PORT 1 it keeps the right to listen at ports below 1,024.
"""

import ctypes
import os
import signal
import struct
import sys

_SET_PARENT_DEATH_SIGNAL, _SET_KEEP_CAPABILITIES, _SET_NO_NEW_PRIVILEGES = 1, 8, 38
_AMBIENT, _AMBIENT_RAISE = 47, 2
_NET_BIND_SERVICE = 10
_CAPABILITIES_VERSION = 0x20080522


def main() -> None:
    """Does not return."""
    program, parent, user, group, privileged = map(int, sys.argv[1:6])
    library = ctypes.CDLL(None, use_errno=True)
    if user >= 0:
        if privileged:
            library.prctl(_SET_KEEP_CAPABILITIES, 1, 0, 0, 0)
        os.setgroups([])
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
        if privileged:
            keep_port(library)
    library.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    # After the change of user, which forgets it.
    library.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the parent has gone")
    os.chdir("/")
    os.execve(program, sys.argv[6:], dict(os.environ))  # noqa: S606  # that is the purpose


def keep_port(library: ctypes.CDLL) -> None:
    """Keeps one capability, also through the start of the program, and gives up all others."""
    mask = 1 << _NET_BIND_SERVICE
    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITIES_VERSION, 0))
    sets = ctypes.create_string_buffer(struct.pack("=6I", mask, mask, mask, 0, 0, 0))
    if library.capset(header, sets) or library.prctl(_AMBIENT, _AMBIENT_RAISE, _NET_BIND_SERVICE, 0, 0):
        sys.exit(f"the right to listen at ports below 1024 is not kept: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main()
