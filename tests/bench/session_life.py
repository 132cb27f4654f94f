"""The budget of one session's life: microseconds from one step to the next, from its request until it is seen to run.

Lines as in `tests.bench`, in the order of the steps; each is the median over sessions of one process kernel that start
one after another on an idle cluster, without a peer: their sum is `create_to_running_1` of `session_start`. The daemons
note when functions begin and end (`tests.bench._traced`). Run as root.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.devtools import commands
from retinue.devtools.cluster import Cluster, ClusterOptions
from tests.bench import end_politely, report

if TYPE_CHECKING:
    from retinue.client.aio import Client

TRACED = Path(__file__).with_name("_traced.py")
STEPS = (
    ("request-to-servicer", "SessionServicer.CreateSession begins"),
    ("checks", "submit begins"),
    ("rows", "submit ends"),
    ("commit", "SessionServicer.CreateSession ends"),
    ("to-scheduler", "GroupLoop.plan begins"),
    ("decision", "GroupLoop.plan ends"),
    ("to-its-commit", "GroupLoop.commit_outcome begins"),
    ("placement-commit", "GroupLoop.commit_outcome ends"),
    ("to-desired-state", "read_desired begins"),
    ("desired-state", "read_desired ends"),
    ("to-agent", "ProcessRuntime.prepare begins"),
    ("record", "ProcessRuntime._start begins"),
    ("sandbox", "ProcessRuntime._start ends"),
    ("held-to-manager", "Reports.reported begins"),
    ("held-commit", "read_desired begins"),
    ("release-state", "read_desired ends"),
    ("release-to-agent", "ProcessRuntime.start begins"),
    ("release", "ProcessRuntime.start ends"),
    ("running-to-manager", "Reports.reported begins"),
    ("running-commit", "Reports.reported ends"),
    ("to-watcher", "seen"),
)
"""Names of what comes before a mark, and the marks, in their order."""


async def live(client: Client) -> tuple[int, int, int]:
    """Nanoseconds at which a session was asked for, and was seen to run; those of the answer to the request."""
    began = time.monotonic_ns()
    session = await client.sessions.create(type="interactive", slots={"cpu": "0.1", "mem": "32m"}, termination_grace=0)
    answered = time.monotonic_ns()
    await session.wait("RUNNING", timeout=60)
    seen = time.monotonic_ns()
    await session.terminate()
    await session.wait_ended(60)
    return began, seen, answered


def marks(directory: Path) -> list[tuple[int, str]]:
    """All that was noted, in order."""
    lines = [line for path in directory.glob("*.trace") for line in path.read_text().splitlines()]
    return sorted((int(at), what) for at, _, what in (line.partition(" ") for line in lines))


def steps_of(noted: list[tuple[int, str]], began: int, seen: int) -> list[float] | None:
    """Microseconds of each step of a session; None where marks are not in that order."""
    found, at, position = [], began, 0
    window = [(when, what) for when, what in noted if began <= when <= seen] + [(seen, "seen")]
    for _, mark in STEPS:
        while position < len(window) and window[position][1] != mark:
            position += 1
        if position == len(window):
            return None
        when = window[position][0]
        found.append((when - at) / 1000)
        at, position = when, position + 1
    return found


async def main(rounds: int) -> None:
    """Prints the lines."""
    with tempfile.TemporaryDirectory(prefix="rt-bench-") as made:
        directory = made

        def traced(module: str, *options: str) -> list[str]:
            return [sys.executable, *options, str(TRACED), directory, module]

        commands.module_command = traced  # type: ignore[attr-defined]  # its own name for what it imports
        async with Cluster(options=ClusterOptions(agents=1)) as cluster, cluster.client() as client:
            for _ in range(3):
                await live(client)
            lives = []
            for _ in range(rounds):
                lives.append(await live(client))
                await asyncio.sleep(0.3)
        noted = marks(Path(made))
    budgets = [steps for began, seen, _ in lives if (steps := steps_of(noted, began, seen)) is not None]
    if len(budgets) < rounds / 2:
        raise RuntimeError(f"only {len(budgets)} of {rounds} sessions took the steps in their order")
    for number, (name, _) in enumerate(STEPS):
        values = [steps[number] for steps in budgets]
        report(f"life-{number + 1:02}-{name}", statistics.median(values), "us", None, spread=values)
    report("life-answer", statistics.median((answered - began) / 1000 for began, _, answered in lives), "us", None)
    report("life-whole", statistics.median((seen - began) / 1000 for began, seen, _ in lives), "us", None)


if __name__ == "__main__":
    end_politely()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few sessions, for a look")
    asyncio.run(main(10 if parser.parse_args().quick else 50))
