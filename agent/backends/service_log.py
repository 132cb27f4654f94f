"""The log of a program that was started inside a kernel and goes on by itself: it lies in the kernel, which may put anything there.

The program has a lock on it (flock(2)) for as long as it runs; see `attach.c`. Everything here blocks for a short time.
"""

from __future__ import annotations

import fcntl
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.backends import linux

if TYPE_CHECKING:
    from agent.backends.processes import Process

DIRECTORY = "tmp"
TAIL = 16 * 1024


@dataclass(frozen=True, slots=True)
class Seen:
    """Whether the program runs, and the last of what it printed."""

    runs: bool = False
    tail: bytes = b""


def path(name: str) -> str:
    """Where the log of a service lies, as the kernel sees it."""
    return f"/{DIRECTORY}/.retinue-{name}.log"


def look(init: Process, name: str) -> Seen:
    """What can be seen of a service from outside of the kernel whose first process is `init`. Follows no links out of it."""
    try:
        root = os.open(f"/proc/{init.pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return Seen()
    try:
        directory = linux.open_beneath(root, DIRECTORY)
    except OSError:
        return Seen()
    finally:
        os.close(root)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        log = os.open(os.path.basename(path(name)), flags, dir_fd=directory)
    except OSError:
        return Seen()
    finally:
        os.close(directory)
    try:
        found = os.fstat(log)
        if not stat.S_ISREG(found.st_mode):
            return Seen()
        tail = os.pread(log, TAIL, max(0, found.st_size - TAIL))
        return Seen(_is_locked(log), tail)
    finally:
        os.close(log)


def _is_locked(log: int) -> bool:
    try:
        fcntl.flock(log, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
