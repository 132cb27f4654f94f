"""Makes the root of process kernels: a layer over the node's own root, through which they see some of its paths.

Its top directory is opaque, so that nothing of the node shows through, and holds a directory for each visible one, with
the attribute by which Linux's overlay finds it in the node's root, however it is called there. Files are copies.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from retinue.agent.host import syscalls
from retinue.agent.process.core.visible_paths import is_beneath

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Set

    from retinue.agent.process.core.visible_paths import VisiblePaths

TOP = "kernel"
"""Name of the directory, at the top of the layer, that is a kernel's root."""
EMPTY = ("dev", "home", "media", "mnt", "proc", "root", "run", "sys", "var")
"""Directories at the root that are there in any case, and hold nothing of the node's but what is shown of them."""
FOR_ALL = ("tmp", "var/tmp")
"""Directories that all may write to."""
OVERLAY_OPTIONS = "redirect_dir=on"
LARGEST_COPY = 1 << 20
"""Bytes of a file that is copied; a larger one is mounted."""
_OCTAL = re.compile(rb"\\([0-7]{3})")
_OPAQUE, _REDIRECT = "trusted.overlay.opaque", "trusted.overlay.redirect"


@dataclass(frozen=True, slots=True)
class Shown:
    """A path inside, relative to the root, and the path of the node without links that it shows, with that of every
    directory `above` it and its own. With a `link`, it is a link with that content instead; `large` is a file that is
    not copied.
    """

    inside: str
    real: str
    directory: bool
    link: str = ""
    large: bool = False
    above: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Plan:
    """What there is to be shown: paths, with directories to be made for them first, what is hidden of it, relative to
    the root, what may be mounted apart, and when the directories it is in were changed last.
    """

    parents: tuple[str, ...]
    shown: tuple[Shown, ...]
    hidden: tuple[str, ...]
    apart: tuple[Shown, ...]
    changed: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Copy:
    """A file of the node as it was at a moment, and what tells that it is still the same."""

    status: tuple[int, ...]
    content: bytes


class RootLayer:
    """Knows the visible paths of the node, and writes a layer for each kernel. Its methods block; those that write do
    so in a thread whose working directory is its own.
    """

    def __init__(self, visible: VisiblePaths) -> None:
        """Touches nothing yet."""
        self.visible = visible
        self._parents = {os.path.dirname(path) for path in visible.shown}
        self._plan: Plan | None = None
        self._copies: dict[str, _Copy] = {}

    def plan(self) -> Plan:
        """Returns what there is to be shown now."""
        changed = {path: _changed(path) for path in self._parents}
        plan = self._plan
        if plan is None or plan.changed != changed:
            plan = self._plan = self._look(changed)
        return plan

    def _look(self, changed: Mapping[str, int]) -> Plan:
        hidden = {os.path.realpath(path) for path in self.visible.hidden}
        shown = _existing(self.visible.shown, hidden)
        apart = _existing(self.visible.apart, hidden)
        masked = {
            one.inside + path.removeprefix(one.real)
            for one in shown
            for path in hidden
            if not one.link and path != one.real and is_beneath(path, (one.real,))
        }
        outermost = (path for path in sorted(masked) if not is_beneath(path, masked - {path}))
        parents = {str(parent) for one in shown for parent in PurePosixPath(one.inside).parents} - {".", *EMPTY}
        directories = (one for one in apart if one.directory)
        return Plan(tuple(sorted(parents)), tuple(shown), tuple(outermost), tuple(directories), changed)

    def write(self, files: Mapping[str, str]) -> None:
        """Writes the layer into the working directory, which is empty and in memory; `files` are texts of the kernel's
        own by path inside, relative to the root. Raises OSError.
        """
        plan = self.plan()
        os.umask(0)
        os.mkdir(TOP, 0o755)
        os.setxattr(TOP, _OPAQUE, b"y")
        for name in (*EMPTY, *plan.parents):
            os.mkdir(f"{TOP}/{name}", 0o755)
        for name in FOR_ALL:
            os.mkdir(f"{TOP}/{name}", 0o1777)
            os.setxattr(f"{TOP}/{name}", _OPAQUE, b"y")
        for one in plan.shown:
            if one.inside not in files:
                self._write(f"{TOP}/{one.inside}", one)
        os.umask(0o022)
        for name, text in files.items():
            make_parents(TOP, os.path.dirname(name))
            _write_new(f"{TOP}/{name}", text.encode(), 0o644)

    def _write(self, inside: str, one: Shown) -> None:
        if one.link:
            os.symlink(one.link, inside)
            return
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(one.real)
            if one.directory:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(inside)
                os.chmod(inside, stat.S_IMODE(status.st_mode))
                os.setxattr(inside, _REDIRECT, os.fsencode(one.real))
            elif stat.S_ISREG(status.st_mode):
                content = b"" if one.large else self._content(one.real, status)
                _write_new(inside, content, stat.S_IMODE(status.st_mode) & 0o777)
            else:
                return
            if status.st_uid or status.st_gid:
                os.chown(inside, status.st_uid, status.st_gid)

    def _content(self, path: str, status: os.stat_result) -> bytes:
        identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        copy = self._copies.get(path)
        if copy is None or copy.status != identity:
            copy = self._copies[path] = _Copy(identity, _read(path))
        return copy.content

    def mount_apart(self, root: str, points: Set[str]) -> None:
        """Mounts over a root what of it is not on the node's root file system, whose mounts are at `points`.
        It is read-only, and sockets of daemons in it lead nowhere. In the working directory there has to be an empty
        one, `nothing`. Raises OSError.
        """
        plan, mounted = self.plan(), points - {"/"}
        for one in plan.shown:
            target = f"{root}/{one.inside}"
            if one.large:
                syscalls.mount(one.real, target, None, syscalls.MS_BIND)
                syscalls.mount(None, target, None, syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY)
            elif one.directory and not one.link and not mounted.isdisjoint(one.above):
                _overlay(one.real, target)
        for one in plan.apart:
            if one.real in mounted:
                _overlay(one.real, f"{root}/{one.inside}")


def make_parents(base: str, directory: str) -> None:
    """Makes a directory below another with those above it, for all to read whatever the process' mask is."""
    made = base
    for part in filter(None, directory.split("/")):
        made = f"{made}/{part}"
        if not os.path.lexists(made):
            os.mkdir(made)
            os.chmod(made, 0o755)  # noqa: S103  # an ordinary directory


def _existing(paths: Iterable[str], hidden: Iterable[str]) -> list[Shown]:
    found: list[Shown] = []
    given = tuple(paths)
    for path in given:
        real = os.path.realpath(path)
        try:
            status = os.stat(real)
        except OSError:
            continue
        if real == "/" or is_beneath(real, hidden):
            continue
        link, directory = "", stat.S_ISDIR(status.st_mode)
        if os.path.islink(path):
            target = os.readlink(path)
            direct = os.path.normpath(os.path.join(os.path.dirname(path), target))
            # A link to what is not there inside would lead nowhere: what it leads to takes its place.
            link = target if direct == real and is_beneath(real, given) else ""
        large = not directory and not link and status.st_size > LARGEST_COPY
        above = frozenset({real, *map(str, PurePosixPath(real).parents)})
        found.append(Shown(path.lstrip("/"), real, directory, link, large, above))
    return found


def _read(path: str) -> bytes:
    # Replaced meanwhile, it may be anything: what blocks, and what never ends.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, LARGEST_COPY) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    finally:
        os.close(descriptor)


def _write_new(path: str, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        os.write(descriptor, content)
    finally:
        os.close(descriptor)


def _overlay(path: str, target: str) -> None:
    # Without an upper layer it takes two lower ones, and is read-only.
    lower = "".join(f"\\{letter}" if letter in "\\:," else letter for letter in path)
    syscalls.mount("overlay", target, "overlay", 0, f"lowerdir={lower}:nothing")


def _changed(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def mount_points(mountinfo: bytes) -> dict[str, str]:
    """Returns the paths that something is mounted at, each with the type of the topmost file system there, from the
    content of /proc/PID/mountinfo. Pure.
    """
    points: dict[str, str] = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(b" - ")
        path = before.split(b" ", 5)[4]
        if b"\\" in path:
            path = _OCTAL.sub(lambda found: bytes([int(found[1], 8)]), path)
        points[os.fsdecode(path)] = os.fsdecode(after.partition(b" ")[0])
    return points
