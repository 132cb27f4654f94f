"""The bounds of what kernels write to the node's disk, which belongs to all of the node's kernels, and to the agent.

A kernel's bound is its slot `disk`; without one, that of the agent. A work directory has a file system of its own, of
that size, where the node can have one: what is beyond it gets ENOSPC. All else can only be measured, and kernels that
have too much, both together, are ended. All kernels are measured in turn, and at once
when free space or inodes fall fast. Measuring takes at most a tenth of the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from retinue.agent.errors import KernelRuntimeError, in_words
from retinue.agent.host.lanes import in_thread
from retinue.agent.host.processes import PROC
from retinue.agent.inside import work_disk
from retinue.rpc.core.reasons import AgentConditionReason, AgentConditionType, AttemptReason
from retinue.rpc.retrying import Retrying

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from retinue.agent.conditions import Conditions
    from retinue.agent.runtime.options import RuntimeOptions

_log = logging.getLogger(__name__)

DISK_EXCEEDED = AttemptReason.DISK_EXCEEDED
"""Reason of attempts that were ended for it."""
INTERVAL, STEP = 5.0, 0.25
"""Seconds between two rounds, and between two looks at the free space."""
SHARE = 9.0
"""The minimum pause after a round, as a multiple of the time that the round took."""
PART = 10
"""Unless set, a kernel may have this part of the file system."""
LEAST_FILES = 100_000
"""At least so many, or half of what a small file system has."""
MAX_LINKS = 1_000_000
"""Descriptors and mappings of one kernel that are examined."""
BYTES_PER_FILE, FEWEST_FILES = 8192, 1000
"""A kernel with a slot may have a file for so many bytes of it, and at least so many."""
TOLERATED_PART, MAX_TOLERATED = 8, 64 << 20
"""A kernel whose work directory is bounded by itself is ended only if it has more than its bound by this part of it, or
by so many bytes: its engine writes files of its own over an image, and a full work directory is no offence.
"""
_LARGE_DISK = 4 << 30
_DELETED = " (deleted)"
_DEEPEST = 200
_SECTOR = 512


@dataclass(frozen=True, slots=True)
class Bounds:
    """The numbers of bytes and files that a kernel may have on the node's disk."""

    size: int
    files: int


@dataclass(frozen=True, slots=True)
class Use:
    """Bytes and files there are."""

    size: int = 0
    files: int = 0


@dataclass(frozen=True, slots=True)
class DiskFootprint:
    """The directories on the node's disk that a kernel writes to.

    Its work directory is the first of `directories`. `processes` may keep files there that have no name; `devices` are
    the file systems, as they see them. `layer` is in bytes, for what lies in no directory that can be examined.
    `bounded` is a work directory with a file system of its own, instead. `bounds` are the kernel's own, if it has some.
    """

    directories: tuple[Path, ...]
    processes: Collection[int] = ()
    devices: Collection[int] = ()
    layer: int = 0
    bounded: Path | None = None
    bounds: Bounds | None = None

    @property
    def is_measured(self) -> bool:
        """Returns whether it has anything that nothing else bounds."""
        return bool(self.directories or self.layer or self.processes)


class Watched(Protocol):
    """Kernels whose use of the disk is watched."""

    async def footprints(self) -> Mapping[str, DiskFootprint]:
        """Returns the disk footprints of running attempts, by id."""
        ...

    async def end(self, attempt_id: str, reason: str, message: str) -> None:
        """Ends an attempt, and says why. Raises KernelRuntimeError, OSError."""
        ...


def bounds_of(directory: Path, size: int = 0, files: int = 0) -> Bounds:
    """Bounds as set; what is 0 is a part of the file system of a directory. Blocks."""
    status = os.statvfs(directory)
    # Some file systems have no fixed number of files, and say 0.
    least = min(LEAST_FILES, status.f_files // 2) if status.f_files else LEAST_FILES
    return Bounds(
        size or status.f_blocks * status.f_frsize // PART,
        files or max(least, status.f_files // PART),
    )


def find_disk(scratch_dir: Path) -> int:
    """Returns the bytes that kernels may have of the file system of their work directories, which is made if it is not
    there: what is free, and what file systems of work directories have taken already. Blocks; raises OSError.

    What others have there is not offered, so that the disk is never full before kernels have what they were promised.
    Found once, at the agent's start: what others write later is what the reserve is for. In whole GiB, or MiB of a
    small one, so that it does not change with every restart.
    """
    scratch_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = os.statvfs(scratch_dir)
    own = sum(image.lstat().st_blocks * _SECTOR for image in scratch_dir.glob(f"*{work_disk.IMAGE}"))
    found = status.f_bavail * status.f_frsize + own
    return found - found % ((1 << 30) if found >= _LARGE_DISK else (1 << 20))


def slot_bounds(disk: int, files: int = 0) -> Bounds | None:
    """Returns the bounds by a slot of so many bytes, with `files` if they are set; None without a slot. Pure."""
    return Bounds(disk, files or max(FEWEST_FILES, disk // BYTES_PER_FILE)) if disk else None


def bound_work(home: Path, disk: int, options: RuntimeOptions, conditions: Conditions) -> None:
    """Gives an empty work directory a file system of the kernel's slot `disk`, in bytes; 0: of the agent's bound.
    Blocks.

    The node has a condition while it cannot: what such kernels write is measured.
    """
    kind, reason, text = AgentConditionType.OTHER, AgentConditionReason.DISK_NOT_BOUNDED, ""
    try:
        bounds = slot_bounds(disk, options.work_files)
        bounds = bounds or bounds_of(home.parent, options.work_size, options.work_files)
        work_disk.add(home, bounds.size, bounds.files)
    except OSError as error:
        text = f"work directories have no file systems of their own, and kernels may fill the disk: {in_words(error)}"
        _log.info("%s: %s", home, text)
    conditions.update(kind, text, reason)


def devices_of(*paths: Path) -> frozenset[int]:
    """Returns the file systems that paths are on; a path that is not there counts for nothing. Blocks."""
    found = set()
    for path in paths:
        with contextlib.suppress(OSError):
            found.add(path.stat().st_dev)
    return frozenset(found)


def upper_layer(pid: int) -> Path | None:
    """Returns the directory that has what was written over the image of a process's root;
    None where there is none to look at. Blocks.
    """
    try:
        lines = (PROC / str(pid) / "mountinfo").read_bytes().decode(errors="surrogateescape").split("\n")
    except OSError:
        return None
    for line in reversed(lines):
        before, _, after = line.partition(" - ")
        kind, _, options = after.partition(" ")
        if kind == "overlay" and before.split(" ")[4] == "/":
            for option in options.rpartition(" ")[2].split(","):
                name, _, value = option.partition("=")
                if name == "upperdir" and value.startswith("/"):
                    return host_directory(value)
    return None


def host_directory(path: str) -> Path | None:
    """Returns where a directory is that an engine names; None where it cannot be reached. Blocks.

    An agent in a container has another root than the engine.
    """
    for root in (Path("/"), PROC / "1" / "root"):
        with contextlib.suppress(OSError):
            if (root / path.lstrip("/")).is_dir():
                return root / path.lstrip("/")
    return None


def tolerated(bounds: Bounds) -> Bounds:
    """Returns the bounds beyond which a kernel with a bounded work directory is ended. Pure."""
    return Bounds(bounds.size + min(bounds.size // TOLERATED_PART, MAX_TOLERATED), bounds.files)


def exceeded(use: Use, bounds: Bounds) -> str:
    """Says what is too much, empty when nothing is. Pure."""
    if use.size > bounds.size:
        return f"its files take {use.size >> 20} MiB of the node's disk, more than {bounds.size >> 20} MiB"
    if use.files > bounds.files:
        return f"it has more than {bounds.files} files on the node's disk"
    return ""


def unlinked(processes: Iterable[int], devices: Collection[int]) -> tuple[int, int]:
    """Returns bytes and number of the files on some file systems that have no name and that
    processes have open or mapped. Blocks.

    Files under way between sockets are not seen.
    """
    sizes: dict[tuple[int, int], int] = {}
    left = MAX_LINKS
    for pid in processes:
        for kind in ("fd", "map_files"):
            for path in _links(f"{PROC}/{pid}/{kind}"):
                left -= 1
                if left < 0:
                    return sum(sizes.values()), len(sizes)
                try:
                    # The text first: to look at a file itself may wait for a server that is away.
                    if not os.readlink(path).endswith(_DELETED):
                        continue
                    status = os.stat(path)
                except OSError:
                    continue
                if status.st_nlink == 0 and status.st_dev in devices:
                    sizes[status.st_dev, status.st_ino] = status.st_blocks * _SECTOR
    return sum(sizes.values()), len(sizes)


def _links(directory: str) -> Iterator[str]:
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                yield entry.path
    except OSError:
        return


def measure_footprint(footprint: DiskFootprint, bounds: Bounds) -> Use:
    """Adds up what a kernel has on the disk, and stops where that is too much. Blocks."""
    size, files = unlinked(footprint.processes, footprint.devices)
    use = Use(size + footprint.layer + (0 if footprint.bounded is None else taken(footprint.bounded)), files)
    for directory in footprint.directories:
        if exceeded(use, bounds):
            break
        found = measure(directory, bounds)
        use = Use(use.size + found.size, use.files + found.files)
    return use


def taken(home: Path) -> int:
    """Returns the bytes that are taken in a work directory's own file system; 0 once it is gone. Blocks."""
    try:
        descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        # Of one that was unmounted meanwhile, this would be the node's.
        if os.fstat(descriptor).st_dev == home.parent.stat().st_dev:
            return 0
        status = os.fstatvfs(descriptor)
    finally:
        os.close(descriptor)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def measure(home: Path, bounds: Bounds) -> Use:
    """Adds up what lies in a directory, and stops where that is too much. Blocks.

    What changes meanwhile may count or not; links are not followed, and a file with several names counts once.
    """
    size = files = 0
    seen: set[int] = set()
    try:
        for status in _walk(os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)):
            files += 1
            if status.st_nlink > 1 and status.st_ino in seen:
                continue
            seen.add(status.st_ino)
            size += status.st_blocks * _SECTOR
            if size > bounds.size or files > bounds.files:
                break
    except FileNotFoundError:
        return Use()
    except _TooDeepError:
        return _measured_apart(home)
    return Use(size, files)


class _TooDeepError(Exception):
    pass


def _walk(top: int) -> Iterator[os.stat_result]:
    """Yields all there is beneath a directory, whose descriptor is taken over."""
    waiting = [(top, os.scandir(top))]
    try:
        while waiting:
            descriptor, entries = waiting[-1]
            try:
                entry = next(entries, None)
            except OSError:
                # The file system of a container that is removed is taken away meanwhile.
                entry = None
            if entry is None:
                waiting.pop()
                entries.close()
                os.close(descriptor)
                continue
            try:
                status = entry.stat(follow_symlinks=False)
                below = None
                if entry.is_dir(follow_symlinks=False):
                    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                    below = os.open(entry.name, flags, dir_fd=descriptor)
            except OSError:
                continue
            if below is not None:
                waiting.append((below, os.scandir(below)))
                if len(waiting) > _DEEPEST:
                    raise _TooDeepError
            yield status
    finally:
        for descriptor, entries in waiting:
            entries.close()
            os.close(descriptor)


def _measured_apart(home: Path) -> Use:
    """Returns the same by a program that goes as deep as it must."""
    found = []
    for option in ("--block-size=1", "--inodes"):
        command = ["du", "--summarize", "--one-file-system", option, str(home)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        found.append(int(done.stdout.split()[0]) if done.stdout else 0)
    return Use(*found)


class DiskWatch:
    """Looks at all kernels of one runtime, whose work directories lie in one directory."""

    def __init__(self, watched: Watched, scratch_dir: Path, bounds: Bounds, conditions: Conditions) -> None:
        """Measures nothing before `run`. The node has a condition while nothing can be measured."""
        self._watched = watched
        self._directory = scratch_dir
        self._bounds = bounds
        self._conditions = conditions

    async def run(self) -> None:
        """Looks again and again; does not return."""

        def show(text: str) -> None:
            self._conditions.update(AgentConditionType.OTHER, text, AgentConditionReason.DISK_NOT_MEASURED)

        looking = Retrying(
            "kernels may fill the disk: how much they have on it cannot be measured",
            _log,
            changed=show,
            part="disk use",
        )
        while True:
            begin = time.monotonic()
            try:
                await self._look()
                looking.succeed()
            except Exception as error:  # noqa: BLE001  # whatever it was, the disk is looked at again
                foreseen = isinstance(error, KernelRuntimeError | OSError)
                looking.fail(error, unforeseen=None if foreseen else error)
            await self._pause(max(INTERVAL, SHARE * (time.monotonic() - begin)))

    async def _look(self) -> None:
        footprints = {
            attempt_id: footprint
            for attempt_id, footprint in (await self._watched.footprints()).items()
            if footprint.is_measured
        }
        for attempt_id, footprint in footprints.items():
            bounds = footprint.bounds or self._bounds
            if footprint.bounded is not None:
                bounds = tolerated(bounds)
            use = await in_thread(measure_footprint, footprint, bounds)
            if message := exceeded(use, bounds):
                _log.warning("attempt %s is ended: %s", attempt_id, message)
                with contextlib.suppress(KernelRuntimeError, OSError):
                    await self._watched.end(attempt_id, DISK_EXCEEDED, message)

    async def _pause(self, seconds: float) -> None:
        """Waits; not for long while space or inodes that are free fall by half of what one without a slot may have."""
        begin, free = time.monotonic(), self._free()
        while time.monotonic() - begin < seconds:
            await asyncio.sleep(STEP)
            now = self._free()
            if free.size - now.size > self._bounds.size // 2 or free.files - now.files > self._bounds.files // 2:
                return

    def _free(self) -> Use:
        status = os.statvfs(self._directory)
        return Use(status.f_bavail * status.f_frsize, status.f_favail)
