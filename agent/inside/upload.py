"""A file on its way into a kernel's work directory.

Its content gathers in a directory beside the work directory that no kernel sees, and is put in its place in one step
once all of it is there, on the disk, and what its digest says. So the kernel sees all of a file or nothing, and cannot
touch what arrives. All methods block.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.agent.inside import work_disk, workdir

if TYPE_CHECKING:
    from pathlib import Path

KEPT = 3600.0
"""Seconds that a partial file is kept for an upload that resumes."""
RESERVE, RESERVE_PART = 1 << 30, 20
"""Bytes of the node's disk that uploads leave free, or this part of it where that is less."""
RESERVED_FILES = 1000
PIECE = 1 << 20


class NoSpaceError(Exception):
    """The node has no space for it."""


class BusyError(Exception):
    """Another stream is at the same file."""


class DigestError(Exception):
    """The received bytes do not match the announcement; nothing of them is kept."""


@dataclass(frozen=True, slots=True)
class UploadHeader:
    """A file that is to come; without `digest` (SHA-256) or an `upload_id` it cannot be resumed. Without `digest`, its
    content is not checked: it came by what proves that it is what was sent.
    """

    path: str
    size: int
    mode: int
    digest: bytes
    upload_id: bytes = b""


def sweep(home: Path, now: float, kept: float = KEPT) -> None:
    """Removes partial uploads of a work directory that were not resumed for so long;
    `now` is in seconds since the epoch.
    """
    for directory in (workdir.partial_of(work_disk.reached(home)), workdir.former_partial_of(home)):
        with contextlib.suppress(FileNotFoundError):
            for path in directory.iterdir():
                with contextlib.suppress(OSError):
                    if now - path.stat().st_mtime > kept and _is_free(path):
                        path.unlink()
        _remove_empty(directory)


def _is_free(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


class IncomingUpload:
    """One file on its way. Close it in any case."""

    def __init__(self, home: Path, announced: UploadHeader, *, resume: bool) -> None:
        """Begins or, with `resume`, continues after the bytes there.
        Raises PathError, RefusedError, NoSpaceError, BusyError, OSError.
        """
        self._home = reached = work_disk.reached(home)
        self._announced = announced
        self._parts = workdir.parts_of(announced.path)
        if not self._parts:
            raise workdir.PathError("is required")
        partial = workdir.partial_of(reached)
        partial.mkdir(mode=0o700, exist_ok=True)
        self._kept = bool(announced.digest or announced.upload_id)
        self._place = partial / (_name(announced) if self._kept else uuid.uuid4().hex)
        # Its lock lasts to the end; who writes is done before the file is in its place:
        # Linux runs no program that is open for writing.
        self._held = os.open(self._place, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._descriptor = -1
        try:
            self._lock()
            self._descriptor = os.open(self._place, os.O_RDWR | os.O_CLOEXEC)
            self.offset, self._digest = self._resumed() if resume else (0, hashlib.sha256())
            os.ftruncate(self._descriptor, self.offset)
            os.lseek(self._descriptor, self.offset, os.SEEK_SET)
            _check_space(home, announced.size - self.offset)
        except BusyError:
            # The existing bytes belong to the other upload.
            os.close(self._held)
            raise
        except BaseException:
            self._kept = False
            self.close()
            raise

    def _lock(self) -> None:
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BusyError(f"{self._announced.path} is being uploaded by another call") from error
        if not (self._place.exists() and os.path.samestat(self._place.stat(), os.fstat(self._held))):
            # It was put in its place, or swept, in this moment.
            raise BusyError(f"{self._announced.path} was just uploaded by another call")

    def _resumed(self) -> tuple[int, hashlib._Hash]:
        digest = hashlib.sha256()
        size = min(os.fstat(self._descriptor).st_size, self._announced.size)
        offset = 0
        while piece := os.pread(self._descriptor, min(PIECE, size - offset), offset):
            digest.update(piece)
            offset += len(piece)
        return offset, digest

    @property
    def resumed(self) -> bytes:
        """Returns the SHA-256 of the bytes that were there at the beginning; good before more is written."""
        return self._digest.digest()

    @property
    def complete(self) -> bool:
        """Returns whether all of it is there."""
        return self.offset == self._announced.size

    def write(self, data: bytes | memoryview) -> None:
        """Takes in more. Raises DigestError on more than was announced, NoSpaceError, OSError."""
        if self.offset + len(data) > self._announced.size:
            self._kept = False
            raise DigestError(f"more than {self._announced.size} bytes came")
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError as error:
            raise _file_error(error) from error
        if self._announced.digest:
            self._digest.update(data)
        self.offset += len(data)

    def store(self) -> None:
        """Puts it in its place, lastingly. Raises DigestError, RefusedError, NoSpaceError, OSError."""
        announced = self._announced
        self._kept = False
        if announced.digest and self._digest.digest() != announced.digest:
            raise DigestError("the content is not what the digest says")
        try:
            with workdir.opened(self._home) as home:
                owner = os.fstat(home)
                os.fchown(self._descriptor, owner.st_uid, owner.st_gid)
                os.fchmod(self._descriptor, (announced.mode or workdir.FILE_MODE) & workdir.PERMISSIONS)
                os.fsync(self._descriptor)
                self._end_writing()
                directory = workdir.open_directory(home, self._parts[:-1], create=True)
                try:
                    # Replaces a link, too, and not what it points to.
                    os.rename(self._place, self._parts[-1], dst_dir_fd=directory)
                    os.fsync(directory)
                finally:
                    os.close(directory)
        except OSError as error:
            raise _file_error(error, announced.path) from error

    def close(self) -> None:
        """Releases the file; a resumable one is kept for a while, any other is removed."""
        if not self._kept or self.offset == 0:
            with contextlib.suppress(OSError):
                self._place.unlink()
        elif self._place.exists():
            os.utime(self._held, (time.time(), time.time()))
        self._end_writing()
        os.close(self._held)
        _remove_empty(self._place.parent)

    def _end_writing(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


def _remove_empty(directory: Path) -> None:
    with contextlib.suppress(OSError):
        directory.rmdir()


def _name(announced: UploadHeader) -> str:
    text = f"{announced.path}\0{announced.size}\0{announced.digest.hex()}"
    if announced.upload_id:
        text += f"\0{announced.upload_id.hex()}"
    return hashlib.sha256(text.encode()).hexdigest()


def _check_space(home: Path, needed: int) -> None:
    """Raises NoSpaceError when so many bytes more would not leave enough for others, or do not fit."""
    system = os.statvfs(home)
    if work_disk.is_bounded(home):
        if system.f_bavail * system.f_frsize < needed:
            raise NoSpaceError(f"the kernel's work directory has no space for {needed} bytes")
        # The file of its file system takes space there as it fills.
        system = os.statvfs(home.parent)
    reserve = min(RESERVE, system.f_blocks * system.f_frsize // RESERVE_PART)
    if system.f_bavail * system.f_frsize - needed < reserve:
        raise NoSpaceError(f"the node has no space for {needed} bytes")
    if system.f_files and system.f_favail < RESERVED_FILES:
        raise NoSpaceError("the node has no space for more files")


def _file_error(error: OSError, path: str = "") -> Exception:
    if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
        return NoSpaceError(f"the node has no space left: {error.strerror}")
    return workdir.file_error(error, path)
