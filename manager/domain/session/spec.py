"""The spec of a session, as plain values, and its expansion into kernels."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pydantic import with_config

from retinue.manager.domain.session.apps import AppSpec
from retinue.manager.domain.session.features import Feature
from retinue.manager.domain.session.images import PullPolicy
from retinue.manager.domain.session.isolation import Isolation, implied
from retinue.manager.domain.session.service_ports import PortRange, ServicePortSpec
from retinue.manager.domain.session.states import SessionType

MAIN, SUB = "main", "sub"
ROLES = (MAIN, SUB)
DEFAULT_SLOTS: Mapping[str, str] = {"cpu": "1", "mem": "256m", "disk": "1g"}
# Of a kernel that serves SFTP: what it serves is mounted, and its work directory stays empty.
DEFAULT_SYSTEM_SLOTS: Mapping[str, str] = {**DEFAULT_SLOTS, "disk": "64m"}
DEFAULT_PRIORITY = 10
DEFAULT_GRACE_SECONDS = 10.0
# gRPC asks name servers for IPv6 addresses of names in /etc/hosts, and waits for those that do not answer.
_NAMES_FROM_HOSTS = {"GRPC_DNS_RESOLVER": "native"}
LAUNCHER_PORT = 29_500
"""The default of `torchrun`."""


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """The spec of one kernel: what it runs, and with what; amounts as text, by slot name."""

    image: str = ""
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    slots: Mapping[str, str] = field(default_factory=dict)
    # Size of /dev/shm, a part of slot `mem`; empty: as the image or the agent has it.
    shared_memory: str = ""
    # None: as the resource group has it, or as the image implies.
    isolation: Isolation | None = None
    # Where the command starts; empty: as the image has it, else the kernel's own directory.
    working_directory: str = ""
    # None: as the resource group has it, or when a node does not have the image.
    pull_policy: PullPolicy | None = None

    def overridden_by(self, other: KernelSpec) -> KernelSpec:
        """`environment` and `slots` are replaced key by key, all others whole when given;
        a kernel that becomes a process has no image.
        """
        inherited = "" if other.isolation is Isolation.PROCESS else self.image
        return KernelSpec(
            image=other.image or inherited,
            command=other.command or self.command,
            environment={**self.environment, **other.environment},
            slots={**self.slots, **other.slots},
            shared_memory=other.shared_memory or self.shared_memory,
            isolation=other.isolation or self.isolation,
            working_directory=other.working_directory or self.working_directory,
            pull_policy=other.pull_policy or self.pull_policy,
        )


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The policy for running a session again: tries in all, whether after failures too, and the pauses between them."""

    max_attempts: int = 1
    on_failure: bool = False
    backoff_seconds: float = 10.0
    max_backoff_seconds: float = 600.0

    def pause(self, retries: int) -> float:
        """Seconds before the try that is so many-th of those after the first."""
        return min(self.max_backoff_seconds, self.backoff_seconds * 2.0 ** min(retries - 1, 32))


@dataclass(frozen=True, slots=True)
class MountSpec:
    """A directory of the nodes, `source`, that every kernel of a session sees at `target`;
    `root` is what grants it, once known, and files in it belong to `uid` and `gid` then, 0 for the agents' own.
    """

    source: str
    target: str
    writable: bool = False
    root: str = ""
    uid: int = 0
    gid: int = 0

    @property
    def below_root(self) -> str:
        """Returns the path from `root` to `source`; empty for the root itself."""
        return self.source[len(self.root) :].lstrip("/")


@dataclass(frozen=True, slots=True)
class WebhookSpec:
    """A receiver of events. The secret is stored apart from the rest of the request."""

    url: str
    events: tuple[str, ...] = ()
    secret: str = field(default="", repr=False, compare=False, metadata={"stored": False})


@dataclass(frozen=True, slots=True)
class TimeWarning:
    """A signal so many seconds before the time limit; to the command, or to what it has started."""

    signal: str
    before_seconds: float
    started_only: bool = False


@dataclass(frozen=True, slots=True)
class TemplateOrigin:
    """The version of a template that a session was made from, as it was called then;
    without project: one of all projects.
    """

    id: str
    name: str
    project: str
    version: int


@dataclass(frozen=True, slots=True)
class SftpSpec:
    """An SFTP server over the mounts of a session; public keys that it lets in besides those of the owner,
    as lines of OpenSSH's format.
    """

    authorized_keys: tuple[str, ...] = ()
    # Of a file that is written; 0: no maximum.
    max_file_bytes: int = 0
    # Three octal digits; empty: 022.
    umask: str = ""


@with_config(strict=True)
@dataclass(frozen=True, slots=True)
class SessionSpec:
    """A session request with defaults filled in; `spec_codec` has its stored form."""

    name: str
    project: str
    resource_group: str
    type: SessionType
    single_node: bool = True
    cluster_size: int = 1
    priority: int = DEFAULT_PRIORITY
    kernel: KernelSpec = field(default_factory=KernelSpec)
    roles: Mapping[str, KernelSpec] = field(default_factory=dict)
    # Kernels by role, in the order of their ranks, as `role_counts` has them;
    # empty: `main` and as many `sub` as there are others.
    counts: tuple[tuple[str, int], ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    grace_seconds: float = DEFAULT_GRACE_SECONDS
    # Agents to run on: only those when strict, else those first.
    agents: tuple[str, ...] = ()
    agents_strict: bool = False
    architecture: str = ""
    # Endpoint it is a replica of, and where replicas go: SPREAD, PACK, or empty for wherever.
    endpoint: str = ""
    replica_placement: str = ""
    time_limit_seconds: float | None = None
    preemptible: bool = False
    bootstrap_script: str = ""
    # Seconds since 1970; not placed before then.
    earliest_start_time: float | None = None
    # Ids or names as asked for, ids once accepted.
    depends_on: tuple[str, ...] = ()
    retry: RetryPolicy | None = None
    mounts: tuple[MountSpec, ...] = ()
    webhooks: tuple[WebhookSpec, ...] = ()
    # Of the main kernel, to be reached from outside.
    service_ports: tuple[ServicePortSpec, ...] = ()
    preopen_ports: tuple[PortRange, ...] = ()
    template: TemplateOrigin | None = None
    apps: tuple[AppSpec, ...] = ()
    # Of a system session, and of no other.
    sftp: SftpSpec | None = None
    # By role, once accepted: those that are not what `implied_isolation` returns.
    isolations: Mapping[str, Isolation] = field(default_factory=dict)
    # Not placed until a caller releases it.
    hold: bool = False
    # As `depends_on`, but any end of them will do.
    runs_after: tuple[str, ...] = ()
    # Names without SIG; empty: as the image says, or TERM.
    stop_signal: str = ""
    time_warning: TimeWarning | None = None
    # As `depends_on`, but they must not succeed.
    runs_after_failure: tuple[str, ...] = ()
    # Key of a label: sessions of the owner that have the same value run first.
    runs_after_label: str = ""
    # For people.
    description: str = ""

    def of_role(self, role: str) -> KernelSpec:
        """Returns what a kernel of `role` runs. A command for all roles is the main kernel's;
        others idle unless their role has one.
        """
        base = self.kernel
        if role != MAIN:
            base = replace(base, command=())
        return base.overridden_by(self.roles[role]) if role in self.roles else base

    def runs_image_command(self, role: str) -> bool:
        """Returns whether the kernel of `role` runs the command of its image, as nothing names another."""
        kernel = self.of_role(role)
        runs = self.type in {SessionType.BATCH, SessionType.INFERENCE} and role == MAIN
        return runs and bool(kernel.image) and not kernel.command

    def implied_isolation(self, role: str) -> Isolation:
        """Returns the isolation of a kernel of `role` when nothing else is stored:
        the one that versions have in mind that know no other.
        """
        own = self.roles[role].image if role in self.roles else ""
        return implied(own or self.kernel.image)

    def isolation_of(self, role: str) -> Isolation:
        """Returns the isolation of a kernel of `role`, of a request that was accepted."""
        return self.isolations.get(role) or self.implied_isolation(role)

    def with_isolations_asked(self) -> SessionSpec:
        """Returns a request that asks for the isolations of one that was accepted:
        the default of its group does not count for it.
        """
        kernel, roles = self.kernel, dict(self.roles)
        for role, _ in self.layout:
            if role == MAIN and role not in roles:
                kernel = replace(kernel, isolation=self.isolation_of(role))
            else:
                roles[role] = replace(roles.get(role, KernelSpec()), isolation=self.isolation_of(role))
        return replace(self, kernel=kernel, roles=roles)

    @property
    def layout(self) -> tuple[tuple[str, int], ...]:
        """Roles that have kernels with their numbers, in the order of ranks."""
        counts = self.counts or ((MAIN, 1), (SUB, self.cluster_size - 1))
        return tuple((role, count) for role, count in counts if count > 0)

    def features(self) -> frozenset[Feature]:
        """Returns the features it asks for that not every type of session has."""
        asked = {
            Feature.BOOTSTRAP: bool(self.bootstrap_script),
            Feature.START_TIME: self.earliest_start_time is not None,
            Feature.DEPENDENCIES: self.has_dependencies,
            Feature.RETRIES: self.retry is not None,
            Feature.CLUSTERING: self.cluster_size > 1,
            Feature.SERVICE_PORTS: bool(self.service_ports or self.preopen_ports or self.apps),
            Feature.APPS: bool(self.apps),
            Feature.SFTP: self.sftp is not None,
        }
        return frozenset(feature for feature, wanted in asked.items() if wanted)

    @property
    def has_dependencies(self) -> bool:
        """Returns whether it waits for other sessions."""
        return bool(self.depends_on or self.runs_after or self.runs_after_failure or self.runs_after_label)

    def basic(self) -> SessionSpec:
        """Returns the spec without variables and scripts, which often hold secrets: for lists and the journal."""
        return replace(
            self,
            kernel=replace(self.kernel, environment={}),
            roles={role: replace(kernel, environment={}) for role, kernel in self.roles.items()},
            apps=tuple(replace(app, environment={}) for app in self.apps),
            bootstrap_script="",
        )

    @property
    def images(self) -> list[str]:
        """Returns the references of the images that it names."""
        return [kernel.image for kernel in (self.kernel, *self.roles.values()) if kernel.image]


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """A kernel to be created: its position in the session."""

    id: uuid.UUID
    role: str
    index: int
    local_rank: int
    hostname: str


def role_counts(roles: Sequence[tuple[str, int | None]]) -> tuple[tuple[str, int], ...]:
    """Returns the numbers of kernels by role, `main` first, from roles with their counts or None;
    empty when only `cluster_size` gives it.
    """
    if all(role in ROLES and count is None for role, count in roles):
        return ()
    counts = {MAIN: 1} | {role: 1 if count is None else count for role, count in roles}
    return tuple(counts.items())


def kernel_plans(session_id: uuid.UUID, layout: Sequence[tuple[str, int]]) -> list[KernelPlan]:
    """`main1`, `sub1`, `sub2`, …, by roles and their numbers; the main kernel's id is the session's,
    the others' follow from it.
    """
    plans: list[KernelPlan] = []
    for role, count in layout:
        for index in range(1, count + 1):
            hostname = f"{role}{index}"
            plans.append(KernelPlan(kernel_id(session_id, len(plans), hostname), role, index, len(plans), hostname))
    return plans


def kernel_id(session_id: uuid.UUID, local_rank: int, hostname: str) -> uuid.UUID:
    """Returns the id of a kernel: the main kernel's is the session's, the others' are derived from it."""
    return uuid.uuid5(session_id, hostname) if local_rank else session_id


def launcher_environment(spec: SessionSpec, plan: KernelPlan) -> dict[str, str]:
    """Returns the variables by which launchers of distributed programs find `main1` and their place, as `torchrun` and
    `torch.distributed` read them: a node is a kernel, and without a launcher so is a process. None without a cluster.
    """
    if spec.cluster_size == 1:
        return {}
    (first, _), *_ = spec.layout
    host, port, rank, size = f"{first}1", str(LAUNCHER_PORT), str(plan.local_rank), str(spec.cluster_size)
    own = {"MASTER_ADDR": host, "MASTER_PORT": port, "RANK": rank, "WORLD_SIZE": size, "NODE_RANK": rank}
    torchrun = {"MASTER_ADDR": host, "MASTER_PORT": port, "NODE_RANK": rank, "NNODES": size}
    return own | {f"PET_{name}": value for name, value in torchrun.items()} | _NAMES_FROM_HOSTS


def cluster_environment(session_id: uuid.UUID, number: int, spec: SessionSpec, plan: KernelPlan) -> dict[str, str]:
    """Returns the eight cluster variables, two ids and the session's number that every kernel has in its
    environment.
    """
    hosts = [f"{role}{index}" for role, count in spec.layout for index in range(1, count + 1)]
    return {
        "BACKENDAI_CLUSTER_HOST": plan.hostname,
        "BACKENDAI_CLUSTER_HOSTS": ",".join(hosts),
        "BACKENDAI_CLUSTER_IDX": str(plan.index),
        "BACKENDAI_CLUSTER_LOCAL_RANK": str(plan.local_rank),
        "BACKENDAI_CLUSTER_MODE": "single-node" if spec.single_node else "multi-node",
        "BACKENDAI_CLUSTER_REPLICAS": ",".join(f"{role}:{count}" for role, count in spec.layout),
        "BACKENDAI_CLUSTER_ROLE": plan.role,
        "BACKENDAI_CLUSTER_SIZE": str(spec.cluster_size),
        "BACKENDAI_KERNEL_ID": str(plan.id),
        "BACKENDAI_SESSION_ID": str(session_id),
        "BACKENDAI_SESSION_NUMBER": str(number),
    }
