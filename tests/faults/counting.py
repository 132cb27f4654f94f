"""Kernels that count, so that it shows whether they continue, and their directories on this machine."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.client.aio import Client
    from retinue.client.sessions import Session
    from retinue.devtools.cluster import Cluster
    from retinue.manager.v1 import session_pb2

COUNT = "n=0; while true; do n=$((n+1)); echo $$ $n; sleep 0.2; done"


async def start_counting(client: Client) -> Session:
    """Returns a session that runs: three kernels on two nodes."""
    session = await client.sessions.create(
        type="interactive",
        command=["sh", "-c", COUNT],
        sub_command=["sh", "-c", COUNT],
        cluster_size=3,
        cluster_mode="multi-node",
        slots={"cpu": "2", "mem": "64m"},
    )
    return await session.wait("RUNNING", timeout=NEVER)


async def _counted(client: Client, session: Session, hostname: str) -> list[int]:
    """Returns the numbers that a kernel has counted; its process was one and the same all along."""
    text = b"".join([chunk.data async for chunk in client.sessions.logs(session.id, hostname)]).decode()
    pairs = re.findall(r"^(\d+) (\d+)$", text, re.MULTILINE)
    assert len({pid for pid, _ in pairs}) <= 1
    return [int(number) for _, number in pairs]


def _more_than(length: int, numbers: list[int]) -> bool:
    return len(numbers) > length


async def count_on(client: Client, session: Session) -> None:
    """Waits until every kernel has counted on, without a gap."""
    before = {kernel.hostname: len(await _counted(client, session, kernel.hostname)) for kernel in session.kernels}
    assert before
    for hostname, length in before.items():
        longer = partial(_more_than, length + 2)
        numbers = await eventually(partial(_counted, client, session, hostname), longer)
        assert numbers == list(range(1, len(numbers) + 1))


def agent_of(cluster: Cluster, session: Session, kernel: int = 0) -> int:
    """Returns the index of the agent that a kernel was placed on last."""
    return [agent.id for agent in cluster.agents].index(session.kernels[kernel].agent)


def work_directory(cluster: Cluster, kernel: session_pb2.Kernel) -> Path:
    """Returns where a kernel's work directory is on this machine: neither agent nor engine is needed to write there."""
    agent = next(agent for agent in cluster.agents if agent.id == kernel.agent)
    return agent.state_directory / "scratch" / f"{kernel.id}.{kernel.attempt}"
