"""A revoked agent holds nothing up: its sessions end or run elsewhere, and its node can be let back in."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from retinue.client.aio import Client
    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def revoke(cluster: Cluster, agent_id: str) -> None:
    data = str(cluster.directory / "manager")
    command = [sys.executable, "-m", "retinue.manager.main", "revoke-agent", agent_id, "--data-dir", data]
    await asyncio.to_thread(subprocess.run, command, check=True, timeout=NEVER)


async def test_sessions_of_a_revoked_agent_come_to_an_end(client: Client, cluster: Cluster) -> None:
    agent = cluster.agents[0]
    others = {other.id for other in cluster.agents[1:]}
    kept, forced = [
        await client.sessions.create(type="interactive", agents=[agent.id], agent_choice="strict") for _ in range(2)
    ]
    retried = await client.sessions.create(
        type="batch", command=["sleep", "1000"], max_attempts=3, retry_backoff=0.0, agents=[agent.id]
    )
    for session in (kept, forced, retried):
        await session.wait("RUNNING", timeout=NEVER)
    assert retried.kernels[0].agent == agent.id
    await revoke(cluster, agent.id)
    try:
        (condition,) = (await kept.refresh()).view.conditions
        assert f"agent {agent.id} was revoked" in condition.message
        await forced.terminate(force=True)
        for session in (kept, forced):
            await session.wait_ended(NEVER)
        assert kept.view.reason == "AGENT_REVOKED"
        await retried.wait("PENDING", timeout=NEVER)
        await retried.wait("RUNNING", timeout=NEVER)
        assert retried.kernels[0].agent in others
    finally:
        await cluster.agents[0].process.stop()
        # As its administrator lets a node back in.
        token = await client.agents.create_join_token(agent_id=agent.id)
        (agent.state_directory / "identity.json").unlink()
        agent.state_directory.with_suffix(".join-token").write_text(token.token)
        await cluster.start_agent(0)
    await retried.terminate(force=True)
    await retried.wait_ended(NEVER)
    again = await client.sessions.create(type="batch", command=["true"], agents=[agent.id], agent_choice="strict")
    await again.wait_ended(NEVER)
    assert again.result == "SUCCESS"
    # What still ran on the node when it came back was of sessions that had ended.
    assert not await cluster.wait_clean(NEVER)
