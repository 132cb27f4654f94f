"""One scheduling pass against Backend.AI 23.9.10: its DRF scheduler and its dispersed choice of agents, in process,
on the same instance.

1,000 agents, 10,000 waiting sessions of one kernel, 1,000 running ones, 100 owners, 20 shapes. Neither side touches a
database. The peer comes from PyPI into an environment of its own, made once under the user's cache directory; its run
is cut at 200 picks, its rate is that of what it got done. Ours decides the whole queue, several times over.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from retinue.manager.domain.scheduling.policy import Policy
from retinue.manager.scheduling.columns import Agents, Owners, Queue
from retinue.manager.scheduling.scheduling_pass import run_pass
from tests.bench import report
from tests.bench.scheduling_pass import SLOTS, Problem, make_problem

PACKAGE = "backend.ai-manager==23.9.10"
PROGRAM = Path(__file__).parent / "peers" / "backendai.py"


def environment() -> Path:
    """The Python of the peer's environment, made on the first call. Raises CalledProcessError when it cannot be had."""
    cache = (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "retinue-bench" / PACKAGE.replace("==", "-")
    )
    python = cache / "bin" / "python"
    if not (cache / ".complete").exists():
        # It runs on Python 3.11 alone, which ours is.
        subprocess.run([sys.executable, "-m", "venv", "--clear", cache], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PACKAGE], check=True)
        (cache / ".complete").touch()
    return python


def with_running(problem: Problem, running: int, seed: int = 2) -> tuple[Problem, list[dict[str, Any]]]:
    """The problem on agents that are empty but for so many running sessions of the shapes in its queue,
    and those sessions.
    """
    fleet, owners, queue = problem
    random = np.random.default_rng(seed)
    used = np.zeros_like(fleet.capacity)
    held = np.zeros_like(owners.held)
    sessions: list[dict[str, Any]] = []
    while len(sessions) < running:
        request = queue.requests[random.integers(len(queue.requests))]
        agent, owner = int(random.integers(len(fleet.ids))), int(random.integers(len(owners.names)))
        if (used[agent] + request <= fleet.capacity[agent]).all():
            used[agent] += request
            held[owner] += request
            sessions.append({"owner": owners.names[owner], "request": request.tolist()})
    agents = Agents(fleet.slots, fleet.ids, fleet.capacity, used, fleet.schedulable, fleet.architectures, fleet.kernels)
    everyone = Owners(owners.names, np.ones_like(owners.weights), held)
    return (agents, everyone, queue), sessions


def peer(problem: tuple[Agents, Owners, Queue], running: list[dict[str, Any]], picks: int, seconds: float) -> float:
    """Its picks a second."""
    fleet, owners, queue = problem
    content = {
        "slots": list(SLOTS),
        "agents": [
            {"id": name, "capacity": capacity, "used": used}
            for name, capacity, used in zip(fleet.ids, fleet.capacity.tolist(), fleet.used.tolist(), strict=True)
        ],
        "pending": [
            {"owner": owners.names[owner], "request": request}
            for owner, request in zip(queue.owners.tolist(), queue.requests.tolist(), strict=True)
        ],
        "running": running,
    }
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(content, file)
        file.flush()
        done = subprocess.run(
            [environment(), PROGRAM, file.name, str(picks), str(seconds)], check=True, capture_output=True, text=True
        )
    result = json.loads(done.stdout.splitlines()[-1])
    return float(result["picks"] / result["seconds"])


def ours(problem: tuple[Agents, Owners, Queue]) -> float:
    """Decisions a second of one whole pass."""
    gc.collect()
    begin = time.perf_counter()
    decided = len(run_pass(*problem, Policy("drf", "dispersed")).sessions)
    return decided / (time.perf_counter() - begin)


def main(rounds: int, picks: int, seconds: float) -> None:
    """Prints one line."""
    problem, running = with_running(make_problem(1_000, 10_000, owners=100, shapes=20, gangs=0.0), 1_000)
    ours(problem)
    pairs = [(ours(problem), peer(problem, running, picks, seconds)) for _ in range(rounds)]
    values, peers = zip(*pairs, strict=True)
    report(
        "scheduling-decisions-drf-dispersed-backend.ai-23.9.10",
        statistics.median(values),
        "decisions/s",
        statistics.median(peers),
        spread=values,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--picks", type=int, default=200, help="of the peer")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    main(1 if given.quick else given.rounds, 30 if given.quick else given.picks, 20.0)
