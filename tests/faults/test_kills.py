"""Processes are killed while a cluster session runs: its kernels do not notice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from retinue.client.errors import Unavailable
from retinue.devtools.threads import in_thread
from tests.faults.counting import agent_of, count_on, start_counting, work_directory
from tests.support.eventually import NEVER, eventually
from tests.support.postmaster import kill_database

if TYPE_CHECKING:
    from retinue.client.aio import Client
    from retinue.client.sessions import Session
    from retinue.devtools.cluster import Cluster

Happening = Callable[[], Awaitable[object]]

pytestmark = pytest.mark.asyncio(loop_scope="session")

COUNT_SLEEPERS = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c '^4321$'"


@pytest_asyncio.fixture(loop_scope="session")
async def counting(client: Client) -> Session:
    return await start_counting(client)


async def test_killed_agent_finds_its_kernels_again(client: Client, cluster: Cluster, counting: Session) -> None:
    await cluster.agents[0].process.kill()
    await cluster.start_agent(0)
    await count_on(client, counting)
    assert (await counting.refresh()).state == "RUNNING"
    await counting.terminate()
    await counting.wait_ended(NEVER)
    assert not await cluster.wait_clean(NEVER)


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
    index = agent_of(cluster, await counting.refresh())
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
                assert (await anext(aiter(command))).data == b"on\n"
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
    await counting.wait_ended(NEVER)
    assert not await cluster.wait_clean(NEVER)


async def test_killed_manager_finds_its_sessions_again(client: Client, cluster: Cluster, counting: Session) -> None:
    await cluster.manager.kill()
    await cluster.start_manager()
    await count_on(client, counting)
    assert (await counting.refresh()).state == "RUNNING"
    await counting.terminate()
    await counting.wait_ended(NEVER)
    assert not await cluster.wait_clean(NEVER)


async def test_everything_killed_at_once(client: Client, cluster: Cluster, counting: Session) -> None:
    await cluster.manager.kill()
    await asyncio.gather(*(cluster.agents[index].process.kill() for index in range(len(cluster.agents))))
    await cluster.start_manager()
    for index in range(len(cluster.agents)):
        await cluster.start_agent(index)
    await count_on(client, counting)
    await counting.terminate()
    await counting.wait_ended(NEVER)
    assert not await cluster.wait_clean(NEVER)


async def test_exit_while_its_agent_is_dead_is_delivered(client: Client, cluster: Cluster) -> None:
    session = await client.sessions.create(
        type="batch",
        command=["sh", "-c", "echo begin; until [ -e go ]; do sleep 0.05; done; echo end; exit 7"],
    )
    await session.wait("RUNNING", timeout=NEVER)
    index = agent_of(cluster, session)
    await cluster.agents[index].process.kill()
    # It ends while no agent observes it.
    agent = cluster.agents[index]
    (work_directory(cluster, session.kernels[0]) / "go").touch()
    await eventually(lambda: in_thread(cluster.find_leftovers, agent), lambda found: not found.processes)
    await cluster.start_agent(index)
    await session.wait_ended(NEVER)
    assert (session.state, session.result, session.exit_code) == ("TERMINATED", "FAILED", 7)
    text = b"".join([chunk.data async for chunk in client.sessions.logs(session.id)])
    assert text == b"begin\nend\n"


async def test_session_terminated_while_its_agent_is_dead_ends_when_it_returns(
    client: Client, cluster: Cluster
) -> None:
    session = await client.sessions.create(type="interactive")
    await session.wait("RUNNING", timeout=NEVER)
    index = agent_of(cluster, session)
    await cluster.agents[index].process.kill()
    await session.terminate()
    assert (await session.refresh()).state == "TERMINATING"
    await cluster.start_agent(index)
    await session.wait_ended(NEVER)
    assert not await cluster.wait_clean(NEVER)


async def test_many_sessions_leave_nothing(client: Client, cluster: Cluster) -> None:
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
            await session.wait_ended(NEVER)
            assert session.result == "SUCCESS", session.view

    gate = asyncio.Semaphore(8)
    async with asyncio.TaskGroup() as group:
        for number in range(60):
            group.create_task(one(number, gate))
    assert not await cluster.wait_clean(NEVER)
    assert list(await client.resource_groups.shares()) == []


async def test_killed_database_comes_back(client: Client, cluster: Cluster, counting: Session) -> None:
    await kill_database(cluster)
    another = await eventually(
        lambda: client.sessions.create(type="batch", command=["true"], slots={"cpu": "0.5", "mem": "32m"}),
        ignoring=Unavailable,
    )
    await another.wait_ended(NEVER)
    assert another.result == "SUCCESS"
    await count_on(client, counting)
    assert (await counting.refresh()).state == "RUNNING"
    await counting.terminate()
    await counting.wait_ended(NEVER)
    assert not await cluster.wait_clean(NEVER)
