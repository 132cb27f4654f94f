"""Kernels that something outside of them keeps from running: a frozen control group, as `docker pause` leaves it, or a
signal that stops. All of it blocks.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

from retinue.agent.host.cgroups import MOUNT, group_of, is_unified, write_value
from retinue.agent.host.processes import PROC, Process, alive, parse_stat, send_signal

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

FROZEN = "its control group is frozen, as `docker pause` does it"
STOPPED = "it was stopped by a signal"
_FREEZER = "freezer"
_FILE_SIZE = 4096


def pause_of(process: Process) -> str:
    """Returns what keeps a process from running, in words; empty when nothing does, or it has ended."""
    if is_frozen(process):
        return FROZEN
    return STOPPED if is_stopped(process) else ""


def is_stopped(process: Process) -> bool:
    """Returns whether a signal has stopped a process."""
    try:
        state, _, start = parse_stat(_read(PROC / str(process.pid) / "stat"))
    except (OSError, ValueError, IndexError):
        return False
    return state == "T" and start == process.start


def is_frozen(process: Process, mount: Path = MOUNT) -> bool:
    """Returns whether the control group of a process is frozen, by its own doing or with one above it."""
    if (group := group_of(str(process.pid), _FREEZER, mount)) is None:
        return False
    try:
        if is_unified(mount):
            frozen = "frozen 1" in _read(group / "cgroup.events").splitlines()
        else:
            frozen = _read(group / "freezer.state").strip() in {"FROZEN", "FREEZING"}
    except OSError:
        return False
    # The number may be another process' by now.
    return frozen and alive(process)


def resume(process: Process, shared: Iterable[int] | None = None, mount: Path = MOUNT) -> None:
    """Has a paused process run, and all that is in its kernel; does nothing to one that runs.

    Linux ends what is frozen, in a group of version 1, only once it is not. By default the control group is the
    kernel's own. Where it may be `shared`, and in version 1, the numbers of the kernel's processes say what leaves it:
    others stay as they are. Raises OSError.
    """
    if is_frozen(process, mount) and (group := group_of(str(process.pid), _FREEZER, mount)) is not None:
        if is_unified(mount):
            write_value(group / "cgroup.freeze", 0)
        elif shared is None:
            write_value(group / "freezer.state", "THAWED")
        else:
            for pid in {process.pid, *shared}:
                with contextlib.suppress(ProcessLookupError):
                    write_value(mount / _FREEZER / "cgroup.procs", pid)
    if is_stopped(process):
        send_signal(process, signal.SIGCONT)


def _read(path: Path) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _FILE_SIZE).decode(errors="replace")
    finally:
        os.close(descriptor)
