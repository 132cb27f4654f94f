"""The highest number of a manager's leadership that was ever seen here: the guard against a leader that was replaced."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from agent.files import replace_file

if TYPE_CHECKING:
    from pathlib import Path


class StaleTermError(Exception):
    """The term is lower than one seen before; `highest` is that."""

    def __init__(self, highest: int) -> None:
        """Keeps the highest term."""
        super().__init__(f"term {highest} was seen before")
        self.highest = highest


class Terms:
    """The highest term, kept in a file."""

    def __init__(self, path: Path) -> None:
        """Reads the file, blocking; no file means that no term was seen. Raises ValueError on a damaged one."""
        self._path = path
        self._lock = asyncio.Lock()
        self._highest = 0
        with contextlib.suppress(FileNotFoundError):
            self._highest = int(path.read_text())

    async def accept(self, term: int) -> None:
        """Takes a term; returns once it would outlive a crash of the node. Raises StaleTermError."""
        async with self._lock:
            if term < self._highest:
                raise StaleTermError(self._highest)
            if term > self._highest:
                await asyncio.to_thread(replace_file, self._path, f"{term}\n".encode())
                self._highest = term
