"""An engine, and a cluster of two, for the tests of this directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.integration.agent.conftest import place
from tests.integration.agent.docker.cluster import DockerCluster
from tests.integration.agent.docker.engine import TestEngine, install

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

__all__ = ["engine", "place"]


@pytest.fixture(scope="session")
def engine() -> Iterator[TestEngine]:
    install()
    engine = TestEngine()
    try:
        engine.start()
        engine.make_image()
        yield engine
    finally:
        engine.stop()


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
