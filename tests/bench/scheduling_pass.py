"""Speed of one scheduling pass, in decisions a second. Run as a script; each line is `name value unit peer ratio`.

The peer is the plain scheduler of the property tests (full scans of Python objects), on the same kind of cluster with a queue cut so
short that it ends, in the same run; its time for a whole pass is what the whole queue would take at that rate. The peer of a pass with
an impossible gang at its head is the same pass without it.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from manager.scheduling.columns import Agents, Integers, Owners, Policy, Queue
from manager.scheduling.scheduling_pass import run_pass
from tests.property.scheduling.oracle import Agent, Cluster, Session

GIB = 1 << 30
SLOTS = ("cpu", "mem", "cuda.device", "rocm.device", "tpu", "disk", "net.bandwidth", "licences")
Problem = tuple[Agents, Owners, Queue]


def make_problem(agents: int, sessions: int, *, owners: int, shapes: int, gangs: float, seed: int = 1) -> Problem:
    """A mixed fleet, a third with accelerators, partly in use; the queue asks for about as much as there is. `gangs` is the part of
    sessions with four kernels, all of them multi-node. `shapes` 0 makes every request different.
    """
    random = np.random.default_rng(seed)
    group = random.integers(0, 3, agents)
    capacity = np.zeros((agents, len(SLOTS)), np.int64)
    capacity[:, 0] = random.choice([32, 64, 96, 128], agents) * 1000
    capacity[:, 1] = random.choice([128, 256, 512], agents) * GIB
    capacity[:, 2] = np.where(group == 0, random.choice([4, 8], agents), 0) * 1000
    capacity[:, 3] = np.where((group == 1) & (random.random(agents) < 0.2), 8, 0) * 1000
    capacity[:, 4] = np.where((group == 2) & (random.random(agents) < 0.1), 4, 0) * 1000
    capacity[:, 5] = random.choice([1000, 2000], agents) * 1000
    capacity[:, 6] = 25_000_000
    capacity[:, 7] = np.where(random.random(agents) < 0.1, 16, 0) * 1000
    used = (capacity * random.choice([0, 0, 0.25, 0.5], (agents, 1))).astype(np.int64) // 1000 * 1000
    fleet = Agents(
        SLOTS,
        [f"agent-{number:06}" for number in range(agents)],
        capacity,
        used,
        np.ones(agents, np.bool_),
        ["x86_64"] * agents,
        np.zeros(agents, np.int64),
    )
    sizes = np.where(random.random(sessions) < gangs, 4, 1)
    requests = _requests(random, shapes or sessions)
    chosen = random.integers(0, shapes, sessions) if shapes else np.arange(sessions)
    queue = Queue(
        ids=[str(number) for number in range(sessions)],
        owners=random.integers(0, owners, sessions),
        priorities=np.full(sessions, 10, np.int64),
        orders=np.arange(sessions),
        single_node=np.zeros(sessions, np.bool_),
        offsets=np.r_[0, np.cumsum(sizes)],
        requests=requests[np.repeat(chosen, sizes)],
        tries=np.zeros(sessions, np.int64),
    )
    held = np.zeros((owners, len(SLOTS)), np.int64)
    held[:, 0] = random.integers(0, 64, owners) * 1000
    names = [f"owner-{number:05}" for number in range(owners)]
    return fleet, Owners(names, random.choice([1, 1, 1, 2, 5], owners), held), queue


def with_impossible_gang(problem: Problem, kernels: int = 10_000) -> Problem:
    """The same with a gang at the head that finds room for some of its kernels only."""
    fleet, owners, queue = problem
    gang = np.zeros((kernels, len(SLOTS)), np.int64)
    gang[:, 0], gang[:, 1] = 96_000, GIB
    return (
        fleet,
        owners,
        replace(
            queue,
            ids=["gang", *queue.ids],
            owners=np.r_[0, queue.owners],
            priorities=np.r_[100, queue.priorities],
            orders=np.r_[-1, queue.orders],
            single_node=np.r_[False, queue.single_node],
            offsets=np.r_[0, queue.offsets + kernels],
            requests=np.vstack((gang, queue.requests)),
            tries=np.r_[0, queue.tries],
        ),
    )


def _requests(random: np.random.Generator, count: int) -> Integers:
    requests = np.zeros((count, len(SLOTS)), np.int64)
    requests[:, 0] = random.choice([1000, 2000, 4000, 8000], count)
    requests[:, 1] = random.integers(1, 33, count) * GIB // 2
    requests[:, 2] = np.where(random.random(count) < 0.1, random.choice([1, 2], count), 0) * 1000
    requests[:, 5] = np.where(random.random(count) < 0.3, random.integers(1, 50, count), 0) * 1000
    if count > 1000:
        requests[:, 1] += random.permutation(count) * 4096
    return requests


def measure(problem: Problem, policy: Policy, repeats: int) -> tuple[float, int]:
    """Median seconds of a pass and the number of its decisions."""
    seconds = []
    decided = 0
    for _ in range(repeats):
        gc.collect()
        start = time.perf_counter()
        decided = len(run_pass(*problem, policy).sessions)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds), decided


def measure_peer(problem: Problem, policy: Policy, sessions: int) -> float:
    """Decisions a second of the plain scheduler, on the first sessions of the queue."""
    fleet, owners, queue = problem
    free = np.maximum(0, fleet.capacity - fleet.used).tolist()
    capacity = fleet.capacity.tolist()
    agents = [
        Agent(name, dict(zip(SLOTS, capacity[row], strict=True)), dict(zip(SLOTS, free[row], strict=True)))
        for row, name in enumerate(fleet.ids)
    ]
    held, weights = owners.held.tolist(), owners.weights.tolist()
    standing = {name: (weights[row], dict(zip(SLOTS, held[row], strict=True))) for row, name in enumerate(owners.names)}
    waiting = [
        Session(
            queue.ids[row],
            owners.names[queue.owners[row]],
            row,
            [
                dict(zip(SLOTS, amounts, strict=True))
                for amounts in queue.requests[queue.offsets[row] : queue.offsets[row + 1]].tolist()
            ],
        )
        for row in range(sessions)
    ]
    cluster = Cluster(list(SLOTS), agents, standing, waiting, policy.session_strategy, policy.agent_strategy)
    start = time.perf_counter()
    decided = len(cluster.run())
    return decided / (time.perf_counter() - start)


def main() -> None:
    """Prints one line for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peer-sessions", type=int, default=6)
    parser.add_argument("--agent-strategy", action="append", choices=["concentrated", "dispersed", "round-robin"])
    arguments = parser.parse_args()
    cases = {
        "1k-agents-10k-pending": make_problem(1_000, 10_000, owners=100, shapes=20, gangs=0.2),
        "10k-agents-100k-pending": make_problem(10_000, 100_000, owners=1_000, shapes=50, gangs=0.2),
        "10k-agents-10k-pending-all-shapes-distinct": make_problem(10_000, 10_000, owners=1_000, shapes=0, gangs=0.2),
    }
    for agent_strategy in arguments.agent_strategy or ["concentrated", "dispersed"]:
        policy = Policy("drf", agent_strategy)
        for name, problem in cases.items():
            peer = measure_peer(problem, policy, arguments.peer_sessions)
            seconds, decided = measure(problem, policy, arguments.repeats)
            rate = decided / seconds
            report(f"{name}-{agent_strategy}", rate, "decisions/s", peer)
            report(f"{name}-pass-{agent_strategy}", seconds, "s", len(problem[2].ids) / peer)
        plain = cases["10k-agents-100k-pending"]
        hindered = with_impossible_gang(plain)
        pairs = [(measure(hindered, policy, 1)[0], measure(plain, policy, 1)[0]) for _ in range(arguments.repeats)]
        with_gang, without = (statistics.median(column) for column in zip(*pairs, strict=True))
        report(f"impossible-gang-at-the-head-{agent_strategy}", with_gang, "s", without)


def report(name: str, value: float, unit: str, peer: float) -> None:
    """Prints a figure beside its peer's."""
    sys.stdout.write(f"scheduling-{name} {value:.4g} {unit} {peer:.4g} {value / peer:.4g}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
