"""The desired state of one agent, and its reports of the observed state: plain values,
and the difference of two desired states.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeAlias

from retinue.manager.domain.session.final_usage import FinalUsage
from retinue.manager.domain.session.images import SeenImage
from retinue.manager.domain.session.ipam import VXLAN_PORT
from retinue.manager.domain.session.isolation import Isolation
from retinue.manager.domain.session.probes import PublishedPort, PublishedStatus
from retinue.manager.domain.session.states import Goal, Observed

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
class DesiredMount:
    """A directory of the node: `path` below `root`, seen at `target`. Files in it belong to `uid` and `gid`, 0 for the
    agent's own.
    """

    root: str
    path: str
    target: str
    writable: bool
    uid: int = 0
    gid: int = 0


@dataclass(frozen=True, slots=True)
class SftpServer:
    """An SFTP server over the mounts of an attempt: who it is, and who it lets in, in OpenSSH's format."""

    # These follow from the attempt, though not the same bytes each time.
    host_key: bytes = field(repr=False, compare=False)
    host_certificate: str = field(compare=False)
    user_authority: str
    principal: str
    authorized_keys: tuple[str, ...]
    # Of a file that is written; 0: no maximum.
    max_file_bytes: int = 0
    # Three octal digits; empty: 022.
    umask: str = ""


@dataclass(frozen=True, slots=True)
class DesiredWarning:
    """A signal so many seconds after an attempt's start; to its command, or to what that has started."""

    signal: str
    after_seconds: float
    started_only: bool


@dataclass(frozen=True, slots=True)
class AttemptSpec:
    """One try to run a kernel. Amounts are in smallest units; `id` is `KERNEL_ID.ATTEMPT`.

    `session_secret` is that of the session's placement, for keys between its kernels.
    """

    id: str
    session_id: str
    kernel_id: str
    epoch: int
    goal: Goal
    grace_seconds: float
    hostname: str
    image: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    slots: Mapping[str, int]
    networked: bool
    # What the image was found to be, if that is known; bytes of /dev/shm, 0 for the default.
    image_digest: str = ""
    image_id: str = ""
    shared_memory: int = 0
    # Longest time without a manager; 0 means any.
    fence_seconds: float = 0.0
    egress: bool = False
    mounts: tuple[DesiredMount, ...] = ()
    session_secret: bytes = field(default=b"", repr=False)
    published: PublishedPort | None = None
    # Empty: as the image says; with `stops_all`, to all that the command has started as well.
    stop_signal: str = ""
    stops_all: bool = False
    time_warning: DesiredWarning | None = None
    sftp: SftpServer | None = None
    # None, of one that is only to be stopped: as the image implies.
    isolation: Isolation | None = None
    # Empty: as the image says, else the kernel's own directory.
    working_directory: str = ""
    # ALWAYS, MISSING, NEVER, or empty for MISSING.
    pull_policy: str = ""
    # Whether the image's own command follows `command`.
    image_command: bool = False


@dataclass(frozen=True, slots=True)
class NetworkMember:
    """A kernel's address in its session's network, and the underlay address of its agent."""

    kernel_id: str
    hostname: str
    address: str
    mac: str
    underlay_address: str
    local: bool
    agent_id: str = ""
    proves_paths: bool = False


@dataclass(frozen=True, slots=True)
class DesiredNetwork:
    """A session's network as one agent has to know it; `vni` 0 means a bridge only."""

    session_id: str
    vni: int
    subnet: str
    mtu: int
    members: tuple[NetworkMember, ...]
    vxlan_port: int = VXLAN_PORT


@dataclass(frozen=True, slots=True)
class DesiredState:
    """All that is wanted on one agent: attempts by id, networks by session id."""

    attempts: Mapping[str, AttemptSpec] = field(default_factory=dict)
    networks: Mapping[str, DesiredNetwork] = field(default_factory=dict)
    # Attempts that the agent has and the manager does not know, which are to end.
    removed: frozenset[str] = frozenset()
    # Sessions that cannot be read whole: what is missing of them is to stay as the agent has it.
    unreadable: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Difference:
    """The change that turns one desired state into another."""

    attempts: tuple[AttemptSpec, ...]
    removed_attempts: tuple[str, ...]
    networks: tuple[DesiredNetwork, ...]
    removed_networks: tuple[str, ...]
    added_protected: tuple[str, ...] = ()
    removed_protected: tuple[str, ...] = ()
    added_routers: tuple[str, ...] = ()
    removed_routers: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        addresses = (*self.added_protected, *self.removed_protected, *self.added_routers, *self.removed_routers)
        attempts, networks = (self.attempts, self.removed_attempts), (self.networks, self.removed_networks)
        return any((*attempts, *networks, addresses))


def difference(before: DesiredState, after: DesiredState) -> Difference:
    """Returns what has to be sent to an agent that knows `before` so that it knows `after`."""
    return Difference(
        tuple(attempt for key, attempt in after.attempts.items() if before.attempts.get(key) != attempt),
        tuple(sorted({key for key in before.attempts if key not in after.attempts} | after.removed)),
        tuple(network for key, network in after.networks.items() if before.networks.get(key) != network),
        tuple(key for key in before.networks if key not in after.networks),
    )


class SentState:
    """The state that an agent was sent, by session, so that a change of some sessions does
    not require reading the others.
    """

    def __init__(
        self, desired: DesiredState, protected: frozenset[str] = frozenset(), routers: frozenset[str] = frozenset()
    ) -> None:
        """Starts from what the agent was sent as a whole; `protected` are addresses that no kernel may reach, `routers`
        those that reach published ports.
        """
        self._protected = protected
        self._routers = routers
        self._attempts: dict[str, dict[str, AttemptSpec]] = {}
        self._networks: dict[str, DesiredNetwork] = {}
        self._take(desired)

    def advance(
        self,
        wanted: DesiredState,
        session_ids: Iterable[str] | None,
        protected: frozenset[str] = frozenset(),
        routers: frozenset[str] = frozenset(),
    ) -> Difference:
        """Returns what must be sent so that the agent knows `wanted`, and counts it as sent. `wanted` is all there is
        of these sessions on the agent, but for sessions that cannot be read:
        of these the agent keeps what it was sent; None means of all sessions.
        """
        wanted = self._completed(wanted)
        ids: Collection[str] = {*self._attempts, *self._networks} if session_ids is None else set(session_ids)
        before = DesiredState(
            {key: attempt for id_ in ids for key, attempt in self._attempts.get(id_, {}).items()},
            {id_: self._networks[id_] for id_ in ids if id_ in self._networks},
        )
        for id_ in ids:
            self._attempts.pop(id_, None)
            self._networks.pop(id_, None)
        self._take(wanted)
        added, removed = protected - self._protected, self._protected - protected
        self._protected = protected
        routers_before, self._routers = self._routers, routers
        return replace(
            difference(before, wanted),
            added_protected=tuple(sorted(added)),
            removed_protected=tuple(sorted(removed)),
            added_routers=tuple(sorted(routers - routers_before)),
            removed_routers=tuple(sorted(routers_before - routers)),
        )

    def _completed(self, wanted: DesiredState) -> DesiredState:
        attempts, networks = dict(wanted.attempts), dict(wanted.networks)
        for session_id in wanted.unreadable:
            for key, known in self._attempts.get(session_id, {}).items():
                found = wanted.attempts.get(key, known)
                attempts[key] = replace(known, goal=found.goal, grace_seconds=found.grace_seconds)
            if session_id in self._networks:
                networks.setdefault(session_id, self._networks[session_id])
        return replace(wanted, attempts=attempts, networks=networks) if wanted.unreadable else wanted

    def _take(self, desired: DesiredState) -> None:
        for key, attempt in desired.attempts.items():
            self._attempts.setdefault(attempt.session_id, {})[key] = attempt
        self._networks.update(desired.networks)


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
