"""A kernel's work directory, reached from outside of the kernel.

Processes in the kernel may change the tree at any moment, and plant links, FIFOs and deep trees in it. So every path is
resolved by the operating system, beneath the directory and through no link (`openat2`, RESOLVE_BENEATH and
RESOLVE_NO_SYMLINKS), whatever is opened is checked before it is read, and no file is ever written in place.
All functions block.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import subprocess
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.agent.host import syscalls
from retinue.agent.inside import work_disk

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

LONGEST_PATH, LONGEST_NAME, DEEPEST = 4096, 255, 100
"""Bytes of a path and of one of its parts; parts."""
PERMISSIONS = 0o777
FILE_MODE, DIRECTORY_MODE, OWNER_OF_DIRECTORY = 0o644, 0o755, 0o700
_ESCAPED = "backslashreplace"


class PathError(ValueError):
    """A path that leads nowhere, whatever the state of the tree; the text says what is wrong with it."""


class RefusedError(Exception):
    """Something in the tree is in the way, or is not what was asked for; the text says what."""


class MissingError(Exception):
    """There is no such file."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file: `kind` is what S_IFMT leaves of its mode, 0 for one whose name is not UTF-8; times in nanoseconds."""

    path: str
    kind: int
    size: int
    mode: int
    modified: int
    version: str
    target: str = ""


def partial_of(home: Path) -> Path:
    """Returns the directory of incomplete uploads to a work directory: on the same file system,
    visible to no kernel.
    """
    return home.with_name(f"{home.name}.partial")


def former_partial_of(home: Path) -> Path:
    """Returns the directory where agents of former versions left incomplete uploads, which none resumes."""
    return home.with_name(f"{home.name}.arriving")


def remove_work(home: Path) -> None:
    """Removes a work directory and all that was to arrive there. Raises OSError."""
    work_disk.remove(home)
    # In this order: who begins an upload looks for the work directory after it made the other one.
    for directory in (home, partial_of(home), former_partial_of(home)):
        _remove(directory)


def empty_work(home: Path) -> None:
    """Removes all that is in a work directory, as far as that can be done."""
    with contextlib.suppress(OSError):
        work_disk.remove(home)
    with contextlib.suppress(OSError, subprocess.SubprocessError), os.scandir(home) as entries:
        for entry in entries:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                if entry.is_dir(follow_symlinks=False):
                    _remove(home / entry.name)
                else:
                    os.unlink(entry.path)


def _remove(directory: Path) -> None:
    try:
        shutil.rmtree(directory)
    except FileNotFoundError:
        return
    except RecursionError:
        # A tree deeper than Python's stack: a program in the kernel may have made one.
        subprocess.run(["rm", "-rf", "--", str(directory)], check=True)  # noqa: S603, S607


def parts_of(path: str) -> tuple[str, ...]:
    """Returns the parts of a relative path that leads downwards only; none for an empty one. Raises PathError."""
    if not path:
        return ()
    parts = tuple(path.rstrip("/").split("/"))
    if path.startswith("/"):
        raise PathError("must be relative to the work directory")
    if "\0" in path:
        raise PathError("must not hold NUL")
    if any(part in {"", ".", ".."} for part in parts):
        raise PathError("must not hold `.`, `..` or empty parts")
    if len(path.encode(errors="replace")) > LONGEST_PATH or len(parts) > DEEPEST:
        raise PathError(f"must be at most {LONGEST_PATH} bytes and {DEEPEST} parts")
    if any(len(part.encode(errors="replace")) > LONGEST_NAME for part in parts):
        raise PathError(f"must have at most {LONGEST_NAME} bytes in a part")
    return parts


@contextlib.contextmanager
def opened(home: Path) -> Iterator[int]:
    """Yields a descriptor of the work directory itself."""
    descriptor = os.open(home, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def look_up(home: int, path: str) -> int:
    """Returns a descriptor that says where a file is; nothing of it is opened.
    Raises MissingError, RefusedError, PathError.
    """
    relative = "/".join(parts_of(path)) or "."
    try:
        return syscalls.open_strictly(home, relative, os.O_PATH | os.O_NOFOLLOW)
    except OSError as error:
        raise file_error(error, path) from error


def open_regular(home: int, path: str) -> int:
    """Returns a descriptor to read a regular file by. Raises MissingError, RefusedError, PathError."""
    descriptor = look_up(home, path)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise RefusedError(f"{path} is no regular file")
        # By the descriptor, so that it is the file that was checked.
        return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise file_error(error, path) from error
    finally:
        os.close(descriptor)


def open_directory(home: int, parts: tuple[str, ...], *, create: bool = False) -> int:
    """Returns a descriptor of a directory, which is made with those above it if need be.
    Raises MissingError, RefusedError.
    """
    path = "/".join(parts) or "."
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    try:
        return syscalls.open_strictly(home, path, flags)
    except OSError as error:
        if not create or not parts or error.errno != errno.ENOENT:
            raise file_error(error, path) from error
    above = open_directory(home, parts[:-1], create=True)
    try:
        owner = os.fstat(home)
        with contextlib.suppress(FileExistsError):
            os.mkdir(parts[-1], DIRECTORY_MODE, dir_fd=above)
        made = syscalls.open_strictly(above, parts[-1], flags)
        # Whatever has the name by now is the user's, or was made here.
        os.fchown(made, owner.st_uid, owner.st_gid)
        os.fsync(above)
    except OSError as error:
        raise file_error(error, path) from error
    finally:
        os.close(above)
    return made


def make_directory(home: int, path: str, mode: int) -> None:
    """Makes a directory; one that is there gets the permissions. Raises MissingError, RefusedError, PathError,
    OSError.
    """
    descriptor = open_directory(home, parts_of(path), create=True)
    try:
        os.fchmod(descriptor, (mode or DIRECTORY_MODE) & PERMISSIONS | OWNER_OF_DIRECTORY)
    finally:
        os.close(descriptor)


def make_link(home: int, path: str, target: str) -> None:
    """Makes a symbolic link, in place of a file or link that is there. Raises MissingError, RefusedError, PathError,
    OSError.
    """
    parts = parts_of(path)
    if not parts:
        raise PathError("is required")
    if not target or "\0" in target or len(target.encode(errors="replace")) > LONGEST_PATH:
        raise PathError(f"must point to a path of 1 to {LONGEST_PATH} bytes")
    directory = open_directory(home, parts[:-1], create=True)
    made = f".{uuid.uuid4().hex}"
    try:
        owner = os.fstat(home)
        os.symlink(target, made, dir_fd=directory)
        try:
            os.chown(made, owner.st_uid, owner.st_gid, dir_fd=directory, follow_symlinks=False)
            os.rename(made, parts[-1], src_dir_fd=directory, dst_dir_fd=directory)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(made, dir_fd=directory)
            raise
    except OSError as error:
        raise file_error(error, path) from error
    finally:
        os.close(directory)


def describe(path: str, descriptor: int) -> Entry:
    """Returns the entry of a file that was looked up."""
    status = os.fstat(descriptor)
    target = os.readlink("", dir_fd=descriptor) if stat.S_ISLNK(status.st_mode) else ""
    return _entry(path, status, target)


def walk(home: int, path: str, *, recursive: bool) -> Generator[Entry, None, None]:
    """Yields the entries of a directory, and with `recursive` of those beneath it, in no order;
    of anything else its own.

    Raises MissingError, RefusedError, PathError. Files removed meanwhile are left out,
    and so are those too deep to be named.
    """
    descriptor = look_up(home, path)
    try:
        own = describe(path, descriptor)
    finally:
        os.close(descriptor)
    if own.kind != stat.S_IFDIR:
        yield own
        return
    waiting = ["/".join(parts_of(path))]
    while waiting:
        directory = waiting.pop()
        try:
            parts = parts_of(directory)
            descriptor = open_directory(home, parts)
        except (MissingError, RefusedError, PathError):
            continue
        try:
            for name, status, target in _scan(descriptor):
                below = f"{directory}/{name}" if directory else name
                entry = _entry(below, status, target)
                if recursive and entry.kind == stat.S_IFDIR:
                    waiting.append(below)
                yield entry
        finally:
            os.close(descriptor)


def _scan(descriptor: int) -> Iterator[tuple[str, os.stat_result, str]]:
    with os.scandir(descriptor) as entries:
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
                target = os.readlink(entry.name, dir_fd=descriptor) if entry.is_symlink() else ""
            except OSError:
                continue
            yield entry.name, status, target


def _entry(path: str, status: os.stat_result, target: str) -> Entry:
    kind = stat.S_IFMT(status.st_mode)
    try:
        path.encode()
    except UnicodeEncodeError:
        path, kind = _readable(path), 0
    regular = kind == stat.S_IFREG
    return Entry(
        path,
        kind,
        status.st_size if regular else 0,
        status.st_mode & PERMISSIONS,
        status.st_mtime_ns,
        f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}" if regular else "",
        _readable(target),
    )


def _readable(name: str) -> str:
    return os.fsencode(name).decode(errors=_ESCAPED)


def file_error(error: OSError, path: str) -> Exception:
    """Translates an error of the operating system for the caller that named the path;
    returns it unchanged if it is internal.
    """
    match error.errno:
        case errno.ENOENT:
            return MissingError(f"there is no file {path}")
        case errno.ENOTDIR:
            return RefusedError(f"a part of {path} is no directory")
        case errno.ELOOP | errno.EXDEV:
            return RefusedError(f"a part of {path} is a symbolic link")
        case errno.EISDIR | errno.ENOTEMPTY | errno.EEXIST:
            return RefusedError(f"{path} is a directory")
        case _:
            return error
