"""The local half of copying files from and to kernels. All blocks.

What a kernel says of its files is not believed: a name that would lead out of the target ends the copy before anything
is written, no link is made that leads out of it, and a file gets its name only when it is whole and has the digest that
was announced.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import uuid
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeAlias

from retinue.client.errors import TransferError
from retinue.types.v1 import file_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

CHUNK = 1 << 20
_PERMISSIONS = 0o777
NO_FILE = "is no regular file"
LEADS_OUT = "is a link that leads out of what is copied"

Progress: TypeAlias = "Callable[[str, int, int], None]"
"""Called with the path of a file in the kernel, how many of its bytes are there, and how many it has."""


@dataclass(frozen=True, slots=True)
class Copied:
    """The result of a copy, and (path, why) of what was not copied: `skipped` is no regular file or a link that leads
    elsewhere, `missing` could not be copied.
    """

    files: int
    bytes: int
    skipped: tuple[tuple[str, str], ...] = ()
    missing: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Upload:
    """A file, directory or link to send, with its size when it was listed; `link` is where a link points."""

    source: Path
    path: str
    mode: int
    size: int = 0
    directory: bool = False
    link: str = ""

    def digest(self) -> bytes:
        """Returns the SHA-256 of its content. Raises OSError."""
        with self.source.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()


def found(
    source: Path, path: str, *, recursive: bool
) -> tuple[list[Upload], list[tuple[str, str]], list[tuple[str, str]]]:
    """Returns the files to send, directories before their contents, and (path, why) of those left out: what is no
    regular file or leads elsewhere, and what cannot be sent. Raises TransferError, OSError.
    """
    status = source.stat()
    if not stat.S_ISDIR(status.st_mode):
        if not stat.S_ISREG(status.st_mode):
            raise TransferError(f"{source} is no regular file")
        return [Upload(source, path, status.st_mode & _PERMISSIONS, status.st_size)], [], []
    if not recursive:
        raise TransferError(f"{source} is a directory, and the copy is not recursive (-r)")
    uploads = [Upload(source, path, status.st_mode & _PERMISSIONS, directory=True)] if path else []
    skipped: list[tuple[str, str]] = []
    missing: list[tuple[str, str]] = []
    for directory, names, files in os.walk(source, onerror=_raise):
        for name in sorted((*names, *files)):
            local = Path(directory, name)
            destination = "/".join(part for part in (path, local.relative_to(source).as_posix()) if part)
            status = local.lstat()
            mode = status.st_mode & _PERMISSIONS
            if not _is_text(destination):
                missing.append(
                    (os.fsencode(destination).decode(errors="backslashreplace"), "has a name that is not UTF-8")
                )
            elif stat.S_ISDIR(status.st_mode):
                uploads.append(Upload(local, destination, mode, directory=True))
            elif stat.S_ISREG(status.st_mode):
                uploads.append(Upload(local, destination, mode, status.st_size))
            elif not stat.S_ISLNK(status.st_mode):
                skipped.append((destination, NO_FILE))
            elif stays_within(link := str(local.readlink()), len(local.relative_to(source).parts) - 1):
                uploads.append(Upload(local, destination, mode, link=link))
            else:
                skipped.append((destination, LEADS_OUT))
    return uploads, skipped, missing


def stays_within(target: str, depth: int) -> bool:
    """Returns whether a link leads to something within a tree, by its target and how many directories of the tree are
    above it, whatever other links of the same kind are in the tree.

    Where each goes up first, and then only down, none leads out through another.
    """
    parts = [part for part in target.split("/") if part not in ("", ".")]
    up = next((number for number, part in enumerate(parts) if part != ".."), len(parts))
    return not target.startswith("/") and up <= depth and ".." not in parts[up:] and _is_text(target) and bool(target)


def _raise(error: OSError) -> None:
    raise error


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def pieces(upload: Upload, offset: int) -> Generator[bytes, None, None]:
    """Yields the content of a file from an offset. Raises TransferError when it is not as long as it was."""
    with upload.source.open("rb") as file:
        file.seek(offset)
        left = upload.size - offset
        while left and (data := file.read(min(CHUNK, left))):
            left -= len(data)
            yield data
        if left:
            raise TransferError(f"{upload.source} became shorter while it was sent")


def local_paths(
    entries: Sequence[file_pb2.FileEntry], path: str, target: Path, *, recursive: bool
) -> Mapping[str, Path]:
    """Returns the local paths of a kernel's files, by their path there.
    Raises TransferError on any that would lead out of the target.
    """
    asked = path.rstrip("/")
    if len(entries) == 1 and entries[0].path == asked and asked:
        if entries[0].type != file_pb2.FILE_TYPE_REGULAR:
            raise TransferError(f"{path} is no regular file")
        return {asked: target}
    if not recursive:
        raise TransferError(f"{path or 'the work directory'} is a directory, and the copy is not recursive (-r)")
    return {
        entry.path: target.joinpath(*_below(asked, entry.path))
        for entry in entries
        if entry.type in {file_pb2.FILE_TYPE_REGULAR, file_pb2.FILE_TYPE_DIRECTORY}
    }


def local_links(
    entries: Sequence[file_pb2.FileEntry], path: str, target: Path
) -> tuple[Mapping[Path, str], list[tuple[str, str]]]:
    """Returns the links to be made, and (path, why) of what is neither link, file nor directory, or leads elsewhere.
    Raises TransferError on a name that would lead out of the target.
    """
    links: dict[Path, str] = {}
    skipped: list[tuple[str, str]] = []
    for entry in entries:
        if entry.type == file_pb2.FILE_TYPE_LINK:
            parts = _below(path.rstrip("/"), entry.path)
            if "\0" not in entry.target and stays_within(entry.target, len(parts) - 1):
                links[target.joinpath(*parts)] = entry.target
            else:
                skipped.append((entry.path, LEADS_OUT))
        elif entry.type > file_pb2.FILE_TYPE_LINK:
            skipped.append((entry.path, NO_FILE))
    return links, skipped


def _below(directory: str, path: str) -> tuple[str, ...]:
    prefix = f"{directory}/" if directory else ""
    parts = path.removeprefix(prefix).split("/")
    if not path.startswith(prefix) or "\0" in path or {"", ".", ".."}.intersection(parts):
        raise TransferError(
            f"the kernel names a file {path!r}, which is not beneath {directory or 'its work directory'}"
        )
    return PurePosixPath(*parts).parts


def check_room(size: int, target: Path) -> None:
    """Raises TransferError when so many bytes do not fit where the target is."""
    destination = target.absolute()
    while not destination.exists():
        destination = destination.parent
    free = shutil.disk_usage(destination).free
    if size > free:
        raise TransferError(f"{size} bytes do not fit: {free} are free at {target}")


class IncomingFiles:
    """Files of a kernel that become local ones. Close it in any case; what is not whole by then is removed."""

    def __init__(self, target: Path, paths: Mapping[str, Path], progress: Progress | None) -> None:
        """Nothing has come yet."""
        self._target = target
        self._left = dict(paths)
        self._progress = progress
        self._entry: file_pb2.FileEntry | None = None
        self._descriptor = -1
        self._partial = Path()
        self._offset = 0
        self._digest = hashlib.sha256()
        # As many bytes of the current file are in the digest.
        self._hashed = 0
        self.files: int = 0
        self.bytes: int = 0
        self.missing: list[tuple[str, str]] = []

    def make_directories(self, entries: Sequence[file_pb2.FileEntry]) -> None:
        """Makes what is a directory there. Raises TransferError, OSError."""
        if len(self._left) != 1 or self._target not in self._left.values():
            self._target.mkdir(parents=True, exist_ok=True)
        for entry in entries:
            if entry.type == file_pb2.FILE_TYPE_DIRECTORY:
                destination = self._left.pop(entry.path)
                self._check(destination)
                destination.mkdir(parents=True, exist_ok=True)

    def make_links(self, links: Mapping[Path, str]) -> None:
        """Makes links, once all files are there: nothing is written through one. Raises TransferError."""
        for destination, link in links.items():
            self._check(destination)
            made = destination.with_name(f".{uuid.uuid4().hex}.partial")
            try:
                destination.parent.mkdir(parents=True, exist_ok=True)
                # By an earlier link its directory may be another one, with fewer above it.
                above = destination.parent.resolve().relative_to(self._target.resolve()).parts
                if not stays_within(link, len(above)):
                    self.missing.append((str(destination), LEADS_OUT))
                    continue
                made.symlink_to(link)
                made.replace(destination)
            except OSError as error:
                with contextlib.suppress(OSError):
                    made.unlink()
                self.missing.append((str(destination), f"cannot be made as a link: {error.strerror}"))

    def wanted(self, paths: Sequence[str]) -> Sequence[file_pb2.FileRange]:
        """Returns the parts of these that are still missing."""
        return [self._range(path) for path in paths if path in self._left]

    def _range(self, path: str) -> file_pb2.FileRange:
        if self._entry is not None and self._entry.path == path:
            return file_pb2.FileRange(path=path, offset=self._offset, version=self._entry.version)
        return file_pb2.FileRange(path=path)

    @property
    def progress(self) -> int:
        """Returns how many bytes have come."""
        return self.bytes + (self._offset if self._entry is not None else 0)

    def take(self, step: file_pb2.DownloadOutput, *, proven: bool = False) -> None:
        """Takes in one step; `proven`: content that needs no digest comes by `add`. Raises TransferError, OSError."""
        match step.WhichOneof("step"):
            case "begin":
                self._begin(step.begin)
            case "data":
                if self._hashed == self._offset:
                    self._digest.update(step.data)
                    self._hashed += len(step.data)
                self.add(memoryview(step.data))
            case "end":
                self._end(step.end, proven=proven)
            case _:
                self._left.pop(step.skipped.path, None)
                self.missing.append((step.skipped.path, step.skipped.message))

    def add(self, data: memoryview) -> None:
        """Takes in content. Raises TransferError, OSError."""
        if self._entry is None:
            raise TransferError("data came before a file")
        left = data
        while left:
            left = left[os.write(self._descriptor, left) :]
        self._offset += len(data)
        if self._progress is not None:
            self._progress(self._entry.path, self._offset, self._entry.size)

    def _begin(self, begin: file_pb2.FileBegin) -> None:
        entry = begin.entry
        destination = self._left.get(entry.path)
        if destination is None:
            raise TransferError(f"the kernel sends a file {entry.path!r} that was not requested")
        if self._entry is not None and self._entry.path == entry.path and begin.offset == self._offset:
            return
        self._drop()
        self._check(destination)
        if begin.offset:
            raise TransferError(f"{entry.path} was not sent from its beginning")
        destination.parent.mkdir(parents=True, exist_ok=True)
        self._partial = destination.with_name(f".{uuid.uuid4().hex}.partial")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        self._descriptor = os.open(self._partial, flags, 0o600)
        self._entry, self._offset, self._digest, self._hashed = entry, 0, hashlib.sha256(), 0

    def _end(self, end: file_pb2.FileEnd, *, proven: bool) -> None:
        if self._entry is None or end.size != self._offset or not (proven or end.sha256 == self._sha256()):
            path = self._entry.path if self._entry is not None else ""
            raise TransferError(f"{path} did not arrive as it was sent")
        mask = os.umask(0)
        os.umask(mask)
        os.fchmod(self._descriptor, self._entry.mode & _PERMISSIONS & ~mask)
        destination = self._left[self._entry.path]
        self._partial.replace(destination)
        del self._left[self._entry.path]
        self.files += 1
        self.bytes += self._offset
        self._drop()

    def _sha256(self) -> bytes:
        """Returns the digest of what has come; a part of it may have come by `add`."""
        if self._hashed == self._offset:
            return self._digest.digest()
        with self._partial.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()

    def _check(self, destination: Path) -> None:
        """Refuses a path that an existing link leads out of the target."""
        if destination != self._target and not destination.parent.resolve().is_relative_to(self._target.resolve()):
            raise TransferError(f"{destination} leads out of {self._target}")

    def _drop(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            with contextlib.suppress(FileNotFoundError):
                self._partial.unlink()
        self._entry = None

    def close(self) -> None:
        """Removes what is not whole."""
        self._drop()
