"""Agents that are cut off, hang or are dead for so long that they are lost: their sessions say so, and batch sessions
are run again without ever running twice.
"""

from __future__ import annotations

import asyncio
import signal
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.manager.v1 import fleet_service_pb2
from tests.faults.counting import agent_of, count_on, start_counting
from tests.faults.cutting import cut_off
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from retinue.client.aio import Client
    from retinue.client.sessions import Session
    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")

# Says that it is there, by the clock that all kernels of this machine share, in a file that outlives it.
SIGNS = "while read -r up _ < /proc/uptime; do echo $up; sleep 0.05; done > /signs/$RETINUE_ATTEMPT"


async def test_lost_agent_is_a_condition_of_its_sessions_until_it_returns(client: Client, cluster: Cluster) -> None:
    counting = await start_counting(client)
    lost = agent_of(cluster, counting, 2)
    await cluster.agents[lost].process.kill()
    async for event in client.sessions.watch(after_revision=counting.revision, session_id=counting.id):
        if event.HasField("reason_changed"):
            found = {condition.type for condition in event.reason_changed.conditions}
            # It is not reached before it is lost.
            assert found <= {"AGENT_LOST", "AGENT_NOT_REACHED"}
            if "AGENT_LOST" in found:
                break
    else:
        raise AssertionError("the watch ended")
    assert (await counting.refresh()).state == "RUNNING"
    assert "AGENT_LOST" in {condition.type for condition in counting.view.conditions}
    agent = await client.agents.get(cluster.agents[lost].id)
    assert agent.state == fleet_service_pb2.AGENT_STATE_LOST
    # Why it is, too.
    (condition,) = agent.conditions
    assert (condition.type, condition.reason) == (fleet_service_pb2.AGENT_CONDITION_TYPE_NOT_REACHED, "REFUSED")
    await cluster.start_agent(lost)
    await count_on(client, counting)
    await eventually(counting.refresh, lambda found: not found.view.conditions)
    await counting.terminate()
    await counting.wait_ended(NEVER)
    assert not await cluster.wait_clean(NEVER)


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


async def first_try(client: Client, shared: Path) -> tuple[Session, str, set[int]]:
    """A session that is tried twice, in its first try; the mark of its processes, and the one there is."""
    marker = f"tried-{uuid.uuid4().hex[:12]}"
    session = await client.sessions.create(
        type="batch",
        command=["sh", "-c", f"{SIGNS}; : {marker}"],
        mounts=[(str(shared), "/signs", True)],
        max_attempts=2,
        retry_backoff=0.0,
    )
    await session.wait("RUNNING", timeout=NEVER)
    return (
        session,
        marker,
        await eventually(lambda: asyncio.to_thread(processes, marker), lambda found: len(found) == 1),
    )


async def second_try(session: Session, marker: str, first: set[int]) -> set[int]:
    """Waits for the second try, and returns its process: there is never more than one."""

    def look() -> set[int]:
        found = processes(marker)
        assert len(found) <= 1
        return found

    second = await eventually(lambda: asyncio.to_thread(look), lambda found: not found <= first)
    await eventually(session.refresh, lambda found: (found.state, found.kernels[0].attempt) == ("RUNNING", 2))
    assert session.view.retries == 1
    return second


async def check_signs(shared: Path) -> None:
    """The last sign of the first try is older than the first one of the second."""

    def signs(attempt: int) -> list[float]:
        # What was killed may have been about to write more.
        return [
            float(line) for line in (shared / str(attempt)).read_text().splitlines(keepends=True) if line[-1] == "\n"
        ]

    second = await eventually(lambda: signs(2), ignoring=FileNotFoundError)
    assert max(signs(1)) < min(second)


async def test_a_try_on_a_node_that_is_cut_off_ends_before_the_next_begins(
    client: Client, cluster: Cluster, shared: Path
) -> None:
    session, marker, first = await first_try(client, shared)
    agent = cluster.agents[agent_of(cluster, session)]
    async with cut_off(agent):
        await second_try(session, marker, first)
    assert session.kernels[0].agent != agent.id
    await check_signs(shared)
    await session.terminate(force=True)
    await session.wait_ended(NEVER)
    assert not await cluster.wait_clean(NEVER)


async def test_a_try_of_an_agent_that_hangs_ends_before_the_next_begins(
    client: Client, cluster: Cluster, shared: Path
) -> None:
    session, marker, first = await first_try(client, shared)
    agent = cluster.agents[agent_of(cluster, session)]
    # Its node is whole: nothing but the agent's process stands still.
    agent.process.signal(signal.SIGSTOP)
    try:
        second = await second_try(session, marker, first)
    finally:
        agent.process.signal(signal.SIGCONT)
    assert session.kernels[0].agent != agent.id
    await check_signs(shared)
    # Back again, it starts what it is sent now, and nothing of what it was sent before.
    await cluster.wait_agent(cluster.agents.index(agent))
    later = await client.sessions.create(type="batch", command=["true"], agents=[agent.id], agent_choice="strict")
    await later.wait_ended(NEVER)
    assert later.result == "SUCCESS"
    assert await asyncio.to_thread(processes, marker) == second
    await session.terminate(force=True)
    await session.wait_ended(NEVER)
    assert not await cluster.wait_clean(NEVER)
