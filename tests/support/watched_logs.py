"""The logs of servers that tests start: `evidence` shows them with the failures of these tests."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

watched: dict[Path, str] = {}
"""Logs of servers that run, with their titles."""


@contextlib.contextmanager
def watch(title: str, log: Path) -> Iterator[None]:
    """Show the log of a server with the failures of the tests in which it runs; `title` names it."""
    watched[log] = title
    try:
        yield
    finally:
        watched.pop(log, None)
