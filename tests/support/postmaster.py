"""The database of a local cluster, for those who kill it."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from retinue.devtools.cluster import Cluster


async def kill_database(cluster: Cluster) -> None:
    """Kills PostgreSQL, which the manager starts again."""
    file = cluster.directory / "manager" / "postgres" / "postmaster.pid"
    os.kill(int((await asyncio.to_thread(file.read_text)).split("\n", 1)[0]), signal.SIGKILL)
