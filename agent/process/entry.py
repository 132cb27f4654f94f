"""The way into a native process kernel: `attach.c` as a child of the agent,
which joins the kernel and gives up all rights.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.agent.errors import KernelRuntimeError, NotRunningError
from retinue.agent.host.lanes import in_thread
from retinue.agent.host.processes import PROC, Process, open_pidfd
from retinue.agent.inside.exec_session import BUFFER, ExecStream, SocketChannel
from retinue.agent.kernel.paths import HOME
from retinue.agent.process.bubblewrap import memory_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_log = logging.getLogger(__name__)

Child = subprocess.Popen[bytes]
END_TIMEOUT = 5.0
"""Seconds that the helper may take to end what it has started, before it is killed itself."""
_CARRIED = re.compile(r"e\d+")


def environment_of(init: Process) -> dict[str, str]:
    """Returns the environment of a kernel's command, which its first process carries as the values of `e0`, `e1`, ….
    Blocks.

    Raises NotRunningError. The command itself may have written over its own.
    """
    try:
        carried = (PROC / str(init.pid) / "environ").read_bytes().decode(errors="surrogateescape").split("\0")
    except OSError as error:
        raise NotRunningError("the kernel has ended") from error
    found: dict[str, str] = {}
    for entry in carried:
        name, _, value = entry.partition("=")
        if _CARRIED.fullmatch(name):
            variable, _, content = value.partition("=")
            found[variable] = content
    return found


@dataclass(frozen=True, slots=True)
class Confinement:
    """The confinement of a kernel's processes: their user and group, a filter of system calls, and control groups."""

    uid: int
    gid: int
    filter: bytes
    groups: Sequence[Path]


def spawn(program: Path, init: Process, confinement: Confinement) -> tuple[Child, socket.socket]:
    """Starts the helper for the kernel whose first process is `init`, confined as all that runs there. Blocks.

    Raises NotRunningError, KernelRuntimeError.
    """
    descriptor = open_pidfd(init)
    if descriptor is None:
        raise NotRunningError("the kernel has ended")
    ours, theirs = socket.socketpair()
    try:
        procs = [str(group / "cgroup.procs") for group in confinement.groups]
        user = [str(confinement.uid), str(confinement.gid)]
        with memory_file(confinement.filter) as calls:
            child = subprocess.Popen(  # noqa: S603
                [str(program), "enter", str(descriptor), str(calls), *user, *procs],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                pass_fds=(descriptor, calls),
                env={},
                cwd="/",
                start_new_session=True,
            )
    except OSError as error:
        ours.close()
        raise KernelRuntimeError(f"the helper cannot be started: {error}") from error
    finally:
        theirs.close()
        os.close(descriptor)
    return child, ours


async def enter(
    program: Path,
    init: Process,
    confinement: Confinement,
    environment_of: Callable[[Process], dict[str, str]] = environment_of,
) -> ExecStream:
    """Returns a wire into the kernel whose first process is `init`. Raises NotRunningError, KernelRuntimeError."""
    environment = await in_thread(environment_of, init)
    spawning = asyncio.ensure_future(in_thread(spawn, program, init, confinement))
    try:
        child, ours = await asyncio.shield(spawning)
    except asyncio.CancelledError:
        # A thread cannot be stopped: what it starts is taken back, here and now.
        await asyncio.wait((spawning,))
        if spawning.exception() is None:
            child, ours = spawning.result()
            ours.close()
            await in_thread(_reap, child)
        raise
    # A connection that is there: nothing is asked of the other end.
    reader, writer = await asyncio.open_connection(sock=ours, limit=BUFFER)

    async def ended() -> None:
        try:
            await in_thread(_reap, child)
        except OSError as error:
            _log.warning("the end of a helper in a kernel is not waited for: %s", error)
            # It takes the helper inside with it. The next start of a process reaps it.
            child.kill()

    return ExecStream(SocketChannel(reader, writer), ended, environment, HOME)


def _reap(child: Child) -> None:
    try:
        child.wait(END_TIMEOUT)
    except subprocess.TimeoutExpired:
        # It takes the helper inside with it.
        child.kill()
        child.wait()
