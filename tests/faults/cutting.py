"""Nodes that are cut off from the network."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from typing import TYPE_CHECKING

from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.devtools.cluster import LocalAgent


@contextlib.asynccontextmanager
async def cut_off(agent: LocalAgent) -> AsyncIterator[None]:
    """Unplugs an agent's node at the switch."""
    assert agent.node is not None
    underlay, _, port = agent.node.namespace.rpartition("-")

    async def plug(state: str) -> None:
        command = ["ip", "-n", f"{underlay}-switch", "link", "set", port, state]
        await asyncio.to_thread(subprocess.run, command, check=True, timeout=NEVER)

    await plug("down")
    try:
        yield
    finally:
        await plug("up")
