"""Becomes another program: as another user, unable to gain rights, and not for longer than its parent. Run by its path.

    launcher.py PROGRAM_DESCRIPTOR PARENT UID GID ARGUMENT…

The program is an open file, so that its user needs no access to its path. UID -1 leaves user and group as they are.
"""

import ctypes
import os
import signal
import sys

_SET_PARENT_DEATH_SIGNAL, _SET_NO_NEW_PRIVILEGES = 1, 38


def main() -> None:
    """Does not return."""
    program, parent, user, group = map(int, sys.argv[1:5])
    if user >= 0:
        os.setgroups([])
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
    library = ctypes.CDLL(None)
    library.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    # After the change of user, which forgets it.
    library.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the parent has gone")
    os.chdir("/")
    os.execve(program, sys.argv[5:], dict(os.environ))  # noqa: S606  # that is the purpose


if __name__ == "__main__":
    main()
