"""Speed of one scheduling pass, in decisions a second. Run as a script; each line is `name value unit peer ratio`.

The instance: 100,000 waiting sessions of 1,000 owners, 10,000 agents, 8 slots, 50 shapes or all different, a fifth of
the sessions gangs of four; one thread. The peer is the plain scheduler of the property tests (full scans of Python
objects), on the same cluster with a queue cut so short that it ends, in the same run; its time for a whole pass is what
the whole queue would take at that rate. The peer of a pass with an impossible gang of 10,000 at its head is the same
pass without it, that of 10,000 agents for 10,000 sessions is 1,000 agents for them.
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

from typing import TYPE_CHECKING

from retinue.manager.domain.scheduling.policy import Policy
from retinue.manager.scheduling.columns import Agents, Integers, Owners, Queue
from retinue.manager.scheduling.scheduling_pass import run_pass
from tests.bench import report
from tests.property.manager.scheduling.oracle import Agent, Cluster, Session

if TYPE_CHECKING:
    from collections.abc import Sequence

GIB = 1 << 30
SLOTS = ("cpu", "mem", "cuda.device", "rocm.device", "tpu", "disk", "net.bandwidth", "licences")
Problem = tuple[Agents, Owners, Queue]


def make_problem(agents: int, sessions: int, *, owners: int, shapes: int, gangs: float, seed: int = 1) -> Problem:
    """A mixed fleet, a third with accelerators, partly in use; the queue asks for about as much as there is. `gangs` is
    the part of sessions with four kernels, all of them multi-node. `shapes` 0 makes every request different.
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


def measure(problem: Problem, policy: Policy, repeats: int) -> tuple[float, int, list[float]]:
    """Median seconds of a pass, the number of its decisions, and the seconds of each."""
    seconds = []
    decided = 0
    for _ in range(repeats):
        gc.collect()
        start = time.perf_counter()
        decided = len(run_pass(*problem, policy).sessions)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds), decided, seconds


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
    """Prints the lines of each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peer-sessions", type=int, default=6)
    parser.add_argument("--agent-strategy", action="append", choices=["concentrated", "dispersed", "round-robin"])
    parser.add_argument("--quick", action="store_true", help="a tenth of everything, once")
    given = parser.parse_args()
    part, repeats = (10, 1) if given.quick else (1, given.repeats)
    agents, sessions = 10_000 // part, 100_000 // part
    plain = make_problem(agents, sessions, owners=1_000, shapes=50, gangs=0.2)
    distinct = make_problem(agents, sessions, owners=1_000, shapes=0, gangs=0.2)
    if len(np.unique(distinct[2].requests[distinct[2].offsets[:-1]], axis=0)) != sessions:
        raise RuntimeError("two sessions have the same shape")
    hindered = with_impossible_gang(plain, 10_000 // part)
    few, many = (
        make_problem(number, 10_000 // part, owners=1_000, shapes=50, gangs=0.2) for number in (1_000 // part, agents)
    )
    for strategy in given.agent_strategy or ["concentrated", "dispersed"]:
        policy = Policy("drf", strategy)
        for name, problem in (
            ("10k-agents-100k-pending", plain),
            ("10k-agents-100k-pending-all-shapes-distinct", distinct),
        ):
            peer = measure_peer(problem, policy, given.peer_sessions)
            seconds, decided, took = measure(problem, policy, repeats)
            show(f"{name}-rate-{strategy}", decided / seconds, "decisions/s", peer, [decided / each for each in took])
            show(f"{name}-pass-{strategy}", seconds, "s", len(problem[2].ids) / peer, took)
        for name, one, other in (
            ("impossible-gang-at-the-head-to-none", hindered, plain),
            ("10k-agents-to-1k-agents", many, few),
        ):
            # In turns, so that both meet the same noise.
            pairs = [(measure(one, policy, 1)[0], measure(other, policy, 1)[0]) for _ in range(repeats + 2)]
            ones, others = zip(*pairs, strict=True)
            show(f"{name}-{strategy}", statistics.median(ones), "s", statistics.median(others), ones)


def show(name: str, value: float, unit: str, peer: float, spread: Sequence[float]) -> None:
    """Prints a line."""
    report(f"scheduling-{name}", value, unit, peer, spread=spread)


if __name__ == "__main__":
    main()
