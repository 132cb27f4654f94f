"""Sessions that do nothing, from submit to finished, through two real agents with null kernels and a real database;
peer: Slurm.

Ours: one `BatchCreateSessions` of all of them, to the moment when no session is live, asked over the API. PostgreSQL
keeps its durable settings, agents speak mutual TLS, everything goes through the same code as with real kernels but the
kernel itself. Slurm's: one job array, the fastest way it has, on the same machine right after,
with as many processors in name. Rounds alternate; each is reported by its median.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from typing import TYPE_CHECKING

from retinue.client.spec import session_spec
from retinue.devtools.cluster import Cluster, ClusterOptions
from tests.bench import end_politely, report, slurm

if TYPE_CHECKING:
    from retinue.client.aio import Client

AGENTS = 2


async def ours(client: Client, count: int, limit_seconds: float) -> float:
    """Sessions finished a second."""
    spec = session_spec(type="batch", command=["true"], slots={"cpu": "1", "mem": "1m"})
    begin = time.perf_counter()
    response = await client.sessions.create_many([spec] * count)
    if any(not result.HasField("accepted") for result in response.results):
        raise RuntimeError("a session was refused")
    async with asyncio.timeout(limit_seconds):
        while [session async for session in client.sessions.list(limit=1)]:
            await asyncio.sleep(0.05)
    return count / (time.perf_counter() - begin)


def peer(cluster: slurm.Slurm, count: int, limit_seconds: float) -> float:
    """Jobs finished a second."""
    finished, seconds = cluster.run_jobs(count, limit_seconds)
    return finished / seconds


async def main(count: int, jobs: int, rounds: int) -> None:
    """Prints one line for each size."""
    options = ClusterOptions(
        agents=AGENTS,
        slots={"cpu": str(max(slurm.CPUS, count)), "mem": "64g"},
        prefix="rt-bench-",
        agent_arguments=("--null-kernels",),
    )
    async with contextlib.AsyncExitStack() as stack:
        other = None
        if jobs:
            try:
                manager = slurm.running()
                other = await asyncio.to_thread(manager.__enter__)
                stack.callback(manager.__exit__, None, None, None)
            except slurm.SlurmError as error:
                sys.stderr.write(f"no peer: {error}\n")
        cluster = await stack.enter_async_context(Cluster(options=options))
        client = await stack.enter_async_context(cluster.client())
        await ours(client, 100, 60)
        values, peers = [], []
        for _ in range(rounds):
            values.append(await ours(client, count, 180))
            if other is not None:
                peers.append(await asyncio.to_thread(peer, other, jobs, 60))
    report(
        "noop-sessions",
        statistics.median(values),
        "sessions/s",
        statistics.median(peers) if peers else None,
        spread=values,
    )


if __name__ == "__main__":
    end_politely()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="sessions in a round")
    parser.add_argument("--jobs", type=int, default=2_000, help="jobs of the peer in a round; 0 leaves it out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small, for a look")
    given = parser.parse_args()
    if given.quick:
        given.count, given.jobs, given.rounds = 1_000, 300, 1
    asyncio.run(main(given.count, given.jobs, given.rounds))
