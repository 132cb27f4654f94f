"""The form of `retinue.client.kernel.files` for callers that block.

Written by scripts/generate-sync-client; do not edit it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.client.blocking import run
from retinue.client.kernel import files as aio_files

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from typing import TYPE_CHECKING

    from retinue.client.kernel.local_files import (
        Copied,
        Progress,
    )
    from retinue.types.v1 import file_pb2


class Files:
    """Files of one kernel."""

    def __init__(self, asynchronous: aio_files.Files) -> None:
        """Takes the asynchronous form."""
        self._asynchronous = asynchronous

    def list(self, path: str = "", *, recursive: bool = False) -> Sequence[file_pb2.FileEntry]:
        """Returns the entries of a directory of the work directory, by path; of anything else its own entry.
        Raises CallError.
        """
        return run(self._asynchronous.list(path, recursive=recursive))

    def upload(
        self, source: str | os.PathLike[str], path: str, *, recursive: bool = False, progress: Progress | None = None
    ) -> Copied:
        """Copies a local file to `path`, or with `recursive` a directory and all beneath it. Links that lead out of it
        and what is no regular file are left out, and what cannot be sent is, too; the answer lists both.

        A file is in its place once it is whole. Raises CallError, TransferError, OSError.
        """
        return run(self._asynchronous.upload(source, path, recursive=recursive, progress=progress))

    def download(
        self, path: str, target: str | os.PathLike[str], *, recursive: bool = False, progress: Progress | None = None
    ) -> Copied:
        """Copies a file of the kernel to a local one, or with `recursive` a directory and all
        beneath it into a local one.

        Links that lead out of it and what is no regular file are left out and listed. What a kernel says of its files
        is not trusted: nothing is written outside of `target`, and no link leads there. Raises CallError,
        TransferError, OSError.
        """
        return run(self._asynchronous.download(path, target, recursive=recursive, progress=progress))
