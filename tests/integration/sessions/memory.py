"""The memory of a cluster's processes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from retinue.devtools.cluster import Cluster


async def memory_of(cluster: Cluster) -> list[int]:
    """Returns the bytes of memory that the manager, and each agent, has to itself: others on the machine do not
    change them.
    """
    processes = [cluster.manager, *(agent.process for agent in cluster.agents)]
    return await asyncio.to_thread(lambda: [_anonymous(process.pid) for process in processes])


def _anonymous(pid: int | None) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss_Anon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel does not tell")
