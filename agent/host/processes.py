"""Processes of the node, identified by number and start time: a number used again is another process."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.agent.host import syscalls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PROC = Path("/proc")
_DEAD = frozenset("ZXx")


@dataclass(frozen=True, slots=True)
class Process:
    """A process; `start` is its start time in clock ticks since boot, field 22 of /proc/PID/stat."""

    pid: int
    start: int


def _read(pid: int, name: str) -> str:
    # A kernel chooses the names of its processes: any bytes, among them what is no UTF-8 and
    # what Python takes for the end of a line.
    return (PROC / str(pid) / name).read_bytes().decode(errors="replace")


def parse_stat(text: str) -> tuple[str, int, int]:
    """Returns the state letter, parent and start time from the text of /proc/PID/stat; the name may hold anything."""
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0], int(fields[1]), int(fields[19])


def identify(pid: int) -> Process | None:
    """Returns the living process with that number; None when there is none, or only what is left of one."""
    try:
        state, _, start = parse_stat(_read(pid, "stat"))
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in _DEAD else Process(pid, start)


def owner_of(process: Process) -> tuple[int, int]:
    """Returns the numbers of a process' user and group. Raises OSError when it has ended."""
    numbers = {}
    for line in _read(process.pid, "status").split("\n"):
        name, _, values = line.partition(":")
        if name in {"Uid", "Gid"}:
            numbers[name] = int(values.split()[1])
    return numbers["Uid"], numbers["Gid"]


def further_groups(process: Process) -> frozenset[int]:
    """Returns the groups of a process beside its own one. Raises OSError when it has ended."""
    for line in _read(process.pid, "status").split("\n"):
        name, _, values = line.partition(":")
        if name == "Groups":
            return frozenset(map(int, values.split())) - {owner_of(process)[1]}
    return frozenset()


def alive(process: Process) -> bool:
    """Returns whether the process still runs; one that ended and was not yet reaped does not."""
    return identify(process.pid) == process


def open_pidfd(process: Process) -> int | None:
    """Returns a file descriptor that turns readable when the process ends; None when it has ended already."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    # Between looking and opening the number may have passed to another process.
    if not alive(process):
        os.close(descriptor)
        return None
    return descriptor


def send_signal(process: Process, number: int) -> bool:
    """Sends a signal to this very process; False when it has ended."""
    return _send(process, lambda descriptor: signal.pidfd_send_signal(descriptor, number))


def queue_signal(process: Process, number: int) -> bool:
    """Sends a signal to this very process as the agent's, which the first process of a container tells from those of
    an engine; False when it has ended.
    """
    return _send(process, lambda descriptor: syscalls.queue_signal(descriptor, number))


def _send(process: Process, send: Callable[[int], None]) -> bool:
    descriptor = open_pidfd(process)
    if descriptor is None:
        return False
    try:
        with contextlib.suppress(ProcessLookupError):
            send(descriptor)
            return True
        return False
    finally:
        os.close(descriptor)


def wait_end(process: Process, timeout: float) -> bool:
    """Waits until the process has ended, blocking; False after `timeout` seconds."""
    descriptor = open_pidfd(process)
    if descriptor is None:
        return True
    try:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        return bool(poller.poll(timeout * 1000))
    finally:
        os.close(descriptor)


def descended(session: int, pids: Iterable[int]) -> list[Process]:
    """Returns those of the processes that belong to a session, and the descendants of these."""
    found: dict[int, Process] = {}
    children: dict[int, list[int]] = {}
    waiting: list[int] = []
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            text = _read(pid, "stat")
            state, parent, start = parse_stat(text)
            if state not in _DEAD:
                found[pid] = Process(pid, start)
                children.setdefault(parent, []).append(pid)
                # Field 6.
                if int(text[text.rindex(")") + 2 :].split()[3]) == session:
                    waiting.append(pid)
    # In one walk: a kernel chooses how deep its tree is.
    ours: set[int] = set()
    while waiting:
        pid = waiting.pop()
        if pid not in ours:
            ours.add(pid)
            waiting.extend(children.get(pid, ()))
    return [process for pid, process in found.items() if pid in ours]


def command_of(init: Process) -> Process | None:
    """Returns the process that has number 2 in the process namespace of `init`: the command beneath its reaper."""
    try:
        children = (PROC / str(init.pid) / "task" / str(init.pid) / "children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    for child in children:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for line in _read(int(child), "status").split("\n"):
                if line.startswith("NSpid:") and line.split()[-1] == "2":
                    return identify(int(child))
    return None
