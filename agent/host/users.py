"""Gives each live kernel a user id of its own, so that what Linux counts or keeps per user is
not shared between kernels.

The owner of a kernel's work directory is the record of it: it outlives the agent and cannot be changed by the kernel,
and both kinds of kernels, whose work directories lie side by side, see each other's.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.agent.attempts import Owner
from retinue.agent.host.id_mapped import required_owner

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from retinue.agent.attempts import Mount

FIRST, LAST = 70_000, 79_999
"""A range that neither distributions, systemd nor `useradd` (subordinate ids from 100000 on) give out."""


LARGEST = (1 << 32) - 2
"""The last user id of Linux; the one after it means none."""


class UsersError(Exception):
    """There is no user for another kernel; the text says why."""


@dataclass(frozen=True, slots=True)
class UserRange:
    """Ids of users, from `first` to `last`."""

    first: int = FIRST
    last: int = LAST

    def __contains__(self, uid: int) -> bool:
        """Returns whether the id is in the range."""
        return self.first <= uid <= self.last

    def __str__(self) -> str:
        """Returns the range as in the option."""
        return f"{self.first}-{self.last}"


def parse_range(text: str) -> UserRange:
    """Reads `FIRST-LAST`. Raises ValueError."""
    first, dash, last = text.partition("-")
    if not (dash and first.isascii() and last.isascii() and first.isdigit() and last.isdigit()):
        raise ValueError("must be FIRST-LAST, as 70000-79999")
    found = UserRange(int(first), int(last))
    if not 0 < found.first <= found.last <= LARGEST:
        raise ValueError(f"must go upwards, from 1 at the least to {LARGEST} at the most")
    return found


def next_uid(users: UserRange, used: Collection[int], newest: int) -> int:
    """Returns the first free id after the newest, so that an id rests before it is given out again.
    Raises UsersError. Pure.
    """
    size = users.last - users.first + 1
    begin = newest + 1 - users.first if newest in users else 0
    for step in range(size):
        uid = users.first + (begin + step) % size
        if uid not in used:
            return uid
    raise UsersError(f"all users of the range {users} are in use: give the agent a larger one (--uid-range)")


class Users:
    """Users of the kernels whose work directories lie in one directory. Methods block."""

    def __init__(self, scratch_dir: Path, users: UserRange, default: Owner) -> None:
        """Reads nothing before it is needed. `default` owns the files of mounts that name no other owner; its group
        is that of kernels.
        """
        self._directory = scratch_dir
        self._range = users
        self._default = default
        self._newest = 0

    def required(self, mounts: Sequence[Mount]) -> Owner | None:
        """Returns whom a kernel has to run as because of its mounts; None where any user will do."""
        return required_owner(mounts, self._default)

    def assign(self, home: Path, mounts: Sequence[Mount]) -> Owner:
        """Makes a work directory its user's: a free one, or the one it has. Raises UsersError, OSError.

        It is the owner of a mount that cannot show files of one user as those of another.
        """
        if (required := self.required(mounts)) is not None:
            os.chown(home, required.uid, required.gid)
            return required
        with self._locked():
            uid = home.stat().st_uid
            if uid not in self._range:
                uid = next_uid(self._range, self._used(), self._newest)
                os.chown(home, uid, self._default.gid)
                self._newest = uid
        return Owner(uid, self._default.gid)

    def _used(self) -> set[int]:
        used = set()
        with os.scandir(self._directory) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    used.add(entry.stat(follow_symlinks=False).st_uid)
        return used

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
