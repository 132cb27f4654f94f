"""A process of every kind is killed in random order under load; others may be away at that moment. More of them:
`python -m tests.soak.endpoints random-kills`.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from retinue.devtools.cluster import Cluster, ClusterOptions
from tests.soak.kills import KINDS, random_kills

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster() -> AsyncIterator[Cluster]:
    options = ClusterOptions(
        agents=2, prefix="rt-kill-", heartbeat=0.5, suspect_after=3.0, lost_after=20.0, router=True
    )
    async with Cluster(options=options) as cluster:
        yield cluster


async def test_random_kills_cost_what_was_under_way_in_what_died(cluster: Cluster) -> None:
    seed = random.randrange(1 << 32)
    async with cluster.client() as client:
        outcome = await random_kills(cluster, client, 2 * len(KINDS), seed)
    assert outcome.killed.total() == 2 * len(KINDS)
    assert outcome.good, (seed, outcome)
