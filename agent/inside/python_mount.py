"""Puts the agent's Python into a kernel that runs on this node, for images that have none with Jupyter."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.agent.errors import BackendError, NotRunningError
from retinue.agent.host import syscalls
from retinue.agent.host.launch_threads import in_own_thread
from retinue.agent.host.processes import alive
from retinue.agent.kernel.paths import PYTHON

if TYPE_CHECKING:
    from retinue.agent.host.processes import Process


def mount_python(process: Process, runtime: Path) -> None:
    """Mounts the runtime into a kernel, unless it is there already. Blocks. Raises NotRunningError, BackendError."""
    try:
        namespace = os.open(f"/proc/{process.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise NotRunningError("the kernel has ended") from error
    try:
        if not alive(process):
            raise NotRunningError("the kernel has ended")

        def inside() -> None:
            directory = os.open(runtime, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                attributes = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV | syscalls.MOUNT_ATTR_RDONLY
                mount = syscalls.clone_mount(directory, attributes)
            finally:
                os.close(directory)
            try:
                syscalls.unshare(syscalls.CLONE_FS)
                syscalls.enter(namespace, syscalls.CLONE_NEWNS)
                os.umask(0o022)
                if Path(PYTHON, "bin/python3").exists():
                    return
                Path(PYTHON).mkdir(mode=0o755, parents=True, exist_ok=True)
                target = os.open(PYTHON, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    syscalls.attach_mount(mount, target)
                finally:
                    os.close(target)
            finally:
                os.close(mount)

        in_own_thread(inside)
    except OSError as error:
        raise BackendError(f"the Python for code cannot be put into the kernel: {error}") from error
    finally:
        os.close(namespace)
