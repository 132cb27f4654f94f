"""A published port of a kernel, how its agent asks whether it is ready, and what the agent answers.
Times in milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ProbeKind(StrEnum):
    """How a replica is asked."""

    HTTP = "HTTP"
    TCP = "TCP"
    GRPC = "GRPC"
    EXEC = "EXEC"


@dataclass(frozen=True, slots=True)
class Probe:
    """A question that the agent asks a replica; which fields count depends on the kind. `port` 0: the published one."""

    kind: ProbeKind
    path: str = "/"
    port: int = 0
    min_status: int = 200
    max_status: int = 399
    service: str = ""
    command: tuple[str, ...] = ()
    period: int = 10_000
    timeout: int = 5_000
    failures: int = 3
    successes: int = 1


@dataclass(frozen=True, slots=True)
class PublishedPort:
    """A port that routers reach at an address of the node, with its probes, and where it shows metrics (empty:
    nowhere).
    """

    port: int
    startup: Probe | None = None
    readiness: Probe | None = None
    liveness: Probe | None = None
    metrics_path: str = ""


class Health(StrEnum):
    """What the probes of an attempt say."""

    STARTING = "STARTING"
    READY = "READY"
    UNREADY = "UNREADY"


@dataclass(frozen=True, slots=True)
class PublishedStatus:
    """What an agent reports of a published port: its health, None when the attempt does not run,
    and where routers reach it.
    """

    health: Health | None = None
    message: str = ""
    address: str = ""
    port: int = 0
