"""Finds files without a name that processes keep: a walk of the directories does not find them, and their blocks stay taken."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from retinue.agent.host.processes import PROC

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

MAX_LINKS = 1_000_000
"""Descriptors and mappings of one kernel that are examined."""
_DELETED = " (deleted)"
_SECTOR = 512


def unlinked(processes: Iterable[int], devices: Collection[int]) -> tuple[int, int]:
    """Returns bytes and number of the files on some file systems that have no name and that processes have open or mapped. Blocks.

    Files under way between sockets are not seen.
    """
    sizes: dict[tuple[int, int], int] = {}
    left = MAX_LINKS
    for pid in processes:
        for kind in ("fd", "map_files"):
            for path in _links(f"{PROC}/{pid}/{kind}"):
                left -= 1
                if left < 0:
                    return sum(sizes.values()), len(sizes)
                try:
                    # The text first: to look at a file itself may wait for a server that is away.
                    if not os.readlink(path).endswith(_DELETED):
                        continue
                    status = os.stat(path)
                except OSError:
                    continue
                if status.st_nlink == 0 and status.st_dev in devices:
                    sizes[status.st_dev, status.st_ino] = status.st_blocks * _SECTOR
    return sum(sizes.values()), len(sizes)


def _links(directory: str) -> Iterator[str]:
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                yield entry.path
    except OSError:
        return
