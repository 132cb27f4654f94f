"""Random scheduling problems, and their columns for the fast pass."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from retinue.manager.domain.scheduling.policy import Policy, Tier
from retinue.manager.scheduling.columns import AgentPreferences, Agents, Explanation, Integers, Owners, Queue, Running
from retinue.manager.scheduling.scheduling_pass import Decisions, run_pass
from retinue.manager.scheduling.strategies import (
    FIFO,
    MAX_TRIES_BEFORE_SKIP,
    PREEMPTION,
    PREEMPTION_ORDER,
    REQUEUE,
    RESERVE_AFTER_TRIES,
)
from tests.property.manager.scheduling.oracle import Agent, Cluster, Placed, Session

if TYPE_CHECKING:
    import random

SLOTS = ["cpu", "mem", "cuda.device", "rocm.device", "ssd", "net"]
HELD_BACK = Explanation(Tier.POLICY, "DEPENDENCY", "waits for another session")


def random_cluster(choice: random.Random, session_strategy: str, agent_strategy: str) -> Cluster:
    """Up to 8 owners, 6 slots, 12 agents, gangs of up to 4: small numbers, so that ties and exact fits are common."""
    slots = SLOTS[: choice.randint(1, 6)]
    top = choice.choice([2, 4, 8, 1000])

    def amounts(most: int, zeros: float) -> dict[str, int]:
        return {slot: 0 if choice.random() < zeros else choice.randint(0, most) for slot in slots}

    agents = []
    for number in range(choice.randint(0, 12)):
        capacity = amounts(top, 0.2)
        used = {
            slot: choice.randint(0, capacity[slot] + (choice.random() < 0.05)) if choice.random() < 0.4 else 0
            for slot in slots
        }
        free = {slot: max(0, capacity[slot] - used[slot]) for slot in slots}
        agents.append(
            Agent(
                f"a{number:02}", capacity, free, choice.random() < 0.9, choice.choice(["x86_64", "x86_64", "aarch64"])
            )
        )
    choice.shuffle(agents)
    for agent in agents:
        if choice.random() < 0.2:
            agent.offers = frozenset({choice.choice([0, 1])})
    owners = {
        f"o{number}": (choice.choice([1, 1, 2, 3, 7]), amounts(top, 0.6)) for number in range(choice.randint(1, 8))
    }
    shapes = [amounts(max(1, top // choice.choice([1, 2, 4])), 0.4) for _ in range(choice.randint(1, 5))]
    names = [agent.id for agent in agents]
    sessions = []
    orders = choice.sample(range(200), choice.randint(0, 40))
    for number, order in enumerate(orders):
        size = choice.choice([1, 1, 1, 2, 3, 4])
        kernels = (
            [dict(choice.choice(shapes))] * size
            if choice.random() < 0.6
            else [dict(choice.choice(shapes)) for _ in range(size)]
        )
        session = Session(
            f"s{number}", choice.choice(list(owners)), order, kernels, priority=choice.choice([10, 10, 10, 20])
        )
        session.single_node = choice.random() < 0.3
        session.held_back = choice.random() < 0.05
        session.tries = choice.randint(0, 4)
        if choice.random() < 0.1:
            session.architecture = choice.choice(["x86_64", "aarch64", "riscv64"])
        if choice.random() < 0.3:
            session.needs = [frozenset(choice.choice([[0], [1], [0, 1]])) for _ in kernels]
        if names and choice.random() < 0.15:
            session.avoided = tuple(choice.sample(names, choice.randint(1, len(names))))
        if names and choice.random() < 0.1:
            session.designated = tuple(choice.sample(names, choice.randint(1, len(names))))
            session.strict = choice.random() < 0.5
        if choice.random() < 0.15:
            session.endpoint, session.pack = choice.choice(["e", "f"]), choice.random() < 0.5
        sessions.append(session)
    return Cluster(
        slots,
        agents,
        owners,
        sessions,
        session_strategy,
        agent_strategy,
        max_tries=choice.choice([0, 3]) if session_strategy == FIFO else 0,
        round_robin_cursor=choice.choice(["", *names]),
        replicas={endpoint: {name: choice.randint(0, 3) for name in names} for endpoint in ("e", "f")},
    )


def _bits(features: frozenset[int]) -> int:
    return sum(1 << feature for feature in features)


def add_running(choice: random.Random, cluster: Cluster) -> Cluster:
    """The same problem with placed sessions, time limits, nominated, reservations and preemption."""
    for number in range(choice.randint(0, 12)):
        kernels = []
        for agent in choice.choices(cluster.agents, k=choice.choice([1, 1, 2, 3])) if cluster.agents else []:
            amounts = {slot: choice.randint(0, max(0, free)) for slot, free in agent.free.items()}
            agent.free = {slot: free - amounts[slot] for slot, free in agent.free.items()}
            kernels.append((agent.id, amounts))
        end = choice.choice([math.inf, 10.0, 20.0, 20.0, 30.5])
        finishing = choice.random() < 0.5
        cluster.running.append(
            Placed(f"r{number}", choice.choice([0, 10, 15]), choice.random() < 0.7, kernels, end, finishing)
        )
    cluster.reserve_after = choice.choice([0, 1, 1, 1])
    cluster.preemption_order = choice.choice(["", "newest", "oldest"])
    for session in cluster.sessions:
        session.limit = choice.choice([math.inf, 5.0, 20.0, 25.0])
        if cluster.agents and choice.random() < 0.05:
            session.nomination = [agent.id for agent in choice.choices(cluster.agents, k=len(session.kernels))]
    return cluster


def running_of(cluster: Cluster) -> Running:
    """The placed sessions as the pass reads them."""
    row = {agent.id: number for number, agent in enumerate(cluster.agents)}
    kernels = [kernel for placed in cluster.running for kernel in placed.kernels]
    return Running(
        ids=[placed.id for placed in cluster.running],
        priorities=np.array([placed.priority for placed in cluster.running], np.int64),
        preemptible=np.array([placed.preemptible for placed in cluster.running], np.bool_),
        placed=np.arange(len(cluster.running), dtype=np.int64),
        ends=np.array([placed.end for placed in cluster.running], np.float64),
        offsets=np.cumsum([0, *(len(placed.kernels) for placed in cluster.running)]).astype(np.int64),
        agents=np.array([row[agent] for agent, _ in kernels], np.int64),
        amounts=np.array([[amounts[slot] for slot in cluster.slots] for _, amounts in kernels], np.int64).reshape(
            len(kernels), len(cluster.slots)
        ),
        finishing=np.array([placed.finishing for placed in cluster.running], np.bool_),
    )


def columns_of(cluster: Cluster) -> tuple[Agents, Owners, Queue, Policy]:
    """A problem as the pass reads it."""
    slots, row = cluster.slots, {agent.id: number for number, agent in enumerate(cluster.agents)}

    def matrix(rows: list[dict[str, int]]) -> Integers:
        return np.array([[amounts[slot] for slot in slots] for amounts in rows], np.int64).reshape(
            len(rows), len(slots)
        )

    capacity = matrix([agent.capacity for agent in cluster.agents])
    agents = Agents(
        tuple(slots),
        [agent.id for agent in cluster.agents],
        capacity,
        capacity - matrix([agent.free for agent in cluster.agents]),
        np.array([agent.schedulable for agent in cluster.agents], np.bool_),
        [agent.architecture for agent in cluster.agents],
        np.zeros(len(cluster.agents), np.int64),
        features=("feature 0", "feature 1"),
        offers=np.array([_bits(agent.offers) for agent in cluster.agents], np.int64),
    )
    names, endpoints = list(cluster.owners), list(cluster.replicas)
    owners = Owners(
        names,
        np.array([weight for weight, _ in cluster.owners.values()], np.int64),
        matrix([held for _, held in cluster.owners.values()]),
    )
    sessions = cluster.sessions
    queue = Queue(
        ids=[session.id for session in sessions],
        owners=np.array([names.index(session.owner) for session in sessions], np.int64),
        priorities=np.array([session.priority for session in sessions], np.int64),
        orders=np.array([session.order for session in sessions], np.int64),
        single_node=np.array([session.single_node for session in sessions], np.bool_),
        offsets=np.cumsum([0, *(len(session.kernels) for session in sessions)]).astype(np.int64),
        requests=matrix([kernel for session in sessions for kernel in session.kernels]),
        tries=np.array([session.tries for session in sessions], np.int64),
        needs=np.array(
            [
                _bits(needs)
                for session in sessions
                for needs in session.needs or [frozenset[int]()] * len(session.kernels)
            ],
            np.int64,
        ),
        held_back={number: HELD_BACK for number, session in enumerate(sessions) if session.held_back},
        architectures={number: session.architecture for number, session in enumerate(sessions) if session.architecture},
        wishes={
            number: AgentPreferences(
                tuple(row[name] for name in session.designated),
                session.strict,
                tuple(row[name] for name in session.avoided),
                endpoints.index(session.endpoint) if session.endpoint else None,
                session.pack,
            )
            for number, session in enumerate(sessions)
            if session.avoided or session.designated or session.endpoint
        },
        replicas=[
            {row[agent]: kernels for agent, kernels in cluster.replicas[endpoint].items()} for endpoint in endpoints
        ],
        limits={number: session.limit for number, session in enumerate(sessions) if session.limit < math.inf},
        nominated={
            number: [row[agent] for agent in session.nomination]
            for number, session in enumerate(sessions)
            if session.nomination
        },
    )
    options = {MAX_TRIES_BEFORE_SKIP: str(cluster.max_tries)} if cluster.max_tries else {}
    if cluster.reserve_after:
        options[RESERVE_AFTER_TRIES] = str(cluster.reserve_after)
    if cluster.preemption_order:
        options |= {PREEMPTION: REQUEUE, PREEMPTION_ORDER: cluster.preemption_order}
    return agents, owners, queue, Policy(cluster.session_strategy, cluster.agent_strategy, options)


def decide(cluster: Cluster) -> tuple[list[tuple[str, list[str]]], Decisions]:
    """The fast pass on a problem: (session, agents of its kernels) in order, and its whole answer."""
    agents, owners, queue, policy = columns_of(cluster)
    decisions = run_pass(agents, owners, queue, policy, cluster.round_robin_cursor, running=running_of(cluster))
    listed = [
        (
            queue.ids[session],
            [
                agents.ids[agent]
                for agent in decisions.kernel_agents[queue.offsets[session] : queue.offsets[session + 1]]
            ],
        )
        for session in decisions.sessions
    ]
    return listed, decisions
