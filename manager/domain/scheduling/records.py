"""Rows that the scheduler works on, one record each, as the store reads them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from retinue.manager.domain.scheduling.policy import Policy, PolicyError
from retinue.manager.domain.session.spec_columns import PlacementColumns
from retinue.rpc.core.reasons import AgentConditionReason


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A resource group with its policy."""

    name: str
    session_strategy: str
    agent_strategy: str
    # JSON as stored; `policy` checks it.
    options: object
    owner_weights: Mapping[str, int]
    # Id of the agent that `round-robin` chose last; the next pass begins after it.
    round_robin_cursor: str
    # Those that kernels may have, as stored; empty: all.
    isolations: Sequence[str]

    def policy(self) -> Policy:
        """Returns the policy. Raises PolicyError when its options are not a mapping of texts."""
        options = self.options
        if not (isinstance(options, dict) and all(isinstance(value, str) for value in options.values())):
            raise PolicyError("the options are not as this version stores them")
        return Policy(self.session_strategy, self.agent_strategy, options)


class AgentState(StrEnum):
    """The state of an agent, by when it was last heard; JOINING until that happens first."""

    JOINING = "JOINING"
    ALIVE = "ALIVE"
    SUSPECT = "SUSPECT"
    LOST = "LOST"

    @classmethod
    def of(cls, stored: str) -> AgentState:
        """Returns a state as stored. One that only another version of the manager knows is JOINING:
        nothing counts on the agent until it is heard.
        """
        return cls.__members__.get(stored, cls.JOINING)


class LossHold(StrEnum):
    """What is recorded of an agent's loss: nothing, that it is held, or that an administrator has confirmed it."""

    NONE = ""
    HELD = "HELD"
    CONFIRMED = AgentConditionReason.CONFIRMED.value


@dataclass(frozen=True, slots=True)
class MassLossRule:
    """When losses are held: more than `percent` of the agents of a group, and at least `agents` of them, are silent.
    Those that were lost within `window` seconds count, too.
    """

    percent: int = 50
    agents: int = 3
    window: float = 300.0


DEFAULT_RULE = MassLossRule()


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """An agent, whatever its state. JSON members are as stored: `AgentTable.put` raises for bad ones."""

    id: str
    resource_group: str
    state: AgentState
    drained: bool
    revoked: bool
    blocked: bool
    architecture: str
    backends: Sequence[str]
    capacity: Mapping[str, int]
    underlay_address: str
    underlay_mtu: int
    reachable_networks: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class QuotaRecord:
    """A quota. `slots` is JSON as stored; `Limit.of` checks it."""

    kind: str
    name: str
    slots: object
    max_sessions: int | None


@dataclass(frozen=True, slots=True)
class PendingSession(PlacementColumns):
    """A session that waits. Times are seconds since 1970, 0 for none."""

    id: uuid.UUID
    owner: str
    project: str
    resource_group: str
    # Whether it is a system session.
    system: bool
    priority: int
    # Its number: the order of arrival.
    sequence: int
    cluster_mode: str
    cluster_size: int
    endpoint: str
    # Kernels by rank, as the text of JSON: most sessions have the same.
    kernels: str | None
    open_dependencies: int
    # Names of some of these.
    waits_for: Sequence[str]
    created: float
    tries: int = 0
    # JSON as stored.
    failed_agents: Sequence[str] = ()
    last_failure: str = ""
    retries: int = 0
    failed_starts: int = 0
    # Agents for which capacity is held, by kernel rank, and until when; JSON as stored.
    nominated: Sequence[str] | None = None
    nominated_until: float = 0.0
    reason: str = ""
    message: str = ""
    next_try: float = 0.0
    # Whether this version can read the spec.
    readable: bool = True
    # Whether an earlier placement is still being cleared away.
    clearing: bool = False


@dataclass(frozen=True, slots=True)
class Holding:
    """Amounts by slot that one live attempt holds on its agent."""

    agent: str
    slots: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RunningSession:
    """A placed session that ends by a time limit or by itself, or may be preempted."""

    id: uuid.UUID
    priority: int
    # Seconds since 1970.
    placed: float
    preemptible: bool
    # Seconds until the time limit; None without one.
    ends: float | None
    holdings: Sequence[Holding]
    # Ends with its command.
    finishing: bool = False


@dataclass(frozen=True, slots=True)
class Nomination:
    """Agents nominated for a waiting session, by kernel rank, on which capacity is held for so many seconds."""

    session_id: uuid.UUID
    agents: Sequence[str]
    seconds: float
