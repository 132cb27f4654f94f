"""A file that is read while others make, write and remove it."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class DeferredFile:
    """A file that may be made later, may be removed, and may never be there. Methods block."""

    def __init__(self, path: Path) -> None:
        """Opens nothing yet."""
        self._path = path
        self._descriptor = -1
        self._closed = False
        # A read whose waiter was cancelled continues in its thread, and must not meet another file under the same
        # number.
        self._lock = threading.Lock()

    def open(self) -> None:
        """Opens the file if it is there: it is read to its end then, even when it is removed. Raises OSError."""
        with self._lock:
            self._find()

    def close(self) -> None:
        """Closes the file for good, once nothing reads it."""
        with self._lock:
            self._closed = True
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    @contextlib.contextmanager
    def opened(self) -> Iterator[int | None]:
        """Keeps the file open for the block, which gets its descriptor; None when there is none. Raises OSError."""
        with self._lock:
            yield self._find()

    def _find(self) -> int | None:
        if self._descriptor < 0 and not self._closed:
            with contextlib.suppress(FileNotFoundError):
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        return self._descriptor if self._descriptor >= 0 else None
