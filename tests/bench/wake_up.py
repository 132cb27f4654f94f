"""An idle cluster wakes up: from the answer to one CreateSession to the moment at which its command is at the agent;
peer: the request itself.

One agent with null kernels in a process of its own, a real manager and a real database with its durable settings. The
agent writes down when a change comes, to the millisecond; both clocks are the machine's.
Between two rounds everything comes to rest.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import re
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from typing import TYPE_CHECKING

from retinue.client.spec import session_spec
from retinue.devtools.cluster import Cluster, ClusterOptions
from tests.bench import end_politely, report

if TYPE_CHECKING:
    from retinue.client.aio import Client

_ARRIVAL = re.compile(r"^\S+ (\d\d):(\d\d):(\d\d\.\d{3}) debug +\S+: wanted: (.*)$", re.MULTILINE)


async def submit(client: Client) -> tuple[str, float, float]:
    """The id of a session, seconds of its request, and when that was answered (seconds of the day, UTC)."""
    spec = session_spec(type="batch", command=["true"], slots={"cpu": "1", "mem": "1m"})
    began = time.perf_counter()
    response = await client.sessions.create_many([spec])
    answered, now = time.perf_counter(), dt.datetime.now(dt.UTC)
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    # No request is made meanwhile: the cluster is idle.
    await asyncio.sleep(0.15)
    async with asyncio.timeout(30):
        while [session async for session in client.sessions.list(limit=1)]:
            await asyncio.sleep(0.02)
    return response.results[0].accepted.id, answered - began, (now - midnight).total_seconds()


def partial(log: str) -> dict[str, float]:
    """By session, when the agent first received it, in seconds of the day (UTC)."""
    found: dict[str, float] = {}
    for hours, minutes, seconds, attempts in _ARRIVAL.findall(log):
        for attempt in attempts.split():
            # The main kernel has the session's id.
            moment = int(hours) * 3600 + int(minutes) * 60 + float(seconds)
            found.setdefault(attempt.partition(".")[0], moment)
    return found


async def main(rounds: int) -> None:
    """Prints the median and the 99th percentile."""
    options = ClusterOptions(
        agents=1,
        slots={"cpu": "64", "mem": "64g"},
        prefix="rt-bench-",
        # It writes down all it does.
        agent_arguments=("--null-kernels", "--log-level", "debug"),
    )
    async with Cluster(options=options) as cluster:
        async with cluster.client() as client:
            for _ in range(5):
                await submit(client)
            submitted = []
            for _ in range(rounds):
                submitted.append(await submit(client))
                # At rest: what the last one left behind is done with.
                await asyncio.sleep(0.05)
        log = cluster.directory / "logs" / f"{cluster.agents[0].id}.log"
        at = partial(await asyncio.to_thread(log.read_text))
    delays = sorted((at[session] - answered) % 86400 * 1000 for session, _, answered in submitted)
    # A command that overtook the answer.
    delays = sorted(delay - 86_400_000 if delay > 43_200_000 else delay for delay in delays)
    request = statistics.median(seconds for _, seconds, _ in submitted) * 1000
    report("wake-up-p50", statistics.median(delays), "ms", request, spread=delays)
    report("wake-up-p99", delays[min(len(delays) - 1, int(len(delays) * 0.99))], "ms", request)


if __name__ == "__main__":
    end_politely()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--quick", action="store_true", help="small, for a look")
    given = parser.parse_args()
    asyncio.run(main(30 if given.quick else given.rounds))
