"""What is asked for of an endpoint and of a revision, with defaults filled in. Times in milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from retinue.manager.domain.endpoints.model import AccessPolicy, AppProtocol, RoutingPolicy
from retinue.manager.domain.endpoints.rollout import RolloutPolicy
from retinue.manager.domain.endpoints.scaling import ScalingPolicy
from retinue.manager.domain.endpoints.schedules import Schedule
from retinue.manager.domain.session.probes import Probe
from retinue.manager.domain.session.spec import SessionSpec

# Replicas that an endpoint may have, and live revisions.
MAX_REPLICAS = 1_000
DEFAULT_CONCURRENCY = 8_000


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """What routers and agents know of the replicas of a revision; the session's own request is beside it."""

    port: int
    protocol: AppProtocol = AppProtocol.HTTP1
    startup: Probe | None = None
    readiness: Probe | None = None
    liveness: Probe | None = None
    max_concurrency: int = 0
    queue: int = 100
    start_timeout: int = 1_800_000
    drain_timeout: int = 300_000
    metrics_path: str = ""


@dataclass(frozen=True, slots=True)
class RevisionSpec:
    """A revision: what its replicas are as sessions, and as servers."""

    session: SessionSpec
    replica: ReplicaSpec


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """What may change without a new revision. `default_metric`: none was asked for,
    so it follows the newest revision.
    """

    scaling: ScalingPolicy = field(default_factory=ScalingPolicy)
    default_metric: bool = True
    schedules: tuple[Schedule, ...] = ()
    routing: RoutingPolicy = field(default_factory=RoutingPolicy)
    access: AccessPolicy = field(default_factory=AccessPolicy)
    rollout: RolloutPolicy = field(default_factory=RolloutPolicy)
    labels: Mapping[str, str] = field(default_factory=dict)


def default_target(spec: ReplicaSpec) -> int:
    """Returns the concurrency that one replica is meant to bear, in thousandths: 0.7 of its limit, at least 1,
    or 8 without a limit.
    """
    return max(1_000, 700 * spec.max_concurrency) if spec.max_concurrency else DEFAULT_CONCURRENCY
