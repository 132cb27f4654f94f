"""Reads what a kernel of this node has used, by the control groups and the network of its first process."""

from __future__ import annotations

from pathlib import Path

from retinue.agent.resources.core.usage import Usage, group_paths, usage_of

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


def read_usage(pid: int, proc: Path = PROC, cgroups: Path = CGROUPS) -> Usage:
    """Returns the usage of the kernel whose first process has that number; what cannot be read is None. Blocks."""
    place = proc / str(pid)
    paths = group_paths(_text(place / "cgroup") or "")
    unified = (cgroups / "cgroup.controllers").exists()

    def read(controller: str, name: str) -> str | None:
        path = paths.get(controller)
        # A kernel in no group of its own is not to be counted as all of the node.
        return None if path is None or path == "/" else _text(cgroups / controller / path.lstrip("/") / name)

    return usage_of(read, unified, _text(place / "net" / "dev"))


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
