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
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.agent.host.core.limits import TCP_BUFFERS, Limits, cpu_settings, memory_settings, tcp_buffers
from retinue.agent.state.exclusive import InUseError, lock

if TYPE_CHECKING:
    from collections.abc import Sequence

MOUNT = Path("/sys/fs/cgroup")
FAMILY = "retinue"
MONITORS = "monitors"
WANTED = ("memory", "cpu", "cpuacct", "pids", "blkio")
"""Controllers of version 1; the last one, and cpuacct, only count."""
CPUSET = "cpuset"


class CgroupError(Exception):
    """The node's control groups cannot be used as needed."""


def memory_group(pid: int, mount: Path = MOUNT) -> Path | None:
    """Returns the group that a process's memory counts in, no matter who made it;
    None when that cannot be found out.
    """
    return group_of(str(pid), "memory", mount)


def is_unified(mount: Path = MOUNT) -> bool:
    """Returns whether the node has control groups of version 2 only."""
    return (mount / "cgroup.controllers").exists()


def group_of(pid: str, controller: str, mount: Path = MOUNT) -> Path | None:
    """Returns the group of a process that has a controller; None when it has none, or the process is gone."""
    unified = is_unified(mount)
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, directory = line.split(":", 2)
            if (not controllers) if unified else (controller in controllers.split(",")):
                return (mount if unified else mount / controller) / directory.lstrip("/")
    return None


def out_of_memory_kills(group: Path) -> int:
    """Returns how many processes of a group Linux ended because its memory was used up; 0 once the group is gone."""
    return max(_count(group / file, "oom_kill") for file in ("memory.events", "memory.oom_control"))


def limit_tcp_buffers(pid: int, memory: int | None) -> None:
    """Bounds the buffers of TCP connections of a kernel whose group an engine made; where Linux does not count them
    apart from memory, there is nothing to do.
    """
    group = memory_group(pid)
    if group is not None and memory is not None:
        with contextlib.suppress(OSError):
            write_value(group / TCP_BUFFERS, tcp_buffers(memory))


def write_value(path: Path, value: int | str) -> None:
    """Writes into a file of a control group. Raises OSError."""
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
        self.unified = is_unified(mount)
        self._mount = mount
        self._roots: dict[str, Path] = {}
        self._aliases: dict[str, str] = {}
        if self.unified:
            self._roots[""] = mount
        else:
            # Controllers mounted together appear as links to one directory: a group must be made there once.
            found = {name: mount / name for name in WANTED if (mount / name / "cgroup.procs").exists()}
            if missing := {"memory", "cpu", "pids"} - set(found):
                raise CgroupError(f"control group controllers missing: {', '.join(sorted(missing))}")
            by_directory = {path.resolve(): name for name, path in reversed(found.items())}
            self._roots = {name: directory for directory, name in by_directory.items()}
            self._aliases = {name: by_directory[path.resolve()] for name, path in found.items()}
        self._family = Path(FAMILY) / agent_id
        self._lock: int | None = None

    def open(self) -> None:
        """Makes the agent's own groups and has them for this process alone. Raises CgroupError."""
        for root in self._roots.values():
            try:
                try:
                    self._make_own(root)
                except FileNotFoundError:
                    # Another agent of this node, the last one so far, removed the parent in between.
                    self._make_own(root)
            except OSError as error:
                raise CgroupError(f"cannot make control groups under {root}: {error.strerror}") from error
        # The owner of the groups ends what is left in them: that must never be a second agent of the same id.
        family = next(iter(self._roots.values())) / self._family
        message = f"another process of agent {self._family.name} runs on this node: stop it first, or use another id"
        try:
            self._lock = lock(family, message)
        except (InUseError, OSError) as error:
            raise CgroupError(str(error)) from error

    def _make_own(self, root: Path) -> None:
        if self.unified:
            for parent in (root, root / FAMILY, root / self._family):
                parent.mkdir(exist_ok=True)
                write_value(parent / "cgroup.subtree_control", "+memory +cpu +pids")
                with contextlib.suppress(OSError):
                    # It only counts.
                    write_value(parent / "cgroup.subtree_control", "+io")
        (root / self._family / MONITORS).mkdir(parents=True, exist_ok=True)

    def close(self, timeout: float) -> None:
        """Removes the agent's own groups if nothing is left in them;
        waits up to `timeout` seconds for what is ending.
        """
        try:
            self._remove_own(timeout)
        finally:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def _remove_own(self, timeout: float) -> None:
        if self.names():
            return
        # With no kernel left, who watches over one is about to end, and must be let finish what it writes.
        deadline = time.monotonic() + timeout
        while self.processes(MONITORS):
            if time.monotonic() > deadline:
                return
            time.sleep(0.005)
        if self.remove(MONITORS, timeout):
            for root in self._roots.values():
                for directory in (root / self._family, root / FAMILY):
                    with contextlib.suppress(OSError):
                        directory.rmdir()

    def names(self) -> set[str]:
        """Returns the attempts there is a group of."""
        found: set[str] = set()
        for root in self._roots.values():
            with contextlib.suppress(FileNotFoundError):
                found |= {entry.name for entry in os.scandir(root / self._family) if entry.is_dir()}
        return found - {MONITORS}

    def directories(self, attempt_id: str) -> dict[str, Path]:
        """Returns the attempt's directory by controller; in version 2 there is one, under the empty name."""
        return {name: root / self._family / attempt_id for name, root in self._roots.items()}

    def shown(self, attempt_id: str) -> dict[str, Path]:
        """Returns the directories that the attempt sees, by name below the mount: those of its own groups and, in
        version 1, that of the processors of this process, which it shares. The JVM takes no limit at all from a
        system that lacks one of them.
        """
        directories = self.directories(attempt_id)
        shown = directories | {name: directories[other] for name, other in self._aliases.items()}
        if not self.unified and (processors := group_of("self", CPUSET, self._mount)) and processors.is_dir():
            shown[CPUSET] = processors
        return shown

    def paths(self, attempt_id: str) -> dict[str, str]:
        """Returns the attempt's directory beneath each mounted hierarchy, by controller."""
        controllers = ("",) if self.unified else WANTED
        return dict.fromkeys(controllers, f"/{self._family / attempt_id}")

    def create(self, name: str) -> None:
        """Makes groups of that name, without limits."""
        for directory in self.directories(name).values():
            directory.mkdir(exist_ok=True)

    def rename(self, name: str, attempt_id: str) -> None:
        """Gives groups to an attempt; version 1 only."""
        for old, new in zip(self.directories(name).values(), self.directories(attempt_id).values(), strict=True):
            old.rename(new)

    def limit(self, attempt_id: str, limits: Limits) -> None:
        """Sets the limits of memory and tasks; that of processor time is set apart. Raises CgroupError, OSError."""
        directories = self.directories(attempt_id)
        for controller, file, value, needed in memory_settings(limits, self.unified):
            try:
                write_value(directories[controller] / file, value)
            except FileNotFoundError:
                if needed:
                    raise
            except OSError as error:
                if error.errno == errno.EBUSY:
                    # Version 1 takes no limit below what the group uses already.
                    raise CgroupError(f"its start takes more memory than its limit of {value} bytes") from error
                if not needed and error.errno == errno.EOPNOTSUPP:
                    continue
                raise CgroupError(f"its limit {file} cannot be {value}: {error.strerror}") from error

    def limit_cpu(self, attempt_id: str, limits: Limits) -> None:
        """Sets the limit of processor time; done when the kernel is set up, so that setting up is not slowed by it."""
        if limits.cpu is None:
            return
        directories = self.directories(attempt_id)
        for controller, file, value, _ in cpu_settings(limits.cpu, self.unified):
            write_value(directories[controller] / file, value)

    def join(self, name: str) -> None:
        """Puts the calling thread, and whatever it starts, into the groups; version 1 only.
        It must be a throw-away one.
        """
        for directory in self.directories(name).values():
            write_value(directory / "tasks", threading.get_native_id())

    def joining_prefix(self, attempt_id: str) -> Sequence[str]:
        """Returns the start of an argument vector that joins the group and then becomes what follows;
        version 2 only.
        """
        directory = self.directories(attempt_id)[""]
        return ("/bin/sh", "-c", 'echo $$ >"$0" && exec "$@"', str(directory / "cgroup.procs"))

    def watch_over(self, pid: int) -> None:
        """Moves the process that watches over a kernel out of the kernel's groups."""
        for root in self._roots.values():
            with contextlib.suppress(ProcessLookupError):
                write_value(root / self._family / MONITORS / "cgroup.procs", pid)

    def out_of_memory_kills(self, attempt_id: str) -> int:
        """Returns how many processes of the attempt the kernel ended because its memory was used up."""
        return out_of_memory_kills(self.directories(attempt_id)["" if self.unified else "memory"])

    def processes(self, attempt_id: str) -> set[int]:
        """Returns the numbers of the processes in the attempt's groups.

        Never that of this process: a thread of it that joined to start a kernel may not be quite gone yet.
        """
        found: set[int] = set()
        for directory in self.directories(attempt_id).values():
            with contextlib.suppress(OSError):
                found |= {int(number) for number in (directory / "cgroup.procs").read_text().split()}
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
            for directory in self.directories(attempt_id).values():
                try:
                    directory.rmdir()
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
