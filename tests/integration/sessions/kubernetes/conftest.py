"""A Docker node beside a Kubernetes for the tests of this directory, and nothing left of each test's sessions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest_asyncio

from tests.integration.agent.docker.engine import install
from tests.integration.client.command.conftest import environment, retinue
from tests.integration.sessions.kubernetes.pod_cluster import PodCluster
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.aio import Client

__all__ = ["environment", "retinue"]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def cluster() -> AsyncIterator[PodCluster]:
    install()
    async with PodCluster() as cluster:
        yield cluster


@pytest_asyncio.fixture(loop_scope="session")
async def client(cluster: PodCluster) -> AsyncIterator[Client]:
    """A client of the cluster; what a test left is ended, and then there is nothing of it on either node."""
    async with cluster.client() as client:
        yield client
        living = [session async for session in client.sessions.list()]
        await asyncio.gather(*(session.terminate(force=True) for session in living))
        await asyncio.gather(*(session.wait_ended(NEVER) for session in living))
    assert not await cluster.wait_clean(NEVER)
    await eventually(lambda: asyncio.to_thread(cluster.pods_left), lambda left: not left)
