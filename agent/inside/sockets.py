"""Unix sockets inside a kernel, reached from outside of it by the kernel's root directory.

The kernel may put anything at a name at any moment, so that a socket is looked up once, through no link, and reached by
a descriptor from then on.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.agent.errors import NotRunningError
from retinue.agent.host.processes import alive

if TYPE_CHECKING:
    from retinue.agent.host.processes import Process


@dataclass(frozen=True, slots=True)
class KernelSocket:
    """A Unix socket that was looked up. Close it in any case."""

    descriptor: int

    async def connect(self) -> socket.socket:
        """Returns a new connection to it, not blocking. Raises OSError."""
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.setblocking(False)
            await asyncio.get_running_loop().sock_connect(connection, f"/proc/self/fd/{self.descriptor}")
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        """Closes the descriptor; connections stay."""
        os.close(self.descriptor)


def open_sockets(init: Process, directory: str, names: tuple[str, ...]) -> list[KernelSocket]:
    """Looks up sockets by their names in a directory of the kernel whose first process is `init`. Blocks.

    Raises NotRunningError when there is no kernel, or one of them is missing, no socket, or behind a link.
    """
    found: list[int] = []
    try:
        opened = _open_directory(init, directory)
        try:
            for name in names:
                found.append(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=opened))
                if not stat.S_ISSOCK(os.fstat(found[-1]).st_mode):
                    raise NotRunningError(f"{directory}/{name} is not a socket")
        finally:
            os.close(opened)
    except (OSError, NotRunningError) as error:
        for descriptor in found:
            os.close(descriptor)
        raise NotRunningError(f"there are no sockets in {directory}") from error
    return [KernelSocket(descriptor) for descriptor in found]


def _open_directory(init: Process, path: str) -> int:
    """Returns a descriptor of a directory of the kernel; no part of its path may be a link."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    directory = os.open(f"/proc/{init.pid}/root", flags)
    try:
        if not alive(init):
            raise NotRunningError("the kernel has ended")
        for part in path.strip("/").split("/"):
            below = os.open(part, flags | os.O_NOFOLLOW, dir_fd=directory)
            os.close(directory)
            directory = below
    except BaseException:
        os.close(directory)
        raise
    return directory
