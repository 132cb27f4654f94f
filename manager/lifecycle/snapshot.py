"""Builds the scheduler's columns from rows of the store. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from manager.scheduling.columns import (
    UNLIMITED,
    Agents,
    AgentWishes,
    Explanation,
    Integers,
    Owners,
    Queue,
    Quotas,
    Running,
    Tier,
)
from manager.scheduling.fair_share import normalised_usage

# What a kernel may need of an agent, in words, and the names of the agents' backends that give it.
FEATURES = ("a backend for native processes", "a backend for images")
_NATIVE, _IMAGES = 1, 2
_OFFERED = {"process": _NATIVE, "docker": _IMAGES, "null": _NATIVE | _IMAGES}
# Project and name.
Endpoint: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A waiting session as read, and its kernels by rank."""

    id: uuid.UUID
    owner: str
    kernel_ids: tuple[uuid.UUID, ...]
    hostnames: tuple[str, ...]
    slots: tuple[Mapping[str, int], ...]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class PastUsage:
    """Decayed usage in amount times seconds, by owner and slot, and how it counts; without `slot_weights` all slots count the same."""

    usage: Mapping[str, Mapping[str, float]]
    look_back_days: int
    slot_weights: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Limit:
    """A quota that holds for waiting sessions, and what counts against it: amounts by slot, and placed sessions."""

    # Whose it is: kind and name, and in words.
    subject: tuple[str, str]
    words: str
    slots: Mapping[str, int]
    max_sessions: int | None
    held: Mapping[str, int]
    sessions: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that one pass of one group reads."""

    agents: Agents
    owners: Owners
    queue: Queue
    waiting: tuple[Waiting, ...]


def build(
    agent_rows: Sequence[Mapping[str, Any]],
    held: Mapping[str, Mapping[str, int]],
    queue_rows: Sequence[Mapping[str, Any]],
    weights: Mapping[str, int],
    *,
    past: PastUsage | None = None,
    limits: Sequence[Limit] = (),
    replicas: Mapping[Endpoint, Mapping[str, int]] = MappingProxyType({}),
) -> Snapshot:
    """The columns of one group. Owners with equal shares are served in the order in which their first session arrived; given past usage,
    those who used least for their weight come first: owners who hold nothing now differ by nothing else. `replicas` are the live kernels
    of endpoints by agent.
    """
    waiting = tuple(_waiting(row) for row in queue_rows)
    slots = tuple(
        sorted(
            {slot for row in agent_rows for slot in row["capacity"]}
            | {s for w in waiting for kernel in w.slots for s in kernel}
        )
    )
    column = {slot: position for position, slot in enumerate(slots)}
    # First those who wait, by arrival, then those who only hold: their order decides ties.
    names = list(dict.fromkeys([*(session.owner for session in waiting), *sorted(held)]))
    normalised: dict[str, float] = {}
    if past is not None:
        normalised = _normalised(past, agent_rows)
        names.sort(key=lambda name: normalised.get(name, 0.0) / weights.get(name, 1))
    owner_row = {name: position for position, name in enumerate(names)}
    agent_row = {row["id"]: position for position, row in enumerate(agent_rows)}

    def matrix(rows: Sequence[Mapping[str, int]]) -> np.ndarray[Any, np.dtype[np.int64]]:
        values = np.zeros((len(rows), len(slots)), dtype=np.int64)
        for position, amounts in enumerate(rows):
            for slot, amount in amounts.items():
                if slot in column:
                    values[position, column[slot]] = amount
        return values

    agents = Agents(
        slots=slots,
        ids=[row["id"] for row in agent_rows],
        capacity=matrix([row["capacity"] for row in agent_rows]),
        used=matrix([row["used"] for row in agent_rows]),
        schedulable=np.array([row["state"] == "ALIVE" and not row["drained"] for row in agent_rows], dtype=np.bool_),
        architectures=[row["architecture"] for row in agent_rows],
        kernels=np.array([row["kernels"] for row in agent_rows], dtype=np.int64),
        features=FEATURES,
        offers=np.array([offered(row["backends"]) for row in agent_rows], dtype=np.int64),
    )
    owners = Owners(
        names=names,
        weights=np.array([weights.get(name, 1) for name in names], dtype=np.int64),
        held=matrix([held.get(name, {}) for name in names]),
        past_usage=None if past is None else np.array([normalised.get(name, 0.0) for name in names], dtype=np.float64),
    )
    endpoints = {
        endpoint: position
        for position, endpoint in enumerate(dict.fromkeys(filter(None, map(endpoint_of, queue_rows))))
    }
    offsets = np.zeros(len(waiting) + 1, dtype=np.int64)
    np.cumsum([len(session.slots) for session in waiting], out=offsets[1:])
    queue = Queue(
        ids=[str(session.id) for session in waiting],
        owners=np.array([owner_row[session.owner] for session in waiting], dtype=np.int64),
        priorities=np.array([row["priority"] for row in queue_rows], dtype=np.int64),
        orders=np.array([row["sequence"] for row in queue_rows], dtype=np.int64),
        single_node=np.array([row["cluster_mode"] == "SINGLE_NODE" for row in queue_rows], dtype=np.bool_),
        offsets=offsets,
        requests=matrix([kernel for session in waiting for kernel in session.slots]),
        needs=np.array([needed(kernel["image"]) for row in queue_rows for kernel in row["kernels"]], dtype=np.int64),
        tries=np.array([row["tries"] for row in queue_rows], dtype=np.int64),
        held_back={
            position: why for position, row in enumerate(queue_rows) if (why := _held_back(row, agent_row)) is not None
        },
        architectures={
            position: row["architecture"] for position, row in enumerate(queue_rows) if row.get("architecture")
        },
        wishes={
            position: _wishes(row, agent_row, endpoints)
            for position, row in enumerate(queue_rows)
            if row["failed_agents"] or row.get("agents") or row.get("replica_placement")
        },
        replicas=[
            {agent_row[agent]: kernels for agent, kernels in replicas.get(endpoint, {}).items() if agent in agent_row}
            for endpoint in endpoints
        ],
        waited=np.array([row.get("waited") or 0 for row in queue_rows], dtype=np.int64),
        limits={position: row["time_limit"] for position, row in enumerate(queue_rows) if row.get("time_limit")},
        promises={
            position: tuple(agent_row[agent] for agent in row["promise"])
            for position, row in enumerate(queue_rows)
            # A promise on an agent that is gone is void.
            if row.get("promise") and all(agent in agent_row for agent in row["promise"])
        },
        quotas=_quotas(limits, queue_rows, slots, matrix([limit.held for limit in limits])) if limits else None,
    )
    return Snapshot(agents, owners, queue, waiting)


def build_running(running_rows: Sequence[Mapping[str, Any]], agents: Agents) -> Running:
    """The columns of placed sessions; what they hold of agents that are lost does not come free."""
    agent_row = {agent: position for position, agent in enumerate(agents.ids)}
    column = {slot: position for position, slot in enumerate(agents.slots)}
    held = [[holding for holding in row["holdings"] if holding["agent"] in agent_row] for row in running_rows]
    holdings = [holding for of_session in held for holding in of_session]
    amounts = np.zeros((len(holdings), len(agents.slots)), dtype=np.int64)
    for position, holding in enumerate(holdings):
        for slot, amount in holding["slots"].items():
            if slot in column:
                amounts[position, column[slot]] = amount
    offsets = np.zeros(len(running_rows) + 1, dtype=np.int64)
    np.cumsum([len(of_session) for of_session in held], out=offsets[1:])
    return Running(
        ids=[str(row["id"]) for row in running_rows],
        priorities=np.array([row["priority"] for row in running_rows], dtype=np.int64),
        preemptible=np.array([row["preemptible"] for row in running_rows], dtype=np.bool_),
        placed=np.array([round(row["placed"] * 1e6) for row in running_rows], dtype=np.int64),
        ends=np.array([np.inf if row["ends"] is None else row["ends"] for row in running_rows], dtype=np.float64),
        offsets=offsets,
        agents=np.array([agent_row[holding["agent"]] for holding in holdings], dtype=np.int64),
        amounts=amounts,
    )


def offered(backends: Iterable[str]) -> int:
    """The FEATURES of an agent with these backends, as bits."""
    return reduce(or_, (_OFFERED.get(name, 0) for name in backends), 0)


def needed(image: bool) -> int:  # the one fact there is
    """The FEATURES that a kernel needs, as bits."""
    return _IMAGES if image else _NATIVE


def _normalised(past: PastUsage, agent_rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """By owner, usage as part of what the group gives in the look-back time."""
    capacity: dict[str, float] = {}
    for row in agent_rows:
        for slot, amount in row["capacity"].items():
            capacity[slot] = capacity.get(slot, 0.0) + amount
    slot_weights = dict.fromkeys(capacity, 1.0) if past.slot_weights is None else past.slot_weights
    return {
        owner: normalised_usage(usage, capacity, past.look_back_days, slot_weights)
        for owner, usage in past.usage.items()
    }


def _quotas(
    limits: Sequence[Limit], queue_rows: Sequence[Mapping[str, Any]], slots: Sequence[str], held: Integers
) -> Quotas:
    row_of = {limit.subject: row for row, limit in enumerate(limits)}
    of_groups = tuple(row for row, limit in enumerate(limits) if limit.subject[0] == "RESOURCE_GROUP")
    known: dict[tuple[str, str], tuple[int, ...]] = {}
    for row in queue_rows:
        key = row["owner"], row["project"]
        if key not in known:
            subjects = (("USER", row["owner"]), ("PROJECT", row["project"]))
            known[key] = (*(row_of[subject] for subject in subjects if subject in row_of), *of_groups)
    return Quotas(
        names=[limit.words for limit in limits],
        slots=slots,
        limits=np.array([[limit.slots.get(slot, UNLIMITED) for slot in slots] for limit in limits], dtype=np.int64),
        held=held,
        session_limits=np.array(
            [UNLIMITED if limit.max_sessions is None else limit.max_sessions for limit in limits], dtype=np.int64
        ),
        sessions=np.array([limit.sessions for limit in limits], dtype=np.int64),
        of_sessions=[known[row["owner"], row["project"]] for row in queue_rows],
    )


def _waiting(row: Mapping[str, Any]) -> Waiting:
    kernels = row["kernels"]
    return Waiting(
        id=row["id"],
        owner=row["owner"],
        kernel_ids=tuple(uuid.UUID(kernel["id"]) for kernel in kernels),
        hostnames=tuple(kernel["hostname"] for kernel in kernels),
        slots=tuple(kernel["slots"] for kernel in kernels),
        reason=row["reason"],
        message=row["message"],
    )


def endpoint_of(row: Mapping[str, Any]) -> Endpoint | None:
    """Project and name of the endpoint whose replicas decide where a waiting session goes."""
    return (row["project"], row["endpoint"]) if row.get("replica_placement") else None


def _wishes(row: Mapping[str, Any], agent_row: Mapping[str, int], endpoints: Mapping[Endpoint, int]) -> AgentWishes:
    endpoint = endpoint_of(row)
    return AgentWishes(
        designated=tuple(agent_row[agent] for agent in row.get("agents") or () if agent in agent_row),
        strict=bool(row.get("agents_strict")),
        avoided=tuple(agent_row[agent] for agent in row["failed_agents"] if agent in agent_row),
        endpoint=None if endpoint is None else endpoints[endpoint],
        pack=row.get("replica_placement") == "PACK",
    )


def _held_back(row: Mapping[str, Any], agent_row: Mapping[str, int]) -> Explanation | None:
    if (policy := _held_by_policy(row)) is not None:
        return policy
    if row["clearing"]:
        return Explanation(Tier.SYSTEM, "CLEARING", "what an earlier start left on its agents is being cleared away")
    if row["delay"] > 0:
        again = row.get("retries") and not row.get("failed_starts")
        code, what = ("RETRY_BACKOFF", "try") if again else ("START_BACKOFF", "start")
        why = f"its last {what} failed ({row['last_failure']}); it waits before the next try"
        return Explanation(Tier.SYSTEM, code, why)
    if row.get("agents_strict") and not any(agent in agent_row for agent in row["agents"]):
        named = ", ".join(row["agents"])
        return Explanation(
            Tier.SYSTEM, "NO_AGENT_AVAILABLE", f"none of the agents that it must run on is here: {named}"
        )
    return None


def _held_by_policy(row: Mapping[str, Any]) -> Explanation | None:
    if row.get("open_dependencies"):
        names, number = list(row["waits_for"]), row["open_dependencies"]
        more = f" and {number - len(names)} more" if number > len(names) else ""
        return Explanation(Tier.POLICY, "DEPENDENCY", f"it waits for the success of {', '.join(names)}{more}")
    if row.get("until_start"):
        return Explanation(Tier.POLICY, "START_TIME", "its start time has not come")
    return None
