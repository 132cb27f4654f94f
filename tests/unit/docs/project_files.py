"""The files of the project."""

from __future__ import annotations

import subprocess

from docs.generator import ROOT


def listed(pattern: str) -> list[str]:
    """Files of the project."""
    found = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", pattern],  # noqa: S607
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [name for name in found.stdout.split() if (ROOT / name).exists()]
