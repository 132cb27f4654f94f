"""The settings of an agent, given at its start."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from retinue.agent.docker.core.image_removal import RemovalPolicy
from retinue.agent.host.users import UserRange
from retinue.agent.kubernetes.options import NAMESPACE
from retinue.agent.network.core.rules import NEVER
from retinue.agent.process.core.visible_paths import check_shown
from retinue.agent.resources.core.holdings import CUDA
from retinue.rpc import direct_port
from retinue.rpc.enrollment.managers import split_address

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MAX_EGRESS_ALLOW = 56
"""How many networks managers take from an agent, less some for name servers."""


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    """The settings of kernels that are pods: this node's name in the cluster, their namespace, and how they are made.

    Without `config`, the cluster is that of the pod that the agent runs in. `runtime` is the socket of the node's
    container runtime.
    """

    node: str
    namespace: str = NAMESPACE
    config: Path | None = None
    priority_class: str = ""
    pull_secrets: tuple[str, ...] = ()
    runtime: Path | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of an agent.

    `managers` are `host:port` of the managers' ports for users, `listen` that of this agent; `advertise` is where they
    dial it, and empty means the underlay address with the port that is listened at. `direct_listen` is where SSH
    connections of clients come directly: empty means any free port at the host of `listen`, and "none" that all go
    through the managers. `underlay_mtu` is that of the network between nodes, in bytes, where it is less than the
    interface says; 0: as that says. `join_token` and `ca_fingerprint` are needed for the first start only. Amounts are
    in the smallest unit. `docker_host` is the Docker engine for kernels with an image, as `unix://PATH`; empty means
    the usual one, if it answers. With `kubernetes`, those are pods instead. With `null_kernels` nothing runs at all:
    for tests and benches.
    `registry_config` holds credentials for registries, as Docker's `config.json` does; without it, images are fetched
    as any caller can. `image_removal` says when images are removed that the agent fetched and no kernel uses.
    `name_servers` are for kernels with egress, by default the node's own; `egress_allow` are networks those may reach
    although they are not public. `registry_allow` are networks that registries of images may be in although they are
    this node's own, link-local, or the fleet's. `metrics` is the `host:port` where Prometheus reads the agent's
    metrics; empty: nowhere. Of the node, kernels without an image see programs and libraries, and what is `shown`, but
    nothing that is `hidden`. With `builds`, what kernels need and the node has not yet is built in the background.
    Steps fail as files in `failpoints` say; None for none.
    """

    agent_id: str
    state_dir: Path
    scratch_dir: Path
    managers: tuple[str, ...]
    listen: str
    join_token: str = field(default="", repr=False)
    ca_fingerprint: str = ""
    advertise: str = ""
    direct_listen: str = ""
    underlay_address: str = ""
    underlay_mtu: int = 0
    slots: Mapping[str, int] = field(default_factory=dict)
    reserve: Mapping[str, int] = field(default_factory=dict)
    hidden: tuple[Path, ...] = ()
    shown: tuple[Path, ...] = ()
    uid: int = 60_000
    gid: int = 60_000
    users: UserRange = field(default_factory=UserRange)
    tasks: int = 4096
    output_limit: int = 64 << 20
    work_size: int = 0
    work_files: int = 0
    docker_host: str = ""
    kubernetes: KubernetesSettings | None = None
    null_kernels: bool = False
    registry_config: Path | None = None
    image_removal: RemovalPolicy = field(default_factory=RemovalPolicy)
    name_servers: tuple[str, ...] = ()
    egress_allow: tuple[str, ...] = ()
    registry_allow: tuple[str, ...] = ()
    builds: bool = True
    failpoints: Path | None = None
    metrics: str = ""


def check(settings: Settings) -> None:
    """Raises ValueError on addresses and networks that are none, on an engine that is not on this node,
    and on slots that no kernel would get.
    """
    if settings.docker_host and not settings.docker_host.startswith("unix:///"):
        raise ValueError(f"{settings.docker_host!r} is not a Docker engine of this node: unix:///PATH is needed")
    for slot in sorted(settings.slots):
        # Other names are counted for whatever they stand for; this one would be taken for a part of a device.
        if slot.startswith("cuda.") and slot != CUDA:
            raise ValueError(
                f"slot {slot} cannot be offered: kernels get whole GPUs ({CUDA}), and nothing bounds a share"
            )
    check_shown(map(str, settings.shown))
    if settings.kubernetes is not None and not settings.kubernetes.node:
        raise ValueError("the name of this node in the cluster is needed: --kube-node")
    if len(settings.egress_allow) > MAX_EGRESS_ALLOW:
        raise ValueError(
            f"--egress-allow: {len(settings.egress_allow)} networks; at most {MAX_EGRESS_ALLOW}: join some"
        )
    for text in settings.egress_allow:
        network = ipaddress.IPv4Network(text)
        for never in NEVER:
            if network.subnet_of(ipaddress.IPv4Network(never)):
                raise ValueError(f"--egress-allow {text} has no effect: no kernel reaches {never}")
    for registry_network in settings.registry_allow:
        ipaddress.ip_network(registry_network)
    for server in settings.name_servers:
        if ipaddress.IPv4Address(server).is_loopback:
            raise ValueError(f"{server} is this node's own, and no kernel reaches it")
    direct = "" if settings.direct_listen == direct_port.NONE else settings.direct_listen
    for address in filter(None, (*settings.managers, settings.listen, settings.advertise, direct)):
        split_address(address)
