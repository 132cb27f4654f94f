"""Batch sessions that are run again: after failures, across restarts,
and without ever running twice when a node is cut off.
"""

from __future__ import annotations

import asyncio
import signal
import uuid
from pathlib import Path

import pytest

from retinue.client.aio import Client
from retinue.client.session import Session
from retinue.devtools.cluster import Cluster
from retinue.manager.v1 import session_pb2
from tests.faults.cutting import cut_off
from tests.support.eventually import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_each_try_has_an_epoch_and_an_output_of_its_own(client: Client) -> None:
    command = 'echo "try $RETINUE_EPOCH"; sleep 0.2; [ "$RETINUE_EPOCH" = 3 ]'
    session = await client.sessions.create(
        type="batch", command=["sh", "-c", command], max_attempts=3, retry_on_failure=True, retry_backoff=0.1
    )
    accepted = session.revision
    followed = b"".join([chunk.data async for chunk in client.sessions.logs(session.id, follow=True)])
    await session.wait_ended(60)
    assert (session.state, session.result, session.exit_code, session.view.retries) == ("TERMINATED", "SUCCESS", 0, 2)
    assert followed == b"try 1\ntry 2\ntry 3\n"
    for epoch in (1, 2, 3, 0):
        chunks = [chunk async for chunk in client.sessions.logs(session.id, epoch=epoch)]
        assert b"".join(chunk.data for chunk in chunks) == f"try {epoch or 3}\n".encode()
    events = client.sessions.watch(after_revision=accepted, session_id=session.id, until_ended=True)
    moves = [event.session_moved async for event in events if event.HasField("session_moved")]
    assert [move.retries for move in moves if move.to_state == session_pb2.SESSION_STATE_PENDING] == [1, 2]
    decided = [move.to_state for move in moves if move.result != session_pb2.SESSION_RESULT_UNDEFINED]
    assert decided == [session_pb2.SESSION_STATE_TERMINATING, session_pb2.SESSION_STATE_TERMINATED]


async def test_restarts_in_the_middle_of_tries(client: Client, cluster: Cluster) -> None:
    session = await client.sessions.create(
        type="batch",
        command=["sh", "-c", 'sleep 1; [ "$RETINUE_EPOCH" -ge 2 ]'],
        max_attempts=20,
        retry_on_failure=True,
        retry_backoff=0.5,
    )
    accepted = session.revision
    await session.wait("RUNNING", timeout=60)
    await cluster.manager.kill()
    await cluster.start_manager()
    await session.wait("PENDING", timeout=60)
    await session.wait("RUNNING", timeout=60)
    index = next(n for n, agent in enumerate(cluster.agents) if agent.id == session.kernels[0].agent)
    await cluster.agents[index].process.kill()
    await cluster.manager.kill()
    await cluster.start_agent(index, wait=False)
    await cluster.start_manager()
    await session.wait_ended(60)
    assert (session.state, session.result, session.view.retries) == ("TERMINATED", "SUCCESS", 1)
    # Whatever was killed meanwhile, the result was sent once.
    events = client.sessions.watch(after_revision=accepted, session_id=session.id, until_ended=True)
    moves = [event.session_moved async for event in events if event.HasField("session_moved")]
    decided = [move.to_state for move in moves if move.result != session_pb2.SESSION_RESULT_UNDEFINED]
    assert decided == [session_pb2.SESSION_STATE_TERMINATING, session_pb2.SESSION_STATE_TERMINATED]
    assert not await cluster.wait_clean(60)


def processes(marker: str) -> set[int]:
    """Processes of kernels, on whatever node, whose arguments hold a text;
    not what such a one is about to make into something else.
    """
    found = {}
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            try:
                arguments = (place / "cmdline").read_bytes().split(b"\0")
                parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if arguments[0] == b"sh" and marker.encode() in b" ".join(arguments):
                found[int(place.name)] = parent
    return {number for number, parent in found.items() if parent not in found}


async def first_try(client: Client) -> tuple[Session, str, set[int]]:
    """A session that is tried twice, in its first try; the mark of its processes, and the one there is."""
    marker = f"tried-{uuid.uuid4().hex[:12]}"
    session = await client.sessions.create(
        type="batch", command=["sh", "-c", f"sleep 1000; : {marker}"], max_attempts=2, retry_backoff=0.0
    )
    await session.wait("RUNNING", timeout=60)
    first = await asyncio.to_thread(processes, marker)
    assert len(first) == 1
    return session, marker, first


async def one_after_the_other(marker: str, first: set[int]) -> set[int]:
    """Waits for the second try, and returns its process: there was never more than one, and none for a while."""
    seen: list[set[int]] = []

    def look() -> set[int]:
        seen.append(processes(marker))
        assert len(seen[-1]) <= 1
        return seen[-1]

    second = await eventually(lambda: asyncio.to_thread(look), lambda found: not found <= first)
    assert set() in seen
    return second


async def test_a_try_on_a_node_that_is_cut_off_ends_before_the_next_begins(client: Client, cluster: Cluster) -> None:
    session, marker, first = await first_try(client)
    agent = next(agent for agent in cluster.agents if agent.id == session.kernels[0].agent)
    async with cut_off(agent):
        await one_after_the_other(marker, first)
    await session.wait("RUNNING", timeout=60)
    await session.refresh()
    assert (session.view.retries, session.kernels[0].epoch) == (1, 2)
    assert session.kernels[0].agent != agent.id
    await session.terminate(force=True)
    await session.wait_ended(60)
    assert not await cluster.wait_clean(60)


async def test_a_try_of_an_agent_that_hangs_ends_before_the_next_begins(client: Client, cluster: Cluster) -> None:
    session, marker, first = await first_try(client)
    agent = next(agent for agent in cluster.agents if agent.id == session.kernels[0].agent)
    # Its node is whole: nothing but the agent's process stands still.
    agent.process.signal(signal.SIGSTOP)
    try:
        second = await one_after_the_other(marker, first)
    finally:
        agent.process.signal(signal.SIGCONT)
    await session.wait("RUNNING", timeout=60)
    await session.refresh()
    assert (session.view.retries, session.kernels[0].epoch) == (1, 2)
    assert session.kernels[0].agent != agent.id
    # Back again, it starts nothing of what it was sent before.
    await cluster.wait_agent(cluster.agents.index(agent))
    assert await asyncio.to_thread(processes, marker) == second
    await session.terminate(force=True)
    await session.wait_ended(60)
    assert not await cluster.wait_clean(60)
