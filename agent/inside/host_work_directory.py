"""A kernel's work directory that is a directory of the node, with methods that wait for threads instead of blocking."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
from typing import TYPE_CHECKING, Any, TypeVar

from retinue.agent.inside import upload, workdir
from retinue.agent.inside.workdir import Entry, PathError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine, Iterator
    from pathlib import Path

Result = TypeVar("Result")
BATCH = 500
"""Entries that are listed at a time."""


async def finished(action: Coroutine[Any, Any, Result]) -> Result:
    """Returns the result of a thread, which is waited for even if the caller is cancelled:
    what it uses must not be closed before.
    """
    task = asyncio.ensure_future(action)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        # The caller has gone: a failure concerns nothing else, and asyncio logs what is never read as an error.
        if not task.cancelled():
            task.exception()
        raise


class HostUpload:
    """One incoming file. Close it in any case."""

    def __init__(self, incoming: upload.IncomingUpload) -> None:
        """Takes it over."""
        self._incoming = incoming

    @property
    def offset(self) -> int:
        """Returns how many bytes are there."""
        return self._incoming.offset

    @property
    def complete(self) -> bool:
        """Returns whether all of it is there."""
        return self._incoming.complete

    @property
    def resumed(self) -> bytes:
        """Returns the SHA-256 of the bytes that were there at the beginning; good before more is written."""
        return self._incoming.resumed

    async def write(self, data: bytes | memoryview) -> None:
        """Takes in more. Raises DigestError on more than was announced, NoSpaceError, OSError."""
        await finished(asyncio.to_thread(self._incoming.write, data))

    async def store(self) -> None:
        """Puts the file where it belongs, lastingly. Raises DigestError, RefusedError, NoSpaceError, OSError."""
        await finished(asyncio.to_thread(self._incoming.store))

    async def close(self) -> None:
        """Keeps what a later upload can continue for a while, and removes anything else."""
        await finished(asyncio.to_thread(self._incoming.close))


class HostFile:
    """A regular file that is open for reading. Close it in any case."""

    def __init__(self, path: str, descriptor: int) -> None:
        """Takes over the descriptor; `path` is that in the work directory."""
        self._descriptor = descriptor
        self.entry = workdir.describe(path, descriptor)

    async def read(self, size: int, offset: int) -> bytes:
        """Returns at most `size` bytes from `offset` on; none at the end. Raises OSError."""
        return await finished(asyncio.to_thread(os.pread, self._descriptor, size, offset))

    def close(self) -> None:
        """Closes the file."""
        os.close(self._descriptor)


class HostWorkDirectory:
    """The work directory of a kernel of this node."""

    def __init__(self, path: Path) -> None:
        """Opens nothing yet."""
        self._path = path

    async def remove_stale_uploads(self) -> None:
        """Removes what was uploaded in part and not continued for long."""
        await asyncio.to_thread(upload.sweep, self._path, time.time())

    async def begin_upload(self, announced: upload.UploadHeader, *, resume: bool) -> HostUpload:
        """Begins an upload, or with `resume` continues after what is there.

        Raises PathError, RefusedError, NoSpaceError, BusyError, OSError.
        """
        opening = asyncio.ensure_future(asyncio.to_thread(upload.IncomingUpload, self._path, announced, resume=resume))
        try:
            return HostUpload(await asyncio.shield(opening))
        except asyncio.CancelledError:
            await asyncio.wait((opening,))
            if opening.exception() is None:
                opening.result().close()
            raise

    async def make_directory(self, path: str, mode: int) -> None:
        """Makes a directory; one that is there gets the permissions.
        Raises MissingError, RefusedError, PathError, OSError.
        """
        await asyncio.to_thread(self._make_directory, path, mode)

    async def make_link(self, path: str, target: str) -> None:
        """Makes a symbolic link, in place of a file or link. Raises MissingError, RefusedError, PathError, OSError."""
        await asyncio.to_thread(self._make_link, path, target)

    async def open(self, path: str) -> HostFile:
        """Opens a regular file for reading. Raises MissingError, RefusedError, PathError, OSError."""
        opening = asyncio.ensure_future(asyncio.to_thread(self._open, path))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            await asyncio.wait((opening,))
            if opening.exception() is None:
                opening.result().close()
            raise

    async def entries(self, path: str, *, recursive: bool) -> AsyncGenerator[list[Entry], None]:
        """Yields the entries of a directory, with `recursive` of those beneath it too, some at a time and in no order.

        Of anything else the only entry is its own. Raises MissingError, RefusedError, PathError, OSError.
        """
        with (
            workdir.opened(self._path) as home,
            contextlib.closing(workdir.walk(home, path, recursive=recursive)) as entries,
        ):
            while batch := await finished(asyncio.to_thread(_taken, entries)):
                yield batch

    def _make_directory(self, path: str, mode: int) -> None:
        with workdir.opened(self._path) as home:
            if not workdir.parts_of(path):
                raise PathError("is required")
            workdir.make_directory(home, path, mode)

    def _make_link(self, path: str, target: str) -> None:
        with workdir.opened(self._path) as home:
            workdir.make_link(home, path, target)

    def _open(self, path: str) -> HostFile:
        with workdir.opened(self._path) as home:
            descriptor = workdir.open_regular(home, path)
        try:
            return HostFile(path, descriptor)
        except BaseException:
            os.close(descriptor)
            raise


def _taken(entries: Iterator[Entry]) -> list[Entry]:
    return list(itertools.islice(entries, BATCH))
