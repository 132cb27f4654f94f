"""Docker engines, or what they keep containers by, are killed under running kernels: the kernels do not notice."""

from __future__ import annotations

import operator
import signal
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from retinue.devtools.threads import in_thread
from tests.faults.counting import COUNT, count_on, work_directory
from tests.integration.agent.docker.cluster import DockerCluster
from tests.integration.agent.docker.engine import IMAGE, install
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.aio import Client
    from retinue.client.sessions import Session

pytestmark = pytest.mark.asyncio(loop_scope="module")

ENDS = {
    "exit 7": ("EXITED", 7),
    # One block that does not fit into the kernel's memory.
    "dd if=/dev/zero of=/dev/null bs=256M count=1": ("OOM_KILLED", 137),
    "kill -9 $$": ("EXITED", 137),
}
"""How commands end, and what has to be known of it."""
MARK = "/home/work/mark"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[DockerCluster]:
    install()
    async with DockerCluster(live_restore=True) as cluster:
        yield cluster


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(cluster: DockerCluster) -> AsyncIterator[Client]:
    async with cluster.client() as client:
        yield client


async def start(client: Client, command: str, *, size: int = 1) -> Session:
    session = await client.sessions.create(
        type="batch",
        image=IMAGE,
        command=["sh", "-c", command],
        sub_command=["sh", "-c", command],
        cluster_size=size,
        cluster_mode="multi-node" if size > 1 else "single-node",
        slots={"cpu": "2" if size > 1 else "0.5", "mem": "32m"},
    )
    return await session.wait("RUNNING", timeout=NEVER)


def touch_mark(cluster: DockerCluster, session: Session) -> None:
    """Lets a command continue that waits for it; neither the engine nor the agent is needed."""
    (work_directory(cluster, session.kernels[0]) / "mark").touch()


def pids(cluster: DockerCluster) -> dict[str, int]:
    """First processes of all containers that run, by name."""
    found = {}
    for engine in cluster.engines.values():
        client = engine.client()
        for container in client.containers():
            found[container["Names"][0]] = client.inspect_container(container["Id"])["State"]["Pid"]
        client.close()
    return found


async def ended(sessions: list[Session]) -> list[tuple[str, int | None]]:
    """Reason and exit code of each session's kernel."""
    for session in sessions:
        await session.wait_ended(NEVER)
    return [(session.kernels[0].reason, session.exit_code) for session in sessions]


@pytest.mark.parametrize("agents_too", [False, True])
async def test_killed_engines(cluster: DockerCluster, client: Client, agents_too: bool) -> None:
    """Kernels keep running; ends of kernels while the engine is down are reported once it is back,
    also after a restart of the agent or manager.
    """
    counting = await start(client, COUNT, size=2)
    ending = [await start(client, f"until [ -e {MARK} ]; do sleep 0.05; done; {end}") for end in ENDS]
    before = await in_thread(pids, cluster)
    assert len(before) == 2 + len(ENDS)
    if agents_too:
        for index in range(len(cluster.agents)):
            await cluster.agents[index].process.kill()
    for engine in cluster.engines.values():
        await in_thread(engine.end, signal.SIGKILL)
    for session in ending:
        touch_mark(cluster, session)
    if not agents_too:
        await count_on(client, counting)
    for engine in cluster.engines.values():
        await in_thread(engine.start)
    if agents_too:
        # The engines have cleared away what ended, and agents find nothing of it but what it said itself.
        await start_agents(cluster)
    assert await ended(ending) == list(ENDS.values())
    await count_on(client, counting)
    assert (await counting.refresh()).state == "RUNNING"
    assert (await in_thread(pids, cluster)).items() <= before.items()
    await gone(cluster, counting)


async def test_killed_containerd(cluster: DockerCluster, client: Client) -> None:
    counting = await start(client, COUNT, size=2)
    ending = [await start(client, f"until [ -e {MARK} ]; do sleep 0.05; done; {end}") for end in ENDS]
    before = await in_thread(pids, cluster)
    for engine in cluster.engines.values():
        await in_thread(engine.kill_containerd)
    for session in ending:
        touch_mark(cluster, session)
    assert await ended(ending) == list(ENDS.values())
    await count_on(client, counting)
    assert (await counting.refresh()).state == "RUNNING"
    assert (await in_thread(pids, cluster)).items() <= before.items()
    # The engine creates again.
    assert await ended([await start(client, "sleep 0.1; exit 3")]) == [("EXITED", 3)]
    await gone(cluster, counting)


async def start_agents(cluster: DockerCluster) -> None:
    """Waits until they look after their kernels: to the manager they were alive all along."""
    logs = [cluster.directory / "logs" / f"{agent.id}.log" for agent in cluster.agents]

    def listened() -> list[int]:
        return [log.read_text().count(" listens at ") for log in logs]

    before = await in_thread(listened)
    for index in range(len(cluster.agents)):
        await cluster.start_agent(index)
    await eventually(lambda: in_thread(listened), lambda now: all(map(operator.gt, now, before)))


async def gone(cluster: DockerCluster, session: Session) -> None:
    await session.terminate(force=True)
    await session.wait_ended(NEVER)
    assert not await cluster.wait_clean(NEVER)
    await eventually(lambda: in_thread(cluster.containers), [].__eq__)
