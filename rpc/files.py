"""Files that are wholly there or not at all, whatever crashes, and locks on files."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

from retinue.rpc import failpoints

if TYPE_CHECKING:
    from pathlib import Path


@failpoints.blocking("file", failpoints.disk_error, sites=True)
def sync_directory(directory: Path) -> None:
    """Makes the names in a directory last."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@failpoints.blocking("file", failpoints.disk_error, sites=True)
def write_new(path: Path, content: bytes, *, lasting: bool) -> None:
    """Writes a file only its owner can read; with `lasting`, its content outlives a crash of the node,
    if its name does.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        if lasting:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def try_lock(path: Path) -> int | None:
    """Locks a file, which is made if need be, for as long as the returned descriptor is open;
    None while another process has it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


@failpoints.blocking("file", failpoints.disk_error, sites=True)
def replace_file(path: Path, content: bytes, *, lasting: bool = True) -> None:
    """Replaces a file in one step, whatever process crashes.

    With `lasting`, the new content outlives a crash of the node, too, from when this returns.
    """
    fresh = path.with_name(f".{path.name}.new")
    write_new(fresh, content, lasting=lasting)
    _rename(fresh, path)
    if lasting:
        sync_directory(path.parent)


@failpoints.blocking("file", failpoints.disk_error)
def _rename(fresh: Path, path: Path) -> None:
    fresh.replace(path)


@failpoints.blocking("file", failpoints.disk_error, sites=True)
def overwrite_file(path: Path, content: bytes) -> None:
    """Writes into a file that is there, for a disk without space for another one;
    a concurrent reader may find half of it.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.ftruncate(descriptor, len(content))
    finally:
        os.close(descriptor)
