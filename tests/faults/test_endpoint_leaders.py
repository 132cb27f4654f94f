"""Two managers of one cluster, of which the leader stands still while it rolls out and scales an endpoint: the other
one continues, and when the first continues it does nothing. Requests are answered all the time.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import shutil
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio
from sqlalchemy import text

from retinue.client.aio import Client
from retinue.client.errors import Unavailable
from retinue.devtools import commands
from retinue.devtools.cluster import Cluster, ClusterOptions, free_ports
from retinue.devtools.process import ChildProcess
from retinue.manager.store.database import Database
from retinue.manager.v1 import endpoint_pb2 as epb
from tests.integration.sessions.replicas import Deployed, manifest, revision
from tests.support.eventually import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECONDS = 120.0
MIN, MAX = 2, 4
LIVE = {epb.REPLICA_STATE_STARTING, epb.REPLICA_STATE_READY, epb.REPLICA_STATE_UNREADY}
OPTIONS = ClusterOptions(
    agents=2, prefix="rt-led-", heartbeat=0.5, suspect_after=3.0, lost_after=20.0, router=True, gateway=False
)


@dataclass
class Manager:
    """One of the managers, and a client of it."""

    process: ChildProcess
    client: Client


@dataclass
class Seen:
    """What was there at any moment, as the client that answers sees it."""

    endpoint: Deployed
    most: int = 0
    targets: set[int] = field(default_factory=set)

    async def watch(self) -> None:
        """Looks until it is cancelled."""
        while True:
            with contextlib.suppress(Unavailable):
                async with asyncio.timeout(5):
                    found = await self.endpoint.get()
                    states = [item.state for item in await self.endpoint.replicas()]
                self.most = max(self.most, sum(state in LIVE for state in states))
                self.targets.add(found.target)
            await asyncio.sleep(0.05)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(options=OPTIONS) as cluster:
        yield cluster


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def database(cluster: Cluster) -> AsyncIterator[Database]:
    database = Database(f"postgresql://postgres@/retinue?host={cluster.directory}/manager/postgres")
    yield database
    await database.dispose()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def managers(cluster: Cluster) -> AsyncIterator[tuple[Manager, Manager]]:
    """The cluster's manager, which leads first, and another one with the same database and the same authority."""
    directory = cluster.directory / "second"
    await asyncio.to_thread(copy_authority, cluster.directory / "manager", directory)
    ports = free_ports()
    process = ChildProcess(
        "second",
        [
            *commands.manager(
                directory,
                users=ports.users,
                agents=ports.agents,
                gateway=0,
                # Agents see a router of this machine at the address of their network's host, which comes first.
                hosts=[host_of(cluster), "127.0.0.1", "localhost"],
                supervision=commands.Supervision(OPTIONS.heartbeat, OPTIONS.suspect_after, OPTIONS.lost_after),
            ),
            *("--database-url", f"postgresql://postgres@/retinue?host={cluster.directory}/manager/postgres"),
        ],
        cluster.directory / "logs" / "second.log",
        {key: value for key, value in os.environ.items() if not key.startswith("RETINUE_")},
    )
    await process.start()
    settings = cluster.settings
    async with (
        cluster.client() as first,
        Client.connect(f"127.0.0.1:{ports.users}", token=settings.token, ca=settings.ca) as second,
    ):
        try:
            await eventually(second.users.caller, lambda _: True, ignoring=Unavailable, seconds=SECONDS)
            yield Manager(cluster.manager, first), Manager(process, second)
        finally:
            await process.stop(20.0)


def host_of(cluster: Cluster) -> str:
    """Returns the address at which nodes reach this machine: the first one of their network."""
    node = cluster.agents[0].node
    assert node is not None
    return f"{node.address.rpartition('.')[0]}.1"


def copy_authority(source: Path, target: Path) -> None:
    target.mkdir(mode=0o700)
    for name in ("ca.key", "ca.pem"):
        shutil.copy2(source / name, target / name)


async def term(database: Database) -> int:
    async with database.transaction() as tx:
        return int((await tx.execute(text("SELECT term FROM leadership"))).scalar_one())


async def check_replicas(endpoint: Deployed, database: Database) -> None:
    """Each replica was made once and is a session; there are no others that live."""
    replicas = {item.session_id for item in await endpoint.replicas()}
    async with database.transaction() as tx:
        rows = await tx.execute(text("SELECT id FROM session WHERE end_time IS NULL"))
        assert {str(row[0]) for row in rows} == replicas
        entries = await tx.execute(text("SELECT payload FROM journal WHERE kind = 'ENDPOINT_REPLICA'"))
        moves = collections.Counter((item["session_id"], item["state"]) for (item,) in entries)
    again = {move for move, times in moves.items() if times > 1}
    # The way to and fro between these two is that of a replica's health.
    assert {state for _, state in again} <= {"READY", "UNREADY"}


async def test_a_leader_that_stood_still_in_a_rollout_leaves_it_to_the_next(
    managers: tuple[Manager, Manager], database: Database
) -> None:
    old, new = managers
    scaling = {"min": MIN, "max": MAX, "holdDown": "0s"}
    endpoint = await Deployed.create(old.client, manifest("led", "r0", scaling=scaling))
    try:
        await endpoint.reach(*[(1, "READY")] * MIN, seconds=SECONDS)
        async with endpoint.load(clients=4) as load:
            for number in range(1, 4):
                before = await term(database)
                # In the middle of the rollout, at another moment each time.
                await old.client.endpoints.deploy("led", revision(f"r{number}"))
                await load.sent_more(20 * number)
                old.process.signal(signal.SIGSTOP)
                try:
                    endpoint.client = new.client
                    seen = Seen(endpoint)
                    watching = asyncio.create_task(seen.watch())
                    count = MAX - number % 2
                    await eventually(
                        lambda to=new, count=count: to.client.endpoints.set_floor("led", count, 3600),  # type: ignore[misc]
                        ignoring=Unavailable,
                        seconds=SECONDS,
                    )
                    await eventually(lambda: term(database), (before + 1).__eq__, seconds=SECONDS)
                    await endpoint.reach(*[(number + 1, "READY")] * count, seconds=SECONDS)
                    await load.sent_more(100)
                finally:
                    old.process.signal(signal.SIGCONT)
                # It answers again, and has had the time to do what it had begun.
                await eventually(old.client.users.caller, lambda _: True, ignoring=Unavailable, seconds=SECONDS)
                await load.sent_more(300)
                await endpoint.reach(*[(number + 1, "READY")] * count, seconds=SECONDS)
                watching.cancel()
                # One more while one of them is replaced.
                assert seen.most <= MAX + 1
                assert seen.targets <= set(range(MIN, MAX + 1))
                assert await term(database) == before + 1
                await check_replicas(endpoint, database)
                old, new = new, old
        assert load.lost == []
    finally:
        await endpoint.delete()
