"""Rebuilds the record of an attempt from its processes: what runs is never ended because a file about it is lost."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from retinue.agent.attempts import Phase
from retinue.agent.host.processes import PROC, Process, command_of, identify
from retinue.agent.runtime.attempt_records import Record
from retinue.rpc.core.reasons import AttemptReason

if TYPE_CHECKING:
    from collections.abc import Iterable

_log = logging.getLogger(__name__)

BARRIER = "barrier"
"""Name of the FIFO that the command of a kernel waits at."""
_MONITOR = "bwrap"


@dataclass(frozen=True, slots=True)
class LiveKernel:
    """Processes of a kernel: its first one, the one that monitors it, and whether its command
    waits at the start barrier.

    `cores` are those that it is pinned to; none when it runs on any.
    """

    init: Process
    monitor: Process | None
    waiting: bool
    cores: tuple[int, ...]


def find_kernel(pids: Iterable[int]) -> LiveKernel | None:
    """Looks among the processes of a control group for the first one of a process namespace;
    None when there is none.
    """
    nesting: dict[int, int] = {}
    parents: dict[int, int] = {}
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            status = _status(pid)
            numbers = status["NSpid"].split()
            # Number 1 where it lives, and another one here.
            if len(numbers) > 1 and numbers[-1] == "1":
                nesting[pid], parents[pid] = len(numbers), int(status["PPid"])
    for pid in sorted(nesting, key=lambda number: nesting[number]):
        if (init := identify(pid)) is not None:
            command = command_of(init)
            waiting = command is not None and waits_at_barrier(command)
            return LiveKernel(init, _monitor(parents[pid]), waiting, _cores(pid))
    return None


def rebuilt(attempt_id: str, boot_id: str, copy: Record | None, kernel: LiveKernel, now: float) -> Record:
    """Returns the record of a kernel that runs: from its copy, which may be a step behind, and what was found. Pure.

    Without a copy nothing is known of session and networks: that is left to the manager.
    """
    if copy is None or copy.boot_id != boot_id:
        # An egress link that never existed is removed without harm.
        copy = Record(attempt_id, "", attempt_id.rpartition(".")[0], boot_id, egress=True, rebuilt=True)
    record = replace(copy, monitor=kernel.monitor, init=kernel.init, cores=copy.cores or kernel.cores)
    if kernel.waiting:
        return replace(record, phase=Phase.STOPPING if copy.phase is Phase.STOPPING else Phase.CREATED, start_time=None)
    start_time = now if copy.start_time is None else copy.start_time
    phase = Phase.STOPPING if copy.phase is Phase.STOPPING else Phase.RUNNING
    return replace(record, phase=phase, start_time=start_time, attached=True)


def recovered(attempt_id: str, boot_id: str, copy: Record | None, kernel: LiveKernel | None, now: float) -> Record:
    """Returns a record in place of one that was lost: of the kernel that runs, else its copy,
    else of an attempt that has failed.
    """
    if kernel is not None:
        _log.error("the record of attempt %s was lost; it runs on, and its record is rebuilt", attempt_id)
        return rebuilt(attempt_id, boot_id, copy, kernel, now)
    if copy is not None:
        return copy
    # Nothing of it runs. It must not be started again, and no more can be said of it.
    _log.error("the record of attempt %s was lost, and nothing of it runs", attempt_id)
    record = Record(attempt_id, "", attempt_id.rpartition(".")[0], boot_id)
    return replace(record, reason=AttemptReason.RECORD_LOST, message="the agent's record of the attempt was lost")


def waits_at_barrier(command: Process) -> bool:
    """Returns whether a process reads its standard input from the barrier, there or deleted."""
    link = PROC / str(command.pid) / "fd" / "0"
    try:
        target = os.readlink(link).removesuffix(" (deleted)")
        return stat.S_ISFIFO(link.stat().st_mode) and target.rpartition("/")[2] == BARRIER
    except OSError:
        return False


def _monitor(pid: int) -> Process | None:
    with contextlib.suppress(OSError, KeyError):
        if _status(pid)["Name"].strip() == _MONITOR:
            return identify(pid)
    return None


def _cores(pid: int) -> tuple[int, ...]:
    with contextlib.suppress(OSError):
        cores = os.sched_getaffinity(pid)
        if cores != os.sched_getaffinity(0) and len(cores) < (os.cpu_count() or 1):
            return tuple(sorted(cores))
    return ()


def _status(pid: int) -> dict[str, str]:
    # Split at line feeds only, which Linux escapes in the name of a process.
    lines = (PROC / str(pid) / "status").read_text(errors="replace").split("\n")
    return {name: value for name, _, value in (line.partition(":") for line in lines)}
