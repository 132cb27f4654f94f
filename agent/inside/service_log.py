"""The log of a program that was started inside a kernel and runs on its own: it lies in the kernel,
which may put anything there.

The program has a lock on it (flock(2)) for as long as it runs; see `attach.c`. Everything here blocks for a short time.
"""

from __future__ import annotations

import fcntl
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from retinue.agent.host import syscalls
from retinue.agent.host.processes import Process, identify

DIRECTORY = "tmp"
TAIL = 16 * 1024


@dataclass(frozen=True, slots=True)
class ServiceSample:
    """The state of a program: it runs or not, and the last of its output."""

    runs: bool = False
    tail: bytes = b""


def path(name: str) -> str:
    """Returns the path of a service's log, as the kernel sees it."""
    return f"/{DIRECTORY}/.retinue-{name}.log"


def look(init: Process, name: str) -> ServiceSample:
    """Returns the state of a service, seen from outside of the kernel whose first process is `init`."""
    if (log := _open(init, name)) is None:
        return ServiceSample()
    try:
        size = os.fstat(log).st_size
        tail = os.pread(log, TAIL, max(0, size - TAIL))
        return ServiceSample(_is_locked(log), tail)
    finally:
        os.close(log)


def writers(init: Process, name: str) -> list[Process]:
    """Returns the program of a service and what it has started: processes of the kernel
    whose output is the locked log.
    """
    if (log := _open(init, name)) is None:
        return []
    try:
        found = os.fstat(log)
    finally:
        os.close(log)
    try:
        kernel = os.readlink(f"/proc/{init.pid}/ns/pid")
    except OSError:
        return []
    numbers = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    return [process for number in numbers if (process := _writer(number, kernel, found)) is not None]


def _writer(number: int, kernel: str, log: os.stat_result) -> Process | None:
    process = identify(number)
    try:
        if process is None or os.readlink(f"/proc/{number}/ns/pid") != kernel:
            return None
        for descriptor in os.listdir(f"/proc/{number}/fd"):
            there = os.stat(f"/proc/{number}/fd/{descriptor}")
            # A process that only reads it, or opened it by itself, has no lock.
            if os.path.samestat(there, log) and "FLOCK" in Path(f"/proc/{number}/fdinfo/{descriptor}").read_text():
                return process
    except OSError:
        # It has ended meanwhile.
        return None
    return None


def _open(init: Process, name: str) -> int | None:
    """Returns the log, if it is there and a plain file. Follows no links out of the kernel."""
    try:
        root = os.open(f"/proc/{init.pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        directory = syscalls.open_beneath(root, DIRECTORY)
    except OSError:
        return None
    finally:
        os.close(root)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        log = os.open(os.path.basename(path(name)), flags, dir_fd=directory)
    except OSError:
        return None
    finally:
        os.close(directory)
    if not stat.S_ISREG(os.fstat(log).st_mode):
        os.close(log)
        return None
    return log


def _is_locked(log: int) -> bool:
    try:
        fcntl.flock(log, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
