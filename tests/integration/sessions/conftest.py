"""The shared cluster with a router, for the tests of endpoints."""

from __future__ import annotations

import asyncio
import secrets
import shutil
from typing import TYPE_CHECKING

import pytest_asyncio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.devtools.cluster import Cluster


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def routed(cluster: Cluster) -> AsyncIterator[Cluster]:
    """The cluster with one router while the tests of a module run; none of those that they add is left either."""
    await cluster.add_router(f"r-{secrets.token_hex(4)}", cluster._ports.endpoints)  # noqa: SLF001  # addresses have it
    try:
        yield cluster
    finally:
        for router in cluster.routers:
            await router.stop()
        cluster.routers.clear()
        await asyncio.to_thread(shutil.rmtree, cluster.directory / "router")
        async with cluster.client() as client:
            async for enrolled in client.routers.list():
                await client.routers.revoke(enrolled.id)
