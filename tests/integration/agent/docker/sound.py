"""Checks that a cluster continues as if nothing had been: one leader's term, agents alive, others placed,
nothing unforeseen in the logs.
"""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from retinue.manager.v1 import fleet_service_pb2
from tests.integration.agent.docker.engine import IMAGE
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.aio import Client, Session
    from tests.integration.agent.docker.cluster import DockerCluster

MAX_MESSAGE = 1024
"""Bytes of a session's message."""


def _terms(cluster: DockerCluster) -> list[str]:
    return re.findall(r"leading in term (\d+)", cluster.manager.log.read_text(errors="replace"))


def _stalls(cluster: DockerCluster) -> list[str]:
    """Returns the terms that ended since a machine stood still for longer than their lease."""
    pattern = r"not leading: the (?:lease|lock) of term (\d+) (?:ended before it was renewed|was lost)"
    return re.findall(pattern, cluster.manager.log.read_text(errors="replace"))


async def place_another(client: Client) -> None:
    """Runs a session of another image to its end."""
    other = await client.sessions.create(
        type="batch", image=IMAGE, command=["true"], slots={"cpu": "0.1", "mem": "32m"}
    )
    await other.wait_ended(NEVER)
    assert other.result == "SUCCESS", other.view


@asynccontextmanager
async def unharmed(cluster: DockerCluster, client: Client) -> AsyncIterator[None]:
    """Checks at its end that what was done meanwhile harmed nothing."""
    before, stalls = _terms(cluster), _stalls(cluster)
    assert before
    logs = [cluster.manager.log, *(agent.process.log for agent in cluster.agents)]
    lengths = [log.stat().st_size for log in logs]
    yield
    await place_another(client)
    # A term that ended for any other reason was harmed.
    assert len(_terms(cluster)) - len(before) <= len(_stalls(cluster)) - len(stalls)
    states = {agent.state async for agent in client.agents.list()}
    assert states == {fleet_service_pb2.AGENT_STATE_ALIVE}
    assert not await cluster.wait_clean(NEVER)
    assert not cluster.containers()
    for log, length in zip(logs, lengths, strict=True):
        _, found, traceback = log.read_bytes()[length:].decode(errors="replace").partition("Traceback")
        assert not found, f"{log.name}: {traceback[:10_000]}"


def check_message(session: Session) -> None:
    """Checks that what a session says is fit to be shown."""
    message = session.view.message
    assert message.isprintable()
    assert len(message.encode()) <= MAX_MESSAGE
