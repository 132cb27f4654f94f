"""Attempts as plain values: what is wanted of one, and what is known of one."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field
from signal import SIGTERM, Signals
from typing import TYPE_CHECKING

from retinue.agent.kernel.core.signals import Delivery, Target

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retinue.agent.resources.core.usage import FinalUsage
    from retinue.rpc.core.retries import Retries

ATTEMPT_ID = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,62})\.[0-9]{1,10}")
"""Shape of an attempt's id, `KERNEL_ID.ATTEMPT`; it is also a name of directories and control groups."""


class Goal(enum.Enum):
    """The state of an attempt that a manager desires."""

    HELD = "held"
    RUNNING = "running"
    STOPPED = "stopped"


class Isolation(enum.Enum):
    """How an attempt is separated from its node and from other attempts;
    `OTHER` is one that only a later version knows.
    """

    PROCESS = "process"
    CONTAINER = "container"
    VM = "vm"
    OTHER = "other"


class PullPolicy(enum.Enum):
    """When the registry of an image is asked for it."""

    ALWAYS = "always"
    MISSING = "missing"
    NEVER = "never"


class Phase(enum.Enum):
    """The progress of a runtime with an attempt."""

    WAITING = "waiting"
    """There is a record, and nothing was done: a former process of the agent was about to fetch the image."""
    PULLING = "pulling"
    CREATING = "creating"
    CREATED = "created"
    RUNNING = "running"
    STOPPING = "stopping"
    EXITED = "exited"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """Returns whether no process is left, for good."""
        return self in {Phase.EXITED, Phase.FAILED}


class Step(enum.Enum):
    """A step of the agent for an attempt, as managers are told of it when it fails."""

    NETWORK = "network"
    """Of the attempt's session."""
    CREATE = "create"
    ATTACH = "attach"
    START = "start"
    STOP = "stop"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class FailingStep:
    """A step that fails again and again."""

    step: Step
    retries: Retries


@dataclass(frozen=True, slots=True)
class ImageIdentity:
    """The image that a reference was found to name: digests, as `sha256:…`, of its manifest and of its configuration.

    The former is empty for an image that came from no registry. Without both, nothing is said.
    """

    digest: str = ""
    id: str = ""

    def matches(self, other: ImageIdentity) -> bool:
        """Returns whether both are the same image; on nodes of different architectures,
        only the former digests agree.
        """
        return (self.digest != "" and self.digest == other.digest) or (self.id != "" and self.id == other.id)

    def __bool__(self) -> bool:
        """Returns whether anything is said."""
        return bool(self.digest or self.id)


@dataclass(frozen=True, slots=True)
class ServicePort:
    """A port that an image says its programs serve; `ports` are numbers inside the kernel."""

    name: str
    protocol: str
    ports: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """Facts about an image that is on the node."""

    identity: ImageIdentity
    service_ports: tuple[ServicePort, ...] = ()


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of an image that is being fetched: bytes, `total` 0 while that is not known."""

    id: str
    bytes: int = 0
    total: int = 0
    done: bool = False


@dataclass(frozen=True, slots=True)
class Owner:
    """The numbers on the node of a user and a group that files belong to; none is root's."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory of the node that a kernel sees at `target`: `path` below `root`, which it must not lead out of.

    `root` is absolute, `path` is relative to it and may be empty. Files of `owner` are the kernel's own there; None
    means the agent's.
    """

    root: str
    path: str
    target: str
    writable: bool = False
    owner: Owner | None = None

    @property
    def source(self) -> str:
        """Returns the directory as a user names it."""
        return f"{self.root.rstrip('/')}/{self.path}" if self.path else self.root


class ProbeKind(enum.Enum):
    """The way in which an attempt is asked."""

    HTTP = "http"
    TCP = "tcp"
    GRPC = "grpc"
    EXEC = "exec"


@dataclass(frozen=True, slots=True)
class Probe:
    """A question that is asked again and again; which fields count depends on the kind. `port` 0 is the published port.

    `period` and `timeout` are in seconds; `failures` and `successes` are counts in a row.
    """

    kind: ProbeKind
    path: str = "/"
    port: int = 0
    min_status: int = 200
    max_status: int = 399
    service: str = ""
    command: tuple[str, ...] = ()
    period: float = 10.0
    timeout: float = 5.0
    failures: int = 3
    successes: int = 1


@dataclass(frozen=True, slots=True)
class PublishedPort:
    """A port of an attempt that routers reach at an address of the node,
    and the probes by which they learn that it is ready.

    `metrics_path` is where the attempt shows its metrics at the port; empty: nowhere.
    """

    port: int
    readiness: Probe = Probe(ProbeKind.TCP)
    startup: Probe | None = None
    liveness: Probe | None = None
    metrics_path: str = ""


@dataclass(frozen=True, slots=True)
class SftpServer:
    """An SFTP server over the mounts of an attempt; keys and certificates are lines of OpenSSH's format,
    but for the private `host_key`.

    `max_file_bytes` is the maximum size of a file that is written, 0 for none, `umask` what new files do not allow.
    """

    host_key: bytes = field(repr=False)
    host_certificate: str
    user_authority: str
    principal: str
    authorized_keys: tuple[str, ...] = ()
    max_file_bytes: int = 0
    umask: int = 0o022


@dataclass(frozen=True, slots=True)
class TimeWarning:
    """A signal before an attempt's time limit, so many seconds after its start."""

    delivery: Delivery
    after: float


@dataclass(frozen=True, slots=True)
class AttemptSpec:
    """The specification of an attempt; never changes, but for `image_identity`, which is known better with every try.

    `slots` are in the smallest unit: bytes for `mem` and `disk`, thousandths for all others. An empty `image` means the
    host's root, an empty `command` means idle until stopped. `shared_memory` is in bytes, 0 for the default.
    `networked` is a link to the session's network, `egress` leads to the outside by an egress link. From
    `session_secret` follow the keys by which the session's kernels reach each other; it is never recorded.
    With `sftp`, the attempt is that server instead of a command. `stop_signal` is what asks it to end, by default the
    image's, else SIGTERM; with `stops_all`, all that the command has started gets it, too. The command starts in
    `working_directory`, or in `image_directory` if that can be entered; empty: in the kernel's own.
    """

    id: str
    session_id: str
    kernel_id: str
    epoch: int
    hostname: str
    image: str = ""
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    slots: Mapping[str, int] = field(default_factory=dict)
    networked: bool = False
    image_identity: ImageIdentity = field(default_factory=ImageIdentity)
    shared_memory: int = 0
    egress: bool = False
    mounts: tuple[Mount, ...] = ()
    session_secret: bytes = field(default=b"", repr=False)
    sftp: SftpServer | None = None
    published: PublishedPort | None = None
    isolation: Isolation = Isolation.PROCESS
    stop_signal: Signals | None = None
    stops_all: bool = False
    warning: TimeWarning | None = None
    working_directory: str = ""
    pull_policy: PullPolicy = PullPolicy.MISSING
    image_command: bool = False
    image_directory: str = ""

    @property
    def directory(self) -> str:
        """Returns where the command starts, relative to the kernel's own directory; after a `-` one that is left alone
        if it cannot be entered.
        """
        return self.working_directory or (f"-{self.image_directory}" if self.image_directory else ".")

    @property
    def stop(self) -> Delivery:
        """Returns what asks it to end."""
        if not self.command:
            return Delivery()
        return Delivery(self.stop_signal or SIGTERM, Target.ALL if self.stops_all else Target.COMMAND)

    @property
    def has_egress_link(self) -> bool:
        """Returns whether it has an egress link: routers reach a published port by it, too."""
        return self.egress or self.published is not None


@dataclass(frozen=True, slots=True)
class DesiredAttempt:
    """An attempt that may exist; `stop_grace` is in seconds, and `fence_timeout`, when it is not 0,
    the longest time without a manager.
    """

    spec: AttemptSpec
    goal: Goal
    stop_grace: float
    fence_timeout: float = 0.0


@dataclass(frozen=True, slots=True)
class Pause:
    """What keeps a kernel from running, in words, and when that was first seen, in seconds since the epoch."""

    message: str
    since: float


@dataclass(frozen=True, slots=True)
class ObservedAttempt:
    """The facts that a runtime has about an attempt.

    `egress` says that it has an egress link; `attached` that it is attached to the network, and has that link, as far
    as it is to have them. `start_time` and
    `end_time` are seconds since the epoch, for display. `stop_grace` is in seconds; `kill_at` is on the monotonic
    clock, and set from the time it is asked to end to the time it is killed. `log_size` is in bytes, and known of ended
    ones. `rebuilt` says that its record was lost and was rebuilt from its processes; `session_id` is then empty until a
    manager names the attempt. `usage` is known of ended ones that were measured. `memory_kills` are processes that were
    killed for want of memory, the first at `memory_kill_time`; while it runs, the number is rounded down to a power of
    two, so that one that is killed again and again is not reported each time. `pause` is set while something outside
    of it keeps it from running.
    """

    id: str
    session_id: str
    kernel_id: str
    networked: bool
    phase: Phase
    egress: bool = False
    attached: bool = False
    exit_code: int | None = None
    reason: str = ""
    message: str = ""
    start_time: float | None = None
    end_time: float | None = None
    stop_grace: float = 0.0
    kill_at: float | None = None
    log_size: int = 0
    image: ImageFacts | None = None
    layers: tuple[Layer, ...] = ()
    rebuilt: bool = False
    usage: FinalUsage | None = None
    memory_kills: int = 0
    memory_kill_time: float | None = None
    pause: Pause | None = None

    @property
    def held(self) -> bool:
        """Returns whether it is created, has its network and its egress link if it needs them,
        and waits at its start barrier.
        """
        return self.phase is Phase.CREATED and (self.attached or not (self.networked or self.egress))
