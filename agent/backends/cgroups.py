"""Control groups of kernels, version 1 and 2: limits, what they counted, and the end of all processes in one.

Every agent has a group `retinue/AGENT_ID` in each hierarchy, with one group per attempt beneath it and a group
`monitors` for the processes that watch over kernels, which must not fall to a kernel's limits.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agent.attempts import CPU, MEMORY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOUNT = Path("/sys/fs/cgroup")
FAMILY = "retinue"
MONITORS = "monitors"
CPU_PERIOD = 100_000
"""Length of the period in which a quota of processor time counts, in microseconds."""
SMALLEST_QUOTA = 1_000
"""The least quota the kernel takes, in microseconds."""
WANTED = ("memory", "cpu", "cpuacct", "pids")


class CgroupError(Exception):
    """The node's control groups cannot be used as needed."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one kernel: bytes of memory, thousandths of processors (None: no limit), number of tasks."""

    memory: int | None
    cpu: int | None
    tasks: int

    @classmethod
    def of(cls, slots: Mapping[str, int], tasks: int) -> Limits:
        """The limits that go with an attempt's slots."""
        return cls(slots.get(MEMORY), slots.get(CPU), tasks)


def quota(cpu: int) -> int:
    """Microseconds of processor time per period for so many thousandths of a processor."""
    return max(SMALLEST_QUOTA, cpu * CPU_PERIOD // 1000)


def _write(path: Path, value: int | str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, str(value).encode())
    finally:
        os.close(descriptor)


def _count(path: Path, key: str) -> int:
    try:
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return int(value)
    except OSError:
        return 0
    return 0


class Cgroups:
    """The groups of one agent. Methods block for a moment; those that wait say so."""

    def __init__(self, agent_id: str, mount: Path = MOUNT) -> None:
        """Finds out which version the node has; raises CgroupError when a needed controller is missing."""
        self.unified = (mount / "cgroup.controllers").exists()
        self._roots: dict[str, Path] = {}
        if self.unified:
            self._roots[""] = mount
        else:
            # Controllers mounted together appear as links to one directory: a group must be made there once.
            found = {name: mount / name for name in WANTED if (mount / name / "cgroup.procs").exists()}
            if missing := {"memory", "cpu", "pids"} - set(found):
                raise CgroupError(f"control group controllers missing: {', '.join(sorted(missing))}")
            by_place = {path.resolve(): name for name, path in reversed(found.items())}
            self._roots = {name: place for place, name in by_place.items()}
        self._family = Path(FAMILY) / agent_id

    def open(self) -> None:
        """Makes the agent's own groups."""
        for root in self._roots.values():
            try:
                if self.unified:
                    for parent in (root, root / FAMILY, root / self._family):
                        parent.mkdir(exist_ok=True)
                        _write(parent / "cgroup.subtree_control", "+memory +cpu +pids")
                (root / self._family / MONITORS).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise CgroupError(f"cannot make control groups under {root}: {error.strerror}") from error

    def close(self) -> None:
        """Removes the agent's own groups where nothing is left in them."""
        for root in self._roots.values():
            for place in (root / self._family / MONITORS, root / self._family, root / FAMILY):
                with contextlib.suppress(OSError):
                    place.rmdir()

    def names(self) -> set[str]:
        """Attempts there is a group of."""
        found: set[str] = set()
        for root in self._roots.values():
            with contextlib.suppress(FileNotFoundError):
                found |= {entry.name for entry in os.scandir(root / self._family) if entry.is_dir()}
        return found - {MONITORS}

    def places(self, attempt_id: str) -> dict[str, Path]:
        """The attempt's directory by controller; in version 2 there is one, under the empty name."""
        return {name: root / self._family / attempt_id for name, root in self._roots.items()}

    def create(self, attempt_id: str, limits: Limits) -> None:
        """Makes the attempt's groups with the limits of memory and tasks; that of processor time is set apart."""
        places = self.places(attempt_id)
        for place in places.values():
            place.mkdir(exist_ok=True)
        if self.unified:
            _write(places[""] / "pids.max", limits.tasks)
            if limits.memory is not None:
                _write(places[""] / "memory.max", limits.memory)
                with contextlib.suppress(FileNotFoundError):
                    _write(places[""] / "memory.swap.max", 0)
            return
        _write(places["pids"] / "pids.max", limits.tasks)
        if limits.memory is not None:
            _write(places["memory"] / "memory.limit_in_bytes", limits.memory)
            with contextlib.suppress(FileNotFoundError):
                _write(places["memory"] / "memory.memsw.limit_in_bytes", limits.memory)

    def limit_cpu(self, attempt_id: str, limits: Limits) -> None:
        """Sets the limit of processor time; done when the kernel is set up, so that setting up is not slowed by it."""
        if limits.cpu is None:
            return
        place = self.places(attempt_id)["" if self.unified else "cpu"]
        if self.unified:
            _write(place / "cpu.weight", min(10_000, max(1, limits.cpu // 10)))
            _write(place / "cpu.max", f"{quota(limits.cpu)} {CPU_PERIOD}")
        else:
            _write(place / "cpu.shares", max(2, limits.cpu * 1024 // 1000))
            _write(place / "cpu.cfs_period_us", CPU_PERIOD)
            _write(place / "cpu.cfs_quota_us", quota(limits.cpu))

    def join(self, attempt_id: str) -> Sequence[str]:
        """Puts what the calling thread starts next into the attempt's groups.

        In version 1 the thread itself joins, at no cost; it must be a throw-away thread. In version 2 a thread cannot,
        and the answer is the start of an argument vector that joins and then runs what follows it.
        """
        places = self.places(attempt_id)
        if self.unified:
            return ("/bin/sh", "-c", 'echo $$ >"$0" && exec "$@"', str(places[""] / "cgroup.procs"))
        for place in places.values():
            _write(place / "tasks", threading.get_native_id())
        return ()

    def watch_over(self, pid: int) -> None:
        """Moves the process that watches over a kernel out of the kernel's groups."""
        for root in self._roots.values():
            with contextlib.suppress(ProcessLookupError):
                _write(root / self._family / MONITORS / "cgroup.procs", pid)

    def out_of_memory_kills(self, attempt_id: str) -> int:
        """How many processes of the attempt the kernel ended because its memory was used up."""
        places = self.places(attempt_id)
        if self.unified:
            return _count(places[""] / "memory.events", "oom_kill")
        return _count(places["memory"] / "memory.oom_control", "oom_kill")

    def processes(self, attempt_id: str) -> set[int]:
        """Numbers of the processes in the attempt's groups.

        Never that of this process: a thread of it that joined to start a kernel may not be quite gone yet.
        """
        found: set[int] = set()
        for place in self.places(attempt_id).values():
            with contextlib.suppress(OSError):
                found |= {int(number) for number in (place / "cgroup.procs").read_text().split()}
        return found - {os.getpid()}

    def kill(self, attempt_id: str) -> None:
        """Sends SIGKILL to every process in the attempt's groups."""
        for pid in self.processes(attempt_id):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def remove(self, attempt_id: str, timeout: float) -> bool:
        """Ends what is left in the attempt's groups and removes them, waiting up to `timeout` seconds."""
        deadline = time.monotonic() + timeout
        pause = 0.001
        while True:
            self.kill(attempt_id)
            left = False
            for place in self.places(attempt_id).values():
                try:
                    place.rmdir()
                except FileNotFoundError:
                    continue
                except OSError as error:
                    if error.errno != errno.EBUSY:
                        raise
                    left = True
            if not left:
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(pause)
            pause = min(0.05, pause * 2)
