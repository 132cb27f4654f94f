"""An agent's reports of what it observes: plain values."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from retinue.manager.domain.session.final_usage import FinalUsage
from retinue.manager.domain.session.images import SeenImage
from retinue.manager.domain.session.probes import PublishedStatus
from retinue.manager.domain.session.states import Observed

# Kernel and epoch: what an attempt's id names.
AttemptKey: TypeAlias = tuple[uuid.UUID, int]


def attempt_id(kernel_id: object, epoch: int) -> str:
    """Returns the name of an attempt between manager and agents."""
    return f"{kernel_id}.{epoch}"


class ListenerBrokenError(Exception):
    """The manager's own side failed: a report was not committed, or the desired state could not be read.
    To be tried again.
    """


class CopyRefusedError(ListenerBrokenError):
    """What answers for an agent is not the one that is enrolled."""


class TermOverError(Exception):
    """Another manager leads: everything that belongs to the term ends."""


@dataclass(frozen=True, slots=True)
class LayerReport:
    """An agent's report of a layer that is being fetched: bytes, `total` 0 while that is not known."""

    id: str
    bytes: int
    total: int
    done: bool


class Step(StrEnum):
    """A step of an agent for an attempt; one that this manager does not know is OTHER."""

    NETWORK = "NETWORK"
    CREATE = "CREATE"
    ATTACH = "ATTACH"
    START = "START"
    STOP = "STOP"
    OTHER = "OTHER"


@dataclass(frozen=True, slots=True)
class FailingStep:
    """An agent's report of a step that fails again and again; `since` is by the clock of the agent, None when it is not
    known.
    """

    step: Step
    error: str
    tries: int
    since: dt.datetime | None = None


@dataclass(frozen=True, slots=True)
class AttemptPause:
    """An agent's report of what keeps an attempt from running, in words; `since` is by the clock of the agent, None
    when it does not say.
    """

    message: str
    since: dt.datetime | None = None


@dataclass(frozen=True, slots=True)
class FaultyPath:
    """An agent's report of packets that do not come to its node, in words; `unproved`: nothing came, and nothing would
    say why. `since` is by the clock of the agent.
    """

    message: str
    since: dt.datetime | None = None
    unproved: bool = False


@dataclass(frozen=True, slots=True)
class AttemptStatus:
    """An agent's report of an attempt; `state` is UNKNOWN when this manager does not know it.

    `end_time` is by the clock of the agent, None before the end and when the agent does not know it.
    """

    key: AttemptKey
    state: Observed
    exit_code: int | None = None
    reason: str = ""
    message: str = ""
    log_size: int = 0
    image: SeenImage = field(default_factory=SeenImage)
    layers: tuple[LayerReport, ...] = ()
    # Unknown of an attempt whose record was rebuilt.
    session_id: uuid.UUID | None = None
    end_time: dt.datetime | None = None
    # None of an attempt without a published port.
    published: PublishedStatus | None = None
    # None before the end, and when it was never measured.
    usage: FinalUsage | None = None
    # Processes that were killed as its memory was used up, at least; and when the first was, by the clock of the agent.
    memory_kills: int = 0
    memory_kill_time: dt.datetime | None = None
    failing_steps: tuple[FailingStep, ...] = ()
    # Of paths from the other nodes of its session to its node.
    faulty_paths: tuple[FaultyPath, ...] = ()
    # None while nothing keeps it from running.
    pause: AttemptPause | None = None

    @property
    def attempt_id(self) -> str:
        """Returns its name between manager and agents."""
        kernel_id, epoch = self.key
        return f"{kernel_id}.{epoch}"


@dataclass(frozen=True, slots=True)
class AttemptUsage:
    """An agent's report of what an attempt has used: `clock` and `cpu` in seconds, `memory` in bytes; None is missing.

    `gpu` is the use of its GPUs in percent; `metrics` are its own that are watched.
    """

    attempt_id: str
    clock: float
    cpu: float | None
    memory: int | None
    gpu: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UsageWatch:
    """What an agent has to report of use: of all attempts every `interval` seconds (0: never),
    with metrics of some by name.
    """

    interval: float = 0.0
    metrics: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeCondition:
    """Something that is wrong with a node: `type` as stored, without prefix; `since` is None when it is not known."""

    type: str
    reason: str = ""
    message: str = ""
    since: dt.datetime | None = None


@dataclass(frozen=True, slots=True)
class AgentCondition:
    """A condition as it is kept of an agent; `blocks` says whether it keeps kernels from being placed there."""

    type: str
    reason: str
    message: str
    since: dt.datetime
    blocks: bool


@dataclass(frozen=True, slots=True)
class RuntimeStatus:
    """What an agent says of one of its runtimes; it is only shown."""

    name: str
    available: bool
    message: str


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """An agent's report of itself when a stream opens, with all it observes."""

    agent_id: str
    instance: str
    boot_id: str
    version: str
    architecture: str
    capacity: Mapping[str, int]
    backends: tuple[str, ...]
    underlay_address: str
    underlay_mtu: int
    attempts: tuple[AttemptStatus, ...]
    network_session_ids: frozenset[uuid.UUID]
    conditions: tuple[NodeCondition, ...] = ()
    runtimes: tuple[RuntimeStatus, ...] = ()
    reachable_networks: tuple[str, ...] = ()
    proves_paths: bool = False


@dataclass(frozen=True, slots=True)
class NodeReport:
    """An agent's report of changes; `sequence` is the number of the report in its stream."""

    agent_id: str
    attempts: tuple[AttemptStatus, ...]
    removed_attempts: frozenset[AttemptKey] = frozenset()
    removed_networks: frozenset[uuid.UUID] = frozenset()
    sequence: int = 0
