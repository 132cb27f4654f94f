"""A firewall closes the port of an agent that is heard all the while: agent and sessions say so, and nothing waits for
ever for what runs there.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from typing import TYPE_CHECKING

import pytest

from retinue.client import enum_names
from retinue.client.aio import Client
from retinue.client.errors import Unavailable
from retinue.client.transport.backoff import RetryBudget
from retinue.devtools.cluster import AGENT_PORT, Cluster, LocalAgent
from retinue.manager.agent_rpc.dialer import IDLE_SECONDS
from retinue.manager.v1 import fleet_service_pb2
from tests.integration.client.command.conftest import Program, environment, retinue
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.kernel.attachment import Attachment
    from retinue.client.logs import LogChunk
    from retinue.client.sessions import Session

__all__ = ["environment", "retinue"]

pytestmark = pytest.mark.asyncio(loop_scope="session")

COUNT = "n=0; while true; do n=$((n+1)); echo $n; sleep 0.2; done"
BRIEF = RetryBudget(total=3.0)


@contextlib.asynccontextmanager
async def closed(agent: LocalAgent, verdict: str) -> AsyncIterator[None]:
    """No new connection gets to an agent's port; those that there are go on."""
    assert agent.node is not None
    in_node = ["ip", "netns", "exec", agent.node.namespace, "nft"]

    async def nft(text: str) -> None:
        await asyncio.to_thread(subprocess.run, [*in_node, text], check=True, timeout=NEVER)

    await nft(
        "table inet closed { chain arrivals { type filter hook input priority -50;"
        f" tcp dport {AGENT_PORT} tcp flags & (syn | ack) == syn {verdict}; }}; }}"
    )
    try:
        yield
    finally:
        await nft("delete table inet closed")


async def conditions(client: Client, agent: LocalAgent) -> dict[str, fleet_service_pb2.AgentCondition]:
    found = await client.agents.get(agent.id)
    assert found.state == fleet_service_pb2.AGENT_STATE_ALIVE
    return {enum_names.name_of(enum_names.AGENT_CONDITION, item.type): item for item in found.conditions}


async def hostnames(chunks: AsyncIterator[LogChunk], heard: set[str]) -> None:
    """Adds those that print to `heard`."""
    async for chunk in chunks:
        heard.add(chunk.hostname)


async def failure_of(chunks: AsyncIterator[LogChunk]) -> Unavailable | None:
    try:
        await hostnames(chunks, set())
    except Unavailable as error:
        return error
    return None


async def run(command: Attachment) -> None:
    async with command:
        async for _ in command:
            pass


@contextlib.asynccontextmanager
async def two_kernels(client: Client) -> AsyncIterator[Session]:
    """A session that prints all the while, too large for one node."""
    session = await client.sessions.create(
        type="interactive",
        command=["sh", "-c", COUNT],
        sub_command=["sh", "-c", COUNT],
        cluster_size=2,
        cluster_mode="multi-node",
        slots={"cpu": "3", "mem": "64m"},
    )
    try:
        yield await session.wait("RUNNING", timeout=NEVER)
    finally:
        await session.terminate(force=True)
        await session.wait_ended(NEVER)


@pytest.mark.parametrize(("verdict", "cause"), [("drop", "TIMED_OUT"), ("reject with tcp reset", "REFUSED")])
async def test_an_agent_that_is_heard_and_not_reached_says_so(
    client: Client, cluster: Cluster, retinue: Program, verdict: str, cause: str
) -> None:
    async with two_kernels(client) as session:
        await check(client, cluster, retinue, session, verdict, cause)


async def check(client: Client, cluster: Cluster, retinue: Program, session: Session, verdict: str, cause: str) -> None:
    agents = {agent.id: agent for agent in cluster.agents}
    agent = agents[next(kernel.agent for kernel in session.kernels if kernel.hostname == "sub1")]
    async with Client.from_settings(cluster.settings, retry_budget=BRIEF) as brief, closed(agent, verdict):
        # A connection that there is serves calls until it has been idle for a while, which looks must not prevent.
        failure = None
        while failure is None:
            await asyncio.sleep(IDLE_SECONDS + 1)
            failure = await failure_of(brief.sessions.logs(session.id, "sub1"))
        assert failure.reason == "AGENT_NOT_REACHED"
        assert failure.metadata == {"agent": agent.id, "cause": cause, "hostname": "sub1"}
        # The address is not for users.
        assert agent.id in failure.message
        assert str(AGENT_PORT) not in failure.message
        found = await eventually(lambda: conditions(client, agent), lambda found: "NOT_REACHED" in found)
        assert found["NOT_REACHED"].reason == cause
        assert str(AGENT_PORT) in found["NOT_REACHED"].message
        assert found["NOT_REACHED"].blocks_placement
        await eventually(
            session.refresh, lambda now: [item.type for item in now.view.conditions] == ["AGENT_NOT_REACHED"]
        )
        assert session.state == "RUNNING"
        # That main1 prints all the while is no progress of sub1.
        heard: set[str] = set()
        with pytest.raises(Unavailable, match="is not reached"):
            await hostnames(brief.sessions.logs(session.id, all_kernels=True, follow=True), heard)
        assert heard == {"main1"}
        with pytest.raises(Unavailable, match="is not reached"):
            await run(brief.sessions.attach(session.id, ["true"], "sub1"))
        waiting = await retinue.start("logs", "-k", "sub1", session.id)
        try:
            assert waiting.stderr is not None
            line = (await asyncio.wait_for(waiting.stderr.readline(), NEVER)).decode()
            assert line.startswith(f"retinue: agent {agent.id} is not reached: ")
            assert "still trying for" in line
        finally:
            waiting.terminate()
            await waiting.communicate()
        shown = await retinue("get", session.id)
        assert "AGENT_NOT_REACHED" in shown.out
        assert "AGENT_NOT_REACHED" in (await retinue("explain", session.id)).out
        assert "ALIVE (NOT_REACHED)" in (await retinue("agents", "ls")).out
    await eventually(lambda: conditions(client, agent), lambda found: not found)
    await eventually(session.refresh, lambda now: not now.view.conditions)
    assert b"".join([chunk.data async for chunk in client.sessions.logs(session.id, "sub1")])
