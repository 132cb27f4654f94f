"""Programs of others, unchanged, as users have them, against the shared cluster."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.support.eventually import NEVER
from tests.support.login import Shell, login_machine, shell_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from retinue.client.aio import Client
    from retinue.devtools.cluster import Cluster


@pytest.fixture
def shell(cluster: Cluster, tmp_path: Path) -> Shell:
    """A shell of a user of the cluster, in an empty home directory."""
    return shell_in(tmp_path, cluster)


@pytest_asyncio.fixture(loop_scope="session")
async def login(cluster: Cluster, client: Client) -> AsyncIterator[Shell]:
    """A shell of a user of Slurm, in an empty directory that jobs see, too."""
    async with login_machine(cluster, client) as shell:
        yield shell


@pytest_asyncio.fixture(loop_scope="session", autouse=True)
async def nothing_left(cluster: Cluster) -> AsyncIterator[None]:
    """Ends what a test left, also after it failed."""
    yield
    async with cluster.client() as client:
        living = [session async for session in client.sessions.list()]
        await asyncio.gather(*(session.terminate(force=True) for session in living))
        await asyncio.gather(*(session.wait_ended(timeout=NEVER) for session in living))
