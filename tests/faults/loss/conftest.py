"""A cluster of its own for what follows from the loss of an agent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest_asyncio

from retinue.devtools.cluster import Cluster, ClusterOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# An agent that is lost takes so long to be, and no longer: it is what these tests wait for. One that runs says
# something forty times meanwhile, so that even on a busy machine no other one is lost.
OPTIONS = ClusterOptions(
    agents=2, prefix="rt-loss-", heartbeat=0.5, suspect_after=10.0, lost_after=20.0, router=True, gateway=False
)


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def shared_cluster() -> AsyncIterator[Cluster]:
    async with Cluster(options=OPTIONS) as cluster:
        yield cluster
        log = await asyncio.to_thread((cluster.directory / "logs" / "manager.log").read_text)
        # As of the cluster of all other tests: the manager met nothing that it did not expect.
        assert not [line for line in log.splitlines() if "incident" in line]
