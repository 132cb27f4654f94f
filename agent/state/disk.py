"""The disk of the agent's state: a reserve that is given up first when it is full, and the condition that it is.

A full disk stops what is new. Stops, ends and leaders' terms need little,
and are written into the space of the reserve.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import threading
from typing import TYPE_CHECKING, TypeVar

from retinue.rpc.core.reasons import AgentConditionReason, AgentConditionType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from retinue.agent.conditions import Conditions

_log = logging.getLogger(__name__)
Result = TypeVar("Result")

RESERVE = "reserve"
"""Name of the directory beneath that of the agent's state."""
FILES, FILE_SIZE = 16, 64 << 10
"""Files of the reserve, and bytes of each: a full disk may lack inodes rather than bytes."""
MIN_FREE = 64 << 20
"""Bytes below which a disk counts as full; a small one below a fiftieth of its size."""
MIN_INODES = 1000
FRACTION = 50
INTERVAL = 5.0
"""Seconds between two looks."""
HUNG_AFTER = 10.0
"""Seconds that a look may take."""
HUNG = AgentConditionReason.UNRESPONSIVE
UNWRITABLE = AgentConditionReason.UNWRITABLE
_FULL = {errno.ENOSPC, errno.EDQUOT}
_UNWRITABLE = _FULL | {errno.EROFS, errno.EIO}
_OBSTRUCTED = {errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENOENT, errno.ENOTDIR}


class Disk:
    """The disk under one directory, and those under others that kernels or their engine write to. Methods block;
    any thread may call them.
    """

    def __init__(self, directory: Path, conditions: Conditions, others: tuple[Path, ...] = ()) -> None:
        """Touches nothing before the first check."""
        self._directory = directory
        self._reserve = directory / RESERVE
        self._others = dict(zip(map(str, others), others, strict=True))
        self._followed: dict[str, Path] = {}
        self._conditions = conditions
        self._lock = threading.Lock()
        self._noexec = False

    def follow(self, directories: Mapping[str, Path]) -> None:
        """Looks at these as well from now on, in place of those followed before: paths to look at,
        by what the node calls them.
        """
        self._followed = dict(directories)

    def essential(self, action: Callable[[], Result]) -> Result:
        """Does what writes to the directory and must not fail for want of space:
        on a full disk once more without the reserve.
        """
        try:
            return action()
        except OSError as error:
            self.note(error)
            if error.errno not in _FULL or not self._give_up():
                raise
        return action()

    def note(self, error: OSError) -> None:
        """Sets the condition if that is why something could not be written."""
        if error.errno in _UNWRITABLE:
            self._report(f"cannot be written: {error.strerror}", unwritable=True)

    def look(self) -> None:
        """Makes the reserve whole if there is space, and sets or clears the condition."""
        self._look_for_noexec()
        unwritable = _has_flag(self._directory, os.ST_RDONLY)
        try:
            problem = self._space(self._directory) or self._restore()
            # Again: restoring the reserve may have used up the free space.
            problem = problem or self._space(self._directory) or self._probe()
        except OSError as error:
            problem, unwritable = f"cannot be written: {error.strerror}", True
        if not problem:
            for name, other in (self._others | self._followed).items():
                with contextlib.suppress(OSError):
                    if problem := self._space(other):
                        self._report(problem, name)
                        return
        self._report(problem, unwritable=unwritable)

    async def watch(self) -> None:
        """Looks every now and then until it is cancelled; a disk that does not answer is
        one that nothing can be written to.
        """
        loop = asyncio.get_running_loop()
        while True:
            looking = asyncio.ensure_future(loop.run_in_executor(None, self.look))
            done, _ = await asyncio.wait({looking}, timeout=HUNG_AFTER)
            if not done:
                self._conditions.set(
                    AgentConditionType.DISK_FULL, f"the disk of {self._directory} does not answer", HUNG
                )
                await asyncio.wait({looking})
            looking.result()
            self._conditions.clear(AgentConditionType.DISK_FULL, HUNG)
            await asyncio.sleep(INTERVAL)

    def _look_for_noexec(self) -> None:
        found = ", ".join(name for name, other in self._others.items() if _has_flag(other, os.ST_NOEXEC))
        message = f"{found} is mounted noexec: programs in work directories do not start" if found else ""
        if message and not self._noexec:
            _log.warning("%s", message)
        self._noexec = bool(message)
        self._conditions.update(AgentConditionType.OTHER, message, AgentConditionReason.NOEXEC)

    def _report(self, problem: str, directory: str = "", *, unwritable: bool = False) -> None:
        """Sets the condition, or clears it without a `problem`. A disk that is `unwritable` takes no output either."""
        message = f"the disk of {directory or self._directory} {problem}" if problem else ""
        lost = f"{message}; what kernels print meanwhile is lost" if message and unwritable else ""
        # The new one first: between the two, nothing is placed here.
        for reason, text in sorted(
            {UNWRITABLE: lost, "": "" if lost else message}.items(), key=lambda item: not item[1]
        ):
            self._conditions.update(AgentConditionType.DISK_FULL, text, reason)

    def _space(self, directory: Path) -> str:
        found = os.statvfs(directory)
        if found.f_flag & os.ST_RDONLY:
            return "is read-only"
        free, total = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
        if free < min(MIN_FREE, total // FRACTION):
            return f"is full: {free >> 10} of {total >> 10} KiB are free"
        # Some file systems do not count them.
        if found.f_files and found.f_favail < min(MIN_INODES, found.f_files // FRACTION):
            return f"is full: {found.f_favail} of {found.f_files} inodes are free"
        return ""

    def _restore(self) -> str:
        with self._lock:
            try:
                self._fill()
            except OSError as error:
                if error.errno not in _OBSTRUCTED:
                    raise
                # There is something else in its place; nothing is kept in it.
                if self._reserve.is_dir() and not self._reserve.is_symlink():
                    shutil.rmtree(self._reserve)
                else:
                    self._reserve.unlink(missing_ok=True)
                self._fill()
        return ""

    def _fill(self) -> None:
        self._reserve.mkdir(mode=0o700, exist_ok=True)
        for number in range(FILES):
            path = self._reserve / str(number)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                if os.fstat(descriptor).st_size < FILE_SIZE:
                    os.posix_fallocate(descriptor, 0, FILE_SIZE)
            except OSError:
                path.unlink(missing_ok=True)
                raise
            finally:
                os.close(descriptor)

    def _probe(self) -> str:
        path = self._directory / ".probe"
        try:
            path.write_bytes(b"x")
        finally:
            path.unlink(missing_ok=True)
        return ""

    def _give_up(self) -> bool:
        """Removes the reserve; whether there was any."""
        given_up = False
        with self._lock:
            for number in range(FILES):
                with contextlib.suppress(OSError):
                    (self._reserve / str(number)).unlink()
                    given_up = True
        if given_up:
            _log.warning("the disk of %s is full: its reserve was given up", self._directory)
        return given_up


def _has_flag(directory: Path, flag: int) -> bool:
    try:
        return bool(os.statvfs(directory).f_flag & flag)
    except OSError:
        return False
