"""What kernels of sessions have printed, as a client reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from retinue.client.aio import Client


async def printed(client: Client, session: str, hostname: str = "main1") -> str:
    """Returns what a kernel has printed so far: all of it only once it has ended."""
    return b"".join([chunk.data async for chunk in client.sessions.logs(session, hostname)]).decode()
