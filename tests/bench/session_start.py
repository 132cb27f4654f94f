"""How long a session takes from request to RUNNING, seen by a watching client. Run as root;
each line is `name value unit peer ratio`.

One node, one manager with an embedded database in its durable settings. The peer of a whole session is the request
alone, that is one committed CreateSession, in the same run: what is above it is scheduling, the way to the agent,
the kernel's start, and the way back.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import TYPE_CHECKING

from retinue.devtools.cluster import Cluster, ClusterOptions

if TYPE_CHECKING:
    from retinue.client.aio import Client

ROUNDS = 30


async def start(client: Client, size: int) -> tuple[float, float]:
    """Seconds until the request was answered, and until the session ran."""
    began = time.perf_counter()
    session = await client.sessions.create(
        type="interactive",
        cluster_size=size,
        cluster_mode="multi-node",
        slots={"cpu": "0.1", "mem": "32m"},
        termination_grace=0,
    )
    answered = time.perf_counter()
    await session.wait("RUNNING", timeout=60)
    running = time.perf_counter()
    await session.terminate()
    await session.wait_ended(60)
    return answered - began, running - began


async def main() -> None:
    """Prints the figures."""
    async with Cluster(options=ClusterOptions(agents=1)) as cluster, cluster.client() as client:
        for size in (1, 4):
            await start(client, size)
            rounds = [await start(client, size) for _ in range(ROUNDS)]
            request = statistics.median(answered for answered, _ in rounds)
            whole = statistics.median(running for _, running in rounds)
            print(
                f"create_to_running_{size} {whole * 1000:.1f} ms create_session={request * 1000:.1f} {whole / request:.2f}"
            )


if __name__ == "__main__":
    asyncio.run(main())
