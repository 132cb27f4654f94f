"""Ninety days pass for a cluster: nothing breaks because an hour, a day or a month has passed.

The wall clocks of its manager, agents and router are set by `set_clock.c`; those that measure waits go on as ever. They
begin ninety days ago, so that at the end it is now.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from retinue.client.errors import Unavailable
from retinue.devtools.cluster import Cluster, ClusterOptions
from retinue.manager.v1 import fleet_service_pb2
from retinue.rpc.enrollment.identity import IdentityStore
from tests.integration.sessions.inside import read, shell
from tests.integration.sessions.replicas import Deployed, manifest
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.aio import Client
    from retinue.client.kernel.attachment import Attachment
    from retinue.client.sessions import Session

pytestmark = pytest.mark.asyncio(loop_scope="session")

ALIVE = fleet_service_pb2.AGENT_STATE_ALIVE
ROUTER_ALIVE = fleet_service_pb2.ROUTER_STATE_ALIVE


class Calendar:
    """The day that it is for the cluster: so many days ago."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._file, library = directory / "offset", directory / "set_clock.so"
        self.set(90)
        source = Path(__file__).parents[1] / "support" / "set_clock.c"
        subprocess.run(["/usr/bin/gcc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
        monkeypatch.setenv("LD_PRELOAD", str(library))
        monkeypatch.setenv("SET_CLOCK", str(self._file))

    def set(self, days: int) -> None:
        # In place: it is mapped where it is read.
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("=q", -days * 24 * 3600))


@pytest_asyncio.fixture(loop_scope="session")
async def months(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Cluster, Calendar]]:
    with monkeypatch.context() as patch:
        calendar = Calendar(tmp_path, patch)
        # Inside the cluster, nothing goes by a web proxy; nothing listens there.
        patch.setenv("grpc_proxy", "http://127.0.0.1:1")
        options = ClusterOptions(agents=2, prefix="rt-days-", heartbeat=0.5, router=True)
        async with Cluster(options=options) as cluster:
            yield cluster, calendar
            log = await asyncio.to_thread((cluster.directory / "logs" / "manager.log").read_text)
            assert not [line for line in log.splitlines() if "incident" in line]


async def all_come_back(cluster: Cluster, client: Client) -> None:
    """Waits until both agents and the router were heard again, now that the manager is here."""
    await cluster.start_manager()
    # The database goes by the same clock as this test.
    since = time.time()

    async def alive() -> tuple[int, int]:
        agents = [agent async for agent in client.agents.list() if agent.state == ALIVE]
        routers = [router async for router in client.routers.list() if router.state == ROUTER_ALIVE]
        heard = [
            len([node for node in nodes if node.heartbeat_time.ToSeconds() > since]) for nodes in (agents, routers)
        ]
        return heard[0], heard[1]

    await eventually(alive, (2, 1).__eq__, ignoring=Unavailable)


async def answers(terminal: Attachment, word: str) -> None:
    await terminal.write(f'echo "{word[:1]}""{word[1:]}"\n'.encode())
    await read(terminal, word.encode())


async def begins(gang: Session) -> list[str]:
    """When the first process of each kernel began, in ticks since the machine did."""
    return [await shell(gang, "cut -d' ' -f22 /proc/1/stat", hostname) for hostname in ("main1", "sub1")]


async def test_ninety_days(months: tuple[Cluster, Calendar]) -> None:
    cluster, calendar = months
    first, second = cluster.agents
    async with cluster.client() as client:
        gang = await client.sessions.create(
            type="interactive", cluster_size=2, cluster_mode="multi-node", slots={"cpu": "3", "mem": "64m"}
        )
        await gang.wait("RUNNING")
        endpoint = await Deployed.create(client, manifest("days", "days", scaling={"min": 1, "max": 1}))
        await endpoint.reach((1, "READY"))
        (replica,) = await endpoint.replicas()
        before = await begins(gang)

        # A week, in which all run, and every certificate of a node ends.
        async with gang.attach(terminal=(24, 80)) as terminal:
            await answers(terminal, "before")
            calendar.set(83)
            await answers(terminal, "afterwards")
            assert (await endpoint.ask()).status == 200

            # A month without one agent.
            (other,) = [agent for agent in cluster.agents if agent.id != gang.kernels[0].agent]
            await other.process.stop()
            calendar.set(53)
            await other.process.start()
            await answers(terminal, "still")

        # A weekend without the manager.
        await cluster.manager.stop()
        calendar.set(50)
        assert (await endpoint.ask()).status == 200
        await all_come_back(cluster, client)
        async with gang.attach(terminal=(24, 80)) as terminal:
            await answers(terminal, "again")
        data = str(cluster.directory / "manager")
        command = [sys.executable, "-m", "retinue.manager.main", "renew-ca", "--data-dir", data]
        await asyncio.to_thread(subprocess.run, command, check=True, timeout=NEVER)

        # And all off until now, the nodes first to come back.
        await cluster.manager.stop()
        for process in (first.process, second.process, cluster.routers[0]):
            await process.stop()
        calendar.set(0)
        for process in (first.process, second.process, cluster.routers[0]):
            await process.start()
        await all_come_back(cluster, client)

        # What ran then runs on: the same processes of the same kernels, behind the same address.
        await gang.refresh()
        assert gang.state == "RUNNING"
        assert await begins(gang) == before
        assert [item.session_id for item in await endpoint.replicas()] == [replica.session_id]
        assert (await endpoint.ask()).status == 200
        for agent in cluster.agents:
            identity = await asyncio.to_thread(IdentityStore(agent.state_directory / "identity.json").load, agent.id)
            assert identity is not None
            assert not identity.expired(dt.datetime.now(dt.UTC))
            # They have learnt both certificates of the authority.
            assert identity.ca_certificate.count("BEGIN CERTIFICATE") == 2
        await endpoint.delete()
        await gang.terminate()
        await gang.wait_ended()
