"""A directory of a user who has named files as modules of Python: whatever imports one of them ends."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# What every program of the project imports besides.
_OTHERS = {"click", "grpc", "google", "retinue"}


def plant(directory: Path) -> Path:
    """Puts a file for each module that is not part of the interpreter itself into a directory, and returns that."""
    directory.mkdir(exist_ok=True)
    for name in (sys.stdlib_module_names | _OTHERS) - set(sys.builtin_module_names):
        (directory / f"{name}.py").write_text(f"raise SystemExit('{name}.py of the current directory was imported')\n")
    return directory
