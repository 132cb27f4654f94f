"""The start barrier of a container kernel: a FIFO that its first process waits at, by bytes that say what to start.
All of it blocks.
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.agent.docker.core.container_spec import INSIDE
from retinue.agent.host.processes import PROC
from retinue.agent.runtime.exit_reason import KILLED
from retinue.agent.runtime.rebuild import BARRIER

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from retinue.agent.host.processes import Process

# Bits of the mode of a barrier, as `agent/kernel/init.c` has them.
_ENDED, _RELEASED, _ASKED, _USED_UP, _EXIT_CODE = 0o1000, 0o2000, 0o4000, 0o400, 0o377
# In seconds since the epoch, before there were containers.
_MAX_KILLS = 100_000_000


@contextlib.contextmanager
def at_barrier(directory: Path, init: Process | None = None) -> Iterator[int | None]:
    """Opens the writing end of the start barrier; None while no process waits at it.
    For a running kernel, it is found without its name.
    """
    paths = [directory / BARRIER]
    if init is not None:
        paths.append(PROC / str(init.pid) / "root" / INSIDE.lstrip("/") / BARRIER)
    descriptor = None
    for path in paths:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            break
        os.close(descriptor)
        descriptor = None
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def waits_at_barrier(directory: Path, init: Process) -> bool:
    """Returns whether the command of a running kernel was not released yet."""
    with at_barrier(directory, init) as pipe:
        return pipe is not None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended, as its first process recorded it: exit code, time in seconds since the epoch,
    how many processes were killed as memory was used up, and whether something outside had just asked it to end.
    """

    exit_code: int
    end_time: float
    memory_kills: int
    asked: bool


def outcome(directory: Path) -> Outcome | None:
    """Returns how the command ended; None when its first process recorded nothing, as one that was killed."""
    try:
        found = (directory / BARRIER).stat()
    except OSError:
        return None
    if not found.st_mode & _ENDED:
        return None
    kills = 0
    if found.st_mode & _USED_UP:
        # First processes of former versions left the time as it was.
        kills = int(found.st_mtime) if 0 < found.st_mtime < _MAX_KILLS else 1
    return Outcome(found.st_mode & _EXIT_CODE, found.st_ctime, kills, bool(found.st_mode & _ASKED))


def stopped_by(directory: Path, exit_code: int | None) -> str:
    """Returns how something outside of a container, and not the agent, ended its command, in words; empty when it ended
    by itself, or that is not known. `exit_code` is that of the container.
    """
    if (found := outcome(directory)) is not None:
        return "its container was asked to end" if found.asked else ""
    # Nothing inside can kill the first process, which records the end of the command.
    return "its container was killed" if exit_code == KILLED else ""


def memory_kills(directory: Path) -> int | None:
    """Returns how many processes were killed as memory was used up, as the first process reported it before its end: an
    engine that was away does not know, and the group may be gone. None when it reported nothing.
    """
    if (found := outcome(directory)) is not None:
        return found.memory_kills
    try:
        # The way of first processes of former versions.
        return 1 if stat.S_IMODE((directory / BARRIER).stat().st_mode) == 0 else None
    except OSError:
        return None


def start_server(directory: Path, init: Process | None) -> None:
    """Has the server beside the command started, if there is one: the network is there. A second time does no harm."""
    _write(directory, init, b"s")


def open_barrier(directory: Path, init: Process | None) -> None:
    """Releases the command; a second call does nothing, and an engine is not needed."""
    _write(directory, init, b"\n", released=True)


def bar(directory: Path) -> None:
    """Has a first process that begins to wait from now on end at once: nothing of the attempt may start any more."""
    with contextlib.suppress(OSError):
        barrier = directory / BARRIER
        if not (mode := barrier.stat().st_mode) & _ENDED:
            barrier.chmod(stat.S_IMODE(mode) | _RELEASED)


def _write(directory: Path, init: Process | None, byte: bytes, *, released: bool = False) -> None:
    with at_barrier(directory, init) as pipe:
        if pipe is not None:
            if released:
                # Another first process, of a container that is started again, does not release the command once more.
                os.fchmod(pipe, stat.S_IMODE(os.fstat(pipe).st_mode) | _RELEASED)
            # A full pipe was filled by the command, which was released before.
            with contextlib.suppress(BlockingIOError):
                os.write(pipe, byte)
