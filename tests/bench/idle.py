"""What a cluster that does nothing costs: processor time and memory of its manager with its database, and of an agent;
peer: a Python that has imported nothing and sleeps.

Three agents on nodes of their own, each with sessions that run and do nothing. It is looked at after everything has
come to rest, over a minute by default: what happens more seldom (the house of each minute, samples of shares) counts as
often as it comes. Memory is what a process has, with all that it shares (RSS); of the database, whose processes share
most of what they have, each with its part (PSS).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from retinue.devtools.cluster import Cluster, ClusterOptions
from tests.bench import end_politely, report

AGENTS = 3
_TICKS = os.sysconf("SC_CLK_TCK")
_SLEEPER = "import sys; sys.stdin.read()"


def family(pid: int) -> list[int]:
    """A process and all that came of it, what other users have taken over excepted."""
    children = defaultdict(list)
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        children[parent].append(int(path.parent.name))
    found, new = [], [pid]
    while new:
        found += new
        new = [child for parent in new for child in children[parent]]
    return found


def used(pid: int) -> float:
    """Seconds of processor time of a process and of those that it has waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS


def memory(pid: int, of: str = "Rss") -> float:
    """Megabytes that a process has in memory; as `Pss`, of what it shares only its part."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{of}:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


async def shares(groups: dict[str, list[int]], seconds: float) -> dict[str, float]:
    """By group of processes, how much of one processor they used, in percent."""
    before = {name: sum(map(used, pids)) for name, pids in groups.items()}
    await asyncio.sleep(seconds)
    return {name: 100 * (sum(map(used, pids)) - before[name]) / seconds for name, pids in groups.items()}


async def main(sessions: int, seconds: float, rest: float, *, router: bool) -> None:
    """Prints all figures."""
    options = ClusterOptions(agents=AGENTS, slots={"cpu": "8", "mem": "2g"}, prefix="rt-bench-", router=router)
    async with Cluster(options=options) as cluster:
        async with cluster.client() as client:
            for number in range(sessions):
                session = await client.sessions.create(
                    type="interactive", name=f"idle-{number}", slots={"cpu": "1", "mem": "64m"}, command=["sleep", "1d"]
                )
                await session.wait("RUNNING", timeout=120)
        await asyncio.sleep(rest)
        manager = cluster.manager.pid
        assert manager is not None
        database = [pid for pid in family(manager) if pid != manager]
        agents = {agent.id: pid for agent in cluster.agents if (pid := agent.process.pid) is not None}
        sleeper = await asyncio.create_subprocess_exec(sys.executable, "-c", _SLEEPER, stdin=asyncio.subprocess.PIPE)
        try:
            groups = {"manager": [manager], "database": database} | {name: [pid] for name, pid in agents.items()}
            found = await shares(groups, seconds)
            bare = memory(sleeper.pid)
        finally:
            sleeper.kill()
            await sleeper.wait()
        each = [found[name] for name in agents]
        report("idle-manager-and-database-cpu", found["manager"] + found["database"], "%", None)
        report("idle-manager-cpu", found["manager"], "%", None)
        report("idle-database-cpu", found["database"], "%", None)
        report("idle-agent-cpu", statistics.median(each), "%", None, spread=each)
        report("idle-manager-memory", memory(manager), "MB", bare)
        report("idle-database-memory", sum(memory(pid, "Pss") for pid in database), "MB", bare)
        held = [memory(pid) for pid in agents.values()]
        report("idle-agent-memory", statistics.median(held), "MB", bare, spread=held)


if __name__ == "__main__":
    end_politely()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--rest", type=float, default=20.0, help="seconds before it is looked at")
    parser.add_argument("--router", action="store_true", help="with a router, too")
    parser.add_argument("--quick", action="store_true", help="a shorter look")
    given = parser.parse_args()
    if given.quick:
        given.seconds, given.rest = 30.0, 5.0
    asyncio.run(main(given.sessions, given.seconds, given.rest, router=given.router))
