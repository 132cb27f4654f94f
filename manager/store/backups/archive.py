"""The file of a backup: a ZIP archive with one entry per table, the files of the certificate authority, and a manifest.

Rows are in PostgreSQL's COPY format as text, which any version of the server reads. The manifest comes last and names
the length and digest of every other entry: a file that was cut short or damaged is found out
before anything is restored from it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

FORMAT = 1
_MANIFEST = "manifest.json"
# What reading an archive raises that is none, or not whole.
_DAMAGE = (zipfile.BadZipFile, zlib.error, KeyError, ValueError, TypeError, AttributeError, EOFError, RuntimeError)
_CHUNK = 1 << 20
_TABLES = "tables/"
_FILES = "authority/"


class BadBackupError(Exception):
    """The file is not a backup, or not whole."""


@dataclass(frozen=True, slots=True)
class Content:
    """An entry of the archive: a table with its columns and number of rows, or a file."""

    bytes: int
    sha256: str
    rows: int = 0
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of a backup: rows of the schema at revision `schema`,
    of cluster `cluster_id` as it was at `create_time`.
    """

    schema: str
    cluster_id: str
    incarnation: str
    ca_fingerprint: str
    create_time: str
    tables: Mapping[str, Content] = field(default_factory=dict)
    files: Mapping[str, Content] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def rows(self) -> int:
        """Rows of all tables."""
        return sum(table.rows for table in self.tables.values())


class ArchiveWriter:
    """Writes a backup; it appears under its name when it is whole."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self.tables: dict[str, Content] = {}
        self.files: dict[str, Content] = {}

    def add_table(self, name: str, columns: Iterable[str], chunks: Iterable[bytes | bytearray | memoryview]) -> None:
        """Adds the rows of a table."""
        self.tables[name] = self._add(_TABLES + name, chunks, tuple(columns))

    def add_file(self, name: str, content: bytes) -> None:
        """Adds a file of the certificate authority."""
        self.files[name] = self._add(_FILES + name, [content])

    def finish(self, manifest: Manifest) -> Manifest:
        """Adds the manifest, with all that was added before."""
        whole = dataclasses.replace(manifest, tables=self.tables, files=self.files)
        self._archive.writestr(_MANIFEST, json.dumps(dataclasses.asdict(whole), indent=1))
        return whole

    def _add(
        self, name: str, chunks: Iterable[bytes | bytearray | memoryview], columns: tuple[str, ...] = ()
    ) -> Content:
        digest, length, rows = hashlib.sha256(), 0, 0
        with self._archive.open(name, "w", force_zip64=True) as entry:
            for chunk in chunks:
                piece = bytes(chunk)
                entry.write(piece)
                digest.update(piece)
                length += len(piece)
                # Line feeds inside of values are escaped.
                rows += piece.count(b"\n")
        return Content(length, digest.hexdigest(), rows if columns else 0, columns)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[ArchiveWriter]:
    """A new archive that only its owner can read. Nothing is left behind when the block raises;
    a file of that name is replaced at the end.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.partial")
    descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
                yield ArchiveWriter(archive)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


class Archive:
    """A backup that was looked through and is whole."""

    def __init__(self, archive: zipfile.ZipFile, manifest: Manifest) -> None:
        self._archive = archive
        self.manifest = manifest

    def read_table(self, name: str) -> Iterator[bytes]:
        """The rows of a table, in chunks."""
        with self._archive.open(_TABLES + name) as entry:
            yield from _chunks(entry)

    def read_file(self, name: str) -> bytes:
        """A file of the certificate authority."""
        return self._archive.read(_FILES + name)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Archive]:
    """Opens a backup and compares every entry with the manifest. Raises BadBackupError,
    and OSError when the file cannot be read.
    """
    with contextlib.ExitStack() as stack:
        try:
            archive = stack.enter_context(zipfile.ZipFile(path))
            manifest = _parse(json.loads(archive.read(_MANIFEST)))
            for folder, contents in ((_TABLES, manifest.tables), (_FILES, manifest.files)):
                for name, content in contents.items():
                    _compare(archive, folder + name, content)
        except _DAMAGE as error:
            raise BadBackupError(f"{path} is not a whole backup: {error}") from error
        yield Archive(archive, manifest)


def _parse(values: Any) -> Manifest:
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise ValueError("its format is not known to this version")
    known = {name: _contents(values[name]) for name in ("tables", "files")}
    manifest = Manifest(**{**values, **known})
    dt.datetime.fromisoformat(manifest.create_time)
    return manifest


def _contents(values: Mapping[str, Any]) -> dict[str, Content]:
    return {name: Content(**{**content, "columns": tuple(content["columns"])}) for name, content in values.items()}


def _compare(archive: zipfile.ZipFile, name: str, content: Content) -> None:
    digest, length = hashlib.sha256(), 0
    with archive.open(name) as entry:
        for chunk in _chunks(entry):
            digest.update(chunk)
            length += len(chunk)
    if (length, digest.hexdigest()) != (content.bytes, content.sha256):
        raise ValueError(f"{name} is damaged")


def _chunks(entry: IO[bytes]) -> Iterator[bytes]:
    while chunk := entry.read(_CHUNK):
        yield chunk
