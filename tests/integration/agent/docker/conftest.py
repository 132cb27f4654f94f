"""A cluster of two nodes with an engine each, for the tests of this directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.integration.agent.docker.cluster import DockerCluster
from tests.integration.agent.docker.engine import TestEngine, install

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


@pytest.fixture(scope="module")
def own_engine() -> Iterator[TestEngine]:
    """An engine that tests may kill, and start again; kernels outlive it."""
    install()
    engine = TestEngine(live_restore=True)
    try:
        engine.start()
        engine.make_image()
        yield engine
    finally:
        engine.stop()


# Not longer than for a module: a cluster that does nothing takes more of the processors in minutes than its start does.
@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[DockerCluster]:
    install()
    async with DockerCluster() as cluster:
        yield cluster


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def one_node() -> AsyncIterator[DockerCluster]:
    """A cluster of one agent: whatever harms that, harms all."""
    install()
    async with DockerCluster(agents=1) as cluster:
        yield cluster
