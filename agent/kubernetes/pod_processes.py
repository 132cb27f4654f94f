"""The processes of a pod on its node, found by the pod's uid in their control groups, whichever driver made those.
All of it blocks.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from retinue.agent.docker.core.container_spec import INSIDE
from retinue.agent.errors import NotRunningError
from retinue.agent.host.cgroups import MOUNT
from retinue.agent.host.processes import PROC, identify, owner_of
from retinue.agent.process.entry import Confinement

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.agent.host.processes import Process

_INIT = f"{INSIDE}/init".encode()


def first_process_of(uid: str) -> Process | None:
    """Returns the first process of the kernel's container in a pod; None when none runs."""
    # The driver of systemd has no `-` in the names of its groups.
    names = (uid.encode(), uid.replace("-", "_").encode())
    for pid in map(int, filter(str.isdigit, os.listdir(PROC))):
        with contextlib.suppress(OSError):
            groups = (PROC / str(pid) / "cgroup").read_bytes()
            if any(name in groups for name in names) and _is_init(pid):
                return identify(pid)
    return None


def _is_init(pid: int) -> bool:
    """Returns whether it is number 1 of its own namespace, and our program:
    every pod has a process beside that only waits.
    """
    if (PROC / str(pid) / "cmdline").read_bytes().split(b"\0", 1)[0] != _INIT:
        return False
    for line in (PROC / str(pid) / "status").read_bytes().splitlines():
        if line.startswith(b"NSpid:"):
            return line.split()[-1] == b"1"
    return False


def environment_of(init: Process) -> dict[str, str]:
    """Returns the environment of a pod's container. Raises NotRunningError."""
    try:
        text = (PROC / str(init.pid) / "environ").read_bytes().decode(errors="surrogateescape")
    except OSError as error:
        raise NotRunningError("the kernel has ended") from error
    pairs = (entry.partition("=") for entry in text.split("\0") if entry)
    return {name: value for name, separator, value in pairs if separator}


def confinement_of(init: Process, calls: bytes) -> Confinement:
    """Returns the confinement of a container's processes: its user, its control groups, and a filter of system calls.

    Raises NotRunningError.
    """
    try:
        uid, gid = owner_of(init)
        lines = (PROC / str(init.pid) / "cgroup").read_text().splitlines()
    except OSError as error:
        raise NotRunningError("the kernel has ended") from error
    groups = []
    for line in lines:
        _, controllers, directory = line.split(":", 2)
        group = _hierarchy(controllers) / directory.lstrip("/")
        # A hierarchy that is not mounted has no limits that count.
        if directory != "/" and (group / "cgroup.procs").exists():
            groups.append(group)
    return Confinement(uid, gid, calls, tuple(groups))


def _hierarchy(controllers: str) -> Path:
    return MOUNT / controllers.removeprefix("name=") if controllers else MOUNT
