"""What is not known does not count as idle: managers and agents are killed while sessions are unused for longer than
their policy allows.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration

from retinue.manager.v1 import fleet_service_pb2
from retinue.manager.v1 import idle_pb2 as pb
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.aio import Client
    from retinue.client.sessions import Session
    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")


def seconds(number: float) -> Duration:
    duration = Duration()
    duration.FromTimedelta(dt.timedelta(seconds=number))
    return duration


@pytest_asyncio.fixture(loop_scope="session")
async def agent(client: Client, cluster: Cluster) -> AsyncIterator[int]:
    """The agent of the sessions; it runs afterwards, and its group has no policy."""
    yield 1
    await cluster.start_manager()
    await cluster.start_agent(1)
    await client.resource_groups.update("default", idle_policy=pb.IdlePolicy())
    async for session in client.sessions.list():
        await session.terminate(force=True)
        await session.wait_ended(NEVER)


async def checks(session: Session) -> dict[int, pb.IdleCheck]:
    return {check.checker: check for check in (await session.refresh()).view.idle_checks}


async def left(session: Session) -> float:
    return (await checks(session))[pb.IDLE_CHECKER_INTERACTION].remaining.ToNanoseconds() / 1e9


async def test_what_is_not_known_is_not_idle(client: Client, cluster: Cluster, agent: int) -> None:
    # So long that whatever else takes time here ends nothing.
    policy = pb.IdlePolicy(interaction_timeout=seconds(1800), warning=seconds(1))
    await client.resource_groups.update("default", idle_policy=policy)
    place = cluster.agents[agent].id
    unused, quiet = [
        await client.sessions.create(
            type=kind, command=["sleep", "1000"], slots={"cpu": "0.5", "mem": "64m"}, agents=[place],
            agent_choice="strict", termination_grace=0,
        )
        for kind in ("interactive", "batch")
    ]  # fmt: skip
    await asyncio.gather(*(session.wait("RUNNING", timeout=NEVER) for session in (unused, quiet)))
    # While no manager serves, no user can reach it.
    began = time.monotonic()
    before = await left(unused)
    await cluster.manager.kill()
    down = time.monotonic()
    await asyncio.sleep(3)  # the length of the fault: enough to be seen beside the tolerance of a second
    down = time.monotonic() - down
    await cluster.start_manager()
    await eventually(lambda: left(unused), lambda now: now >= before - (time.monotonic() - began) + down - 1)
    await cluster.wait_agent(agent)
    # While its agent is out of reach, no user can reach it either, and nothing is known of its use.
    policy = pb.IdlePolicy(
        interaction_timeout=seconds(1800),
        warning=seconds(1),
        join=pb.IDLE_JOIN_ANY,
        utilization=pb.UtilizationPolicy(window=seconds(5), thresholds={"cpu": 50}),
    )
    await cluster.agents[agent].process.kill()
    await client.resource_groups.update("default", idle_policy=policy)
    lost = fleet_service_pb2.AGENT_STATE_LOST
    await eventually(lambda: client.agents.get(place), lambda found: found.state == lost)
    known = [check.status for session in (unused, quiet) for check in (await checks(session)).values()]
    assert known == [pb.IDLE_STATUS_NO_DATA] * 3
    assert {session.state for session in (unused, quiet)} == {"RUNNING"}
    # Back again, both have a window of their time, and then their end.
    await cluster.start_agent(agent)
    for session in (unused, quiet):
        await session.wait_ended(NEVER)
        assert session.view.reason == "IDLE_UTILIZATION"
