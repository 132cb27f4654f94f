"""Files that the package brings, such as protos and dashboards, copied to where a user wants them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.resources.abc import Traversable
    from pathlib import Path


def copy_files(source: Traversable, target: Path, suffix: str) -> Iterator[Path]:
    """Copies the files with a suffix, in directories as there, and returns the copies. Raises OSError."""
    for entry in source.iterdir():
        path = target / entry.name
        if entry.is_dir():
            yield from copy_files(entry, path, suffix)
        elif path.suffix == suffix:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(entry.read_bytes())
            yield path
