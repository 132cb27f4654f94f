"""Two managers of one cluster, of which the leader stands still while it rolls out and scales an endpoint: the other
one continues, and when the first continues it does nothing. Requests are answered all the time.
"""

from __future__ import annotations

import asyncio
import collections
import os
import shutil
import signal
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from sqlalchemy import text

from retinue.client.aio import Client
from retinue.client.errors import Unavailable
from retinue.devtools import commands
from retinue.devtools.cluster import Cluster, ClusterOptions, free_ports
from retinue.devtools.process import ChildProcess
from retinue.manager.store.postgres.database import Database
from tests.integration.sessions.replicas import Deployed, manifest, revision
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.asyncio(loop_scope="session")

MIN, MAX = 2, 4
LIVE = {"STARTING", "READY", "UNREADY"}
OPTIONS = ClusterOptions(agents=2, prefix="rt-led-", router=True, gateway=False)


@dataclass
class Manager:
    """One of the managers, and a client of it."""

    process: ChildProcess
    client: Client


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
                nodes=host_of(cluster),
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
            await eventually(second.users.caller, lambda _: True, ignoring=Unavailable)
            yield Manager(cluster.manager, first), Manager(process, second)
        finally:
            await process.stop(NEVER)


def host_of(cluster: Cluster) -> str:
    """Returns the address at which nodes reach this machine: the first one of their network."""
    node = cluster.agents[0].node
    assert node is not None
    return f"{node.address.rpartition('.')[0]}.1"


def copy_authority(source: Path, target: Path) -> None:
    target.mkdir(mode=0o700)
    for name in ("ca.key", "ca.pem"):
        shutil.copy2(source / name, target / name)


async def leader(database: Database) -> tuple[int, int]:
    """Returns the newest term, and the process that leads in it."""
    async with database.transaction() as tx:
        found, holder = (await tx.execute(text("SELECT term, holder FROM leadership"))).one()
        return int(found), int(str(holder).rpartition(":")[2])


async def stop_leader(managers: tuple[Manager, Manager], database: Database) -> tuple[int, Manager, Manager]:
    """Has the manager that leads stand still; returns its term, it, and the other one. A manager that led before may
    lead no more: a machine that stands still for some seconds ends a term.
    """
    while True:
        found = before, pid = await leader(database)
        old, new = managers if managers[0].process.pid == pid else managers[::-1]
        assert old.process.pid == pid
        old.process.signal(signal.SIGSTOP)
        if await leader(database) == found:
            return before, old, new
        old.process.signal(signal.SIGCONT)


async def check_replicas(endpoint: Deployed, database: Database) -> None:
    """Each replica was made once and is a session; there are no others that live. At no time were there more than may
    be, or than were wanted.
    """
    replicas = {item.session_id for item in await endpoint.replicas()}
    async with database.transaction() as tx:
        rows = await tx.execute(text("SELECT id FROM session WHERE end_time IS NULL"))
        assert {str(row[0]) for row in rows} == replicas
        entries = await tx.execute(
            text("""
                SELECT kind, payload FROM journal WHERE kind IN ('ENDPOINT_REPLICA', 'ENDPOINT_SCALED') ORDER BY revision
            """)
        )
        found = [(str(kind), dict(payload)) for kind, payload in entries]
    moves = [(item["session_id"], item["state"]) for kind, item in found if kind == "ENDPOINT_REPLICA"]
    again = {move for move, times in collections.Counter(moves).items() if times > 1}
    # The way to and fro between these two is that of a replica's health.
    assert {state for _, state in again} <= {"READY", "UNREADY"}
    live: set[str] = set()
    most = 0
    for session_id, state in moves:
        live = live | {session_id} if state in LIVE else live - {session_id}
        most = max(most, len(live))
    # One more while one of them is replaced.
    assert MIN <= most <= MAX + 1
    targets = {item["decision"]["target"] for kind, item in found if kind == "ENDPOINT_SCALED"}
    assert targets
    assert targets <= set(range(MIN, MAX + 1))


def has_come(number: int, states: list[tuple[int, str]]) -> bool:
    """Returns whether the rollout to a revision has made, readied or finished one replica: the first deployment looks
    for the first of these, and so on.
    """
    old = [state for revision, state in states if revision <= number]
    new = [state for revision, state in states if revision > number]
    return [bool(new), "READY" in new, bool(new) and old.count("READY") < MIN][number - 1]


def has_logged(process: ChildProcess, words: str) -> bool:
    """Returns whether the log of a process has these words."""
    return words in process.log.read_text(errors="replace")


async def test_a_leader_that_stood_still_in_a_rollout_leaves_it_to_the_next(
    managers: tuple[Manager, Manager], database: Database
) -> None:
    old = managers[0]
    scaling = {"min": MIN, "max": MAX, "holdDown": "0s"}
    endpoint = await Deployed.create(old.client, manifest("led", "r0", scaling=scaling))
    try:
        await endpoint.reach(*[(1, "READY")] * MIN)
        async with endpoint.load(clients=4) as load:
            for number in range(1, 4):
                await old.client.endpoints.deploy("led", revision(f"r{number}"))
                # In the middle of the rollout, further on each time.
                await eventually(endpoint.states, partial(has_come, number))
                before, old, new = await stop_leader(managers, database)
                try:
                    endpoint.client = new.client
                    count = MAX - number % 2
                    await eventually(
                        lambda to=new, count=count: to.client.endpoints.set_floor("led", count, 3600),  # type: ignore[misc]
                        ignoring=Unavailable,
                    )
                    await eventually(lambda: leader(database), lambda found, before=before: found[0] > before)  # type: ignore[misc]
                    await endpoint.reach(*[(number + 1, "READY")] * count)
                    await load.sent_more(100)
                finally:
                    old.process.signal(signal.SIGCONT)
                # It answers again, and all that it had begun has ended.
                await eventually(partial(has_logged, old.process, f"term {before} has ended"))
                await eventually(old.client.users.caller, lambda _: True, ignoring=Unavailable)
                await load.sent_more(100)
                await endpoint.reach(*[(number + 1, "READY")] * count)
                await check_replicas(endpoint, database)
                old = new
        assert load.lost == []
    finally:
        await endpoint.delete()
