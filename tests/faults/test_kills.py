"""Processes are killed while a cluster session runs: its kernels do not notice."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import pytest_asyncio

from retinue.client.aio import Client
from retinue.client.errors import Unavailable
from retinue.client.session import Session
from retinue.devtools.cluster import Cluster
from retinue.devtools.threads import in_thread
from retinue.manager.v1 import fleet_service_pb2
from tests.support.eventually import eventually

Happening = Callable[[], Awaitable[object]]

pytestmark = pytest.mark.asyncio(loop_scope="session")

COUNT = "n=0; while true; do n=$((n+1)); echo $$ $n; sleep 0.2; done"
COUNT_SLEEPERS = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c '^4321$'"


@pytest_asyncio.fixture(loop_scope="session")
async def counting(client: Client) -> Session:
    session = await client.sessions.create(
        type="interactive",
        command=["sh", "-c", COUNT],
        sub_command=["sh", "-c", COUNT],
        cluster_size=3,
        cluster_mode="multi-node",
        slots={"cpu": "2", "mem": "64m"},
    )
    return await session.wait("RUNNING", timeout=60)


async def counted(client: Client, session: Session, hostname: str) -> list[int]:
    """The numbers a kernel has counted; its process was one and the same all along."""
    text = b"".join([chunk.data async for chunk in client.sessions.logs(session.id, hostname)]).decode()
    pairs = re.findall(r"^(\d+) (\d+)$", text, re.MULTILINE)
    assert len({pid for pid, _ in pairs}) == 1
    return [int(number) for _, number in pairs]


def more_than(length: int, numbers: list[int]) -> bool:
    return len(numbers) > length


async def count_on(client: Client, session: Session) -> None:
    """Waits until every kernel has counted on, without a gap."""
    before = {kernel.hostname: len(await counted(client, session, kernel.hostname)) for kernel in session.kernels}
    for hostname, length in before.items():
        longer = partial(more_than, length + 2)
        numbers = await eventually(partial(counted, client, session, hostname), longer)
        assert numbers == list(range(1, len(numbers) + 1))


async def test_killed_agent_finds_its_kernels_again(client: Client, cluster: Cluster, counting: Session) -> None:
    await cluster.agents[0].process.kill()
    await cluster.start_agent(0)
    await count_on(client, counting)
    assert (await counting.refresh()).state == "RUNNING"
    await counting.terminate()
    await counting.wait_ended(60)
    assert not await cluster.wait_clean(60)


async def in_kernel(client: Client, session: Session, script: str) -> str:
    out = b""
    async with session.attach(["sh", "-c", script]) as command:
        async for piece in command:
            out += piece.data
    return out.decode()


async def test_streams_over_killed_agents_and_managers(client: Client, cluster: Cluster, counting: Session) -> None:
    """Output continues without a gap; a command that a user attached ends, with all that it started."""
    numbers: list[int] = []

    async def follow() -> None:
        rest = b""
        async for chunk in counting.logs(follow=True):
            *lines, rest = (rest + chunk.data).split(b"\n")
            numbers.extend(int(line.split()[1]) for line in lines)

    async def counted_on() -> None:
        before = len(numbers)
        await eventually(lambda: len(numbers) >= before + 5)

    following = asyncio.create_task(follow())
    agent_id = (await counting.refresh()).kernels[0].agent
    index = next(index for index, agent in enumerate(cluster.agents) if agent.id == agent_id)
    try:
        await counted_on()
        ends: tuple[tuple[Happening, Happening], ...] = (
            (cluster.agents[index].process.kill, lambda: cluster.start_agent(index)),
            (cluster.manager.kill, cluster.start_manager),
        )
        for kill, start in ends:
            async with counting.attach(
                ["sh", "-c", "trap '' HUP; setsid sleep 4321 & sleep 4321 & echo on; wait"]
            ) as command:
                async for piece in command:
                    assert piece.data == b"on\n"
                    break
                await kill()
                with pytest.raises(Unavailable):
                    async for _ in command:
                        pass
            await start()
            await counted_on()
            await eventually(lambda: in_kernel(client, counting, COUNT_SLEEPERS), lambda found: int(found) == 0)
        assert numbers == list(range(1, len(numbers) + 1))
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    await counting.terminate()
    await counting.wait_ended(60)
    assert not await cluster.wait_clean(60)


async def test_killed_manager_finds_its_sessions_again(client: Client, cluster: Cluster, counting: Session) -> None:
    await cluster.manager.kill()
    await cluster.start_manager()
    await count_on(client, counting)
    assert (await counting.refresh()).state == "RUNNING"
    await counting.terminate()
    await counting.wait_ended(60)
    assert not await cluster.wait_clean(60)


async def test_everything_killed_at_once(client: Client, cluster: Cluster, counting: Session) -> None:
    await cluster.manager.kill()
    await asyncio.gather(*(cluster.agents[index].process.kill() for index in range(len(cluster.agents))))
    await cluster.start_manager()
    for index in range(len(cluster.agents)):
        await cluster.start_agent(index)
    await count_on(client, counting)
    await counting.terminate()
    await counting.wait_ended(60)
    assert not await cluster.wait_clean(60)


async def test_exit_while_its_agent_is_dead_is_delivered(client: Client, cluster: Cluster) -> None:
    session = await client.sessions.create(
        type="batch",
        command=["sh", "-c", "echo begin; until [ -e go ]; do sleep 0.05; done; echo end; exit 7"],
    )
    await session.wait("RUNNING", timeout=60)
    index = next(n for n, agent in enumerate(cluster.agents) if agent.id == session.kernels[0].agent)
    await cluster.agents[index].process.kill()
    # It ends while no agent observes it.
    agent, kernel = cluster.agents[index], session.kernels[0]
    (agent.state_directory / "scratch" / f"{kernel.id}.{kernel.epoch}" / "go").touch()
    await eventually(lambda: in_thread(cluster.find_leftovers, agent), lambda found: not found.processes)
    await cluster.start_agent(index)
    await session.wait_ended(60)
    assert (session.state, session.result, session.exit_code) == ("TERMINATED", "FAILURE", 7)
    text = b"".join([chunk.data async for chunk in client.sessions.logs(session.id)])
    assert text == b"begin\nend\n"


async def test_session_terminated_while_its_agent_is_dead_ends_when_it_returns(
    client: Client, cluster: Cluster
) -> None:
    session = await client.sessions.create(type="interactive")
    await session.wait("RUNNING", timeout=60)
    index = next(n for n, agent in enumerate(cluster.agents) if agent.id == session.kernels[0].agent)
    await cluster.agents[index].process.kill()
    await session.terminate()
    assert (await session.refresh()).state == "TERMINATING"
    await cluster.start_agent(index)
    await session.wait_ended(60)
    assert not await cluster.wait_clean(60)


async def test_two_hundred_sessions_leave_nothing(client: Client, cluster: Cluster) -> None:
    async def one(number: int, gate: asyncio.Semaphore) -> None:
        async with gate:
            size = 2 if number % 4 == 0 else 1
            session = await client.sessions.create(
                type="batch",
                command=["true"],
                cluster_size=size,
                cluster_mode="multi-node",
                slots={"cpu": "0.5", "mem": "32m"},
            )
            await session.wait_ended(120)
            assert session.result == "SUCCESS", session.view

    gate = asyncio.Semaphore(8)
    async with asyncio.TaskGroup() as group:
        for number in range(200):
            group.create_task(one(number, gate))
    assert not await cluster.wait_clean(60)
    assert list(await client.resource_groups.shares()) == []


async def test_lost_agent_is_a_condition_of_its_sessions_until_it_returns(
    client: Client, cluster: Cluster, counting: Session
) -> None:
    lost = next(n for n, agent in enumerate(cluster.agents) if agent.id == counting.kernels[2].agent)
    await cluster.agents[lost].process.kill()
    async for event in client.sessions.watch(after_revision=counting.revision, session_id=counting.id):
        if event.HasField("pending_reason_changed") and event.pending_reason_changed.conditions:
            assert [condition.type for condition in event.pending_reason_changed.conditions] == ["AGENT_LOST"]
            break
    assert (await counting.refresh()).state == "RUNNING"
    assert counting.view.conditions[0].type == "AGENT_LOST"
    agent = await client.agents.get(cluster.agents[lost].id)
    assert agent.state == fleet_service_pb2.AGENT_STATE_LOST
    await cluster.start_agent(lost)
    await count_on(client, counting)
    await eventually(counting.refresh, lambda found: not found.view.conditions)
    await counting.terminate()
    await counting.wait_ended(60)
    assert not await cluster.wait_clean(60)


async def test_killed_database_comes_back(client: Client, cluster: Cluster, counting: Session) -> None:
    directory = next(cluster.directory.glob("manager/postgres*"))
    postmaster = int((await asyncio.to_thread(next(directory.rglob("postmaster.pid")).read_text)).splitlines()[0])
    os.kill(postmaster, signal.SIGKILL)
    another = await eventually(
        lambda: client.sessions.create(type="batch", command=["true"], slots={"cpu": "0.5", "mem": "32m"}),
        ignoring=Unavailable,
    )
    await another.wait_ended(60)
    assert another.result == "SUCCESS"
    await count_on(client, counting)
    assert (await counting.refresh()).state == "RUNNING"
    await counting.terminate()
    await counting.wait_ended(60)
    assert not await cluster.wait_clean(60)
