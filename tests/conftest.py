"""What tests share: one real PostgreSQL for those that need a database of their own, and a cluster of two agents on
nodes of their own, started as a user would start it.
"""

from __future__ import annotations

import asyncio
import gc
import signal
from typing import TYPE_CHECKING

import hypothesis
import pytest_asyncio

from retinue.devtools.cluster import Cluster, ClusterOptions
from retinue.manager.store.migrations import migrate
from retinue.manager.store.postgres.embedded import EmbeddedServer
from tests.support.databases import TEMPLATE, Postgres, passable_directory
from tests.support.eventually import NEVER
from tests.support.watched_logs import watch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.aio import Client

pytest_plugins = ["tests.support.distribution", "tests.support.evidence", "tests.support.second_run"]

# How long an example takes says something about the machine and who else uses it. A change is tested with the same
# examples wherever it is tested; `--hypothesis-profile=exploring` looks for others.
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True)
hypothesis.settings.register_profile("exploring", deadline=None)
hypothesis.settings.load_profile("repeatable")

# Programs that tests start and interrupt would inherit that a shell's background job ignores interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    # Tests and what they import stay: to look through them for garbage again and again would hold up every test.
    gc.freeze()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_cluster() -> AsyncIterator[Cluster]:
    """Of all modules together; tests take `cluster`."""
    options = ClusterOptions(
        agents=2,
        prefix="rt-test-",
        # For receivers of webhooks that tests start.
        manager_arguments=("--webhook-allow", "127.0.0.0/8"),
        gateway=True,
    )
    async with Cluster(options=options) as cluster:
        yield cluster
        log = await asyncio.to_thread((cluster.directory / "logs" / "manager.log").read_text)
        # Whatever the tests did, the manager met nothing that it did not expect.
        assert not [line for line in log.splitlines() if "incident" in line]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(shared_cluster: Cluster) -> AsyncIterator[Cluster]:
    """A cluster of two agents, on which nothing is left when the tests of a module have run."""
    yield shared_cluster
    assert not await shared_cluster.wait_clean(NEVER)


@pytest_asyncio.fixture(loop_scope="session")
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    async with cluster.client() as client:
        yield client


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def postgres() -> AsyncIterator[Postgres]:
    with passable_directory() as directory:
        server = EmbeddedServer(directory / "postgres", durable=False)
        try:
            found = Postgres(await server.start())
            await found.execute(f"CREATE DATABASE {TEMPLATE}")
            await migrate(found.url_of(TEMPLATE))
            with watch("PostgreSQL", server.directory / "server.log"):
                yield found
        finally:
            await server.stop()
