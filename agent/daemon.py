"""Puts an agent together, runs it, and stops it: kernels run on when it ends."""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import logging
import os
import random
import signal
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.agent.announcement import Announcement, Announcer
from retinue.agent.api.server import Server
from retinue.agent.api.sync import SyncService
from retinue.agent.api.terms import Terms
from retinue.agent.attempts import CPU
from retinue.agent.code.workspaces import Workspaces
from retinue.agent.conditions import Conditions
from retinue.agent.docker.backend import DockerRuntime, has_records
from retinue.agent.docker.containers import DockerOptions
from retinue.agent.docker.engine import find_host
from retinue.agent.docker.registry_addresses import RegistryAddresses
from retinue.agent.enrollment.enrollment import enroll
from retinue.agent.enrollment.identity import Identity, IdentityError, IdentityStore, instance_of
from retinue.agent.enrollment.managers import split_address
from retinue.agent.errors import UnknownAttemptError
from retinue.agent.fencing.lease import Fence
from retinue.agent.host.users import UserRange
from retinue.agent.kernel.build import CACHE
from retinue.agent.kernel.ssh_programs import find_programs
from retinue.agent.network.core.hosts import hosts_text
from retinue.agent.network.name_servers import read
from retinue.agent.network.name_servers import text as resolver_text
from retinue.agent.network.node import NodeNetworks, addresses_of
from retinue.agent.network.underlay import find_uplink
from retinue.agent.process.backend import ProcessRuntime
from retinue.agent.process.sandboxes import ProcessOptions
from retinue.agent.reconcile.loop import Reconciler
from retinue.agent.resources.core.holdings import Holdings
from retinue.agent.resources.discovery import capacity, discover, parallel_starts
from retinue.agent.resources.sampler import Sampler
from retinue.agent.resources.topology import cores_by_node, find_gpus
from retinue.agent.runtime.null import NullRuntime
from retinue.agent.runtimes import Runtimes
from retinue.agent.state.damaged import DIRECTORY, DamagedFiles, report_damage
from retinue.agent.state.disk import Disk
from retinue.agent.state.exclusive import lock
from retinue.agent.v1 import agent_service_pb2
from retinue.rpc.logs import log_tasks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from retinue.agent.network.core.observed import Uplink
    from retinue.agent.network.core.topology import Network
    from retinue.agent.resources.core.usage import Usage
    from retinue.agent.resources.discovery import Node
    from retinue.agent.runtime.contract import Runtime

log = logging.getLogger(__name__)

NULL_CREATES = 100_000
INSPECTION_INTERVAL = 30.0
"""Seconds between two comparisons of a session's network with its plan."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of an agent.

    `managers` are `host:port` of the managers' ports for users, `listen` that of this agent; `advertise` is where they
    dial it, and empty means the underlay address with the port that is listened at. `join_token` and
    `ca_fingerprint` are needed for the first start only. Amounts are in the smallest unit. `docker_host` is the Docker
    engine for kernels with an image, as `unix://PATH`; empty means the usual one, if it answers. With `null_kernels`
    nothing runs at all: for tests and benches.
    `registry_config` holds credentials for registries, as Docker's `config.json` does; without it, images are fetched as
    anybody can.
    `name_servers` are for kernels with egress, by default the node's own; `egress_allow` are networks those may reach
    although they are not public. `registry_allow` are networks that registries of images may be in although they are this node's own,
    link-local, or the fleet's.
    """

    agent_id: str
    state_dir: Path
    scratch_dir: Path
    managers: tuple[str, ...]
    listen: str
    join_token: str = ""
    ca_fingerprint: str = ""
    advertise: str = ""
    underlay_address: str = ""
    slots: Mapping[str, int] = field(default_factory=dict)
    reserve: Mapping[str, int] = field(default_factory=dict)
    hidden: tuple[Path, ...] = ()
    uid: int = 60_000
    gid: int = 60_000
    users: UserRange = field(default_factory=UserRange)
    tasks: int = 4096
    output_limit: int = 64 << 20
    work_size: int = 0
    work_files: int = 0
    docker_host: str = ""
    null_kernels: bool = False
    registry_config: Path | None = None
    name_servers: tuple[str, ...] = ()
    egress_allow: tuple[str, ...] = ()
    registry_allow: tuple[str, ...] = ()


@functools.cache
def version() -> str:
    """Returns the version of this software."""
    return metadata.version("retinue")


async def run(settings: Settings) -> None:
    """Runs an agent until SIGTERM or SIGINT; raises what `serve` raises."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    loop.add_signal_handler(signal.SIGUSR1, log_tasks)
    await serve(settings, stopping)


async def serve(settings: Settings, stopping: asyncio.Event) -> None:
    """Runs an agent until `stopping` is set.

    Raises InUseError, IdentityError, OSError, grpc.aio.AioRpcError, BackendError or NetworkError when it cannot start.
    """
    settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    in_use = f"another agent process uses the data directory {settings.state_dir}: stop it first"
    # First of all: what follows takes over what a former process left, and ends what it does not need.
    descriptor = await asyncio.to_thread(lock, settings.state_dir, in_use)
    try:
        await _serve(settings, stopping)
    finally:
        os.close(descriptor)


async def _serve(settings: Settings, stopping: asyncio.Event) -> None:
    damaged, conditions, disk = _state(settings)
    identities = IdentityStore(settings.state_dir / "identity.json")
    await _identify(settings, identities)
    node = await asyncio.to_thread(discover)
    uplink = await asyncio.to_thread(find_uplink, settings.underlay_address or None)
    name_servers, search = (settings.name_servers, ()) if settings.name_servers else await asyncio.to_thread(read)
    resolver = resolver_text(name_servers, search)
    managers = await asyncio.to_thread(_addresses_of_managers, settings)
    registries = RegistryAddresses(settings.registry_allow, managers)
    backend: Runtimes | NullRuntime
    if settings.null_kernels:
        log.warning(
            "kernels of this agent do nothing: it is for tests and benches, and for managers in development mode"
        )
        backend = NullRuntime()
    else:
        common = _Common(await asyncio.to_thread(_holdings, settings), damaged, disk, conditions)
        node = replace(node, gpus=len(common.holdings.gpus))
        containers = await asyncio.to_thread(_containers, settings, node, resolver, common, registries)
        if await asyncio.to_thread(find_programs) is None:
            log.warning(
                "kernels of one session cannot reach each other by ssh: `python -m retinue.agent.kernel` builds what is missing"
            )
        backend = Runtimes(_processes(settings, node, resolver, common), containers)
    networks = NodeNetworks(
        settings.agent_id,
        uplink,
        name_servers=name_servers,
        allowed=settings.egress_allow,
        always=managers,
    )
    generator = random.SystemRandom()
    fence = await asyncio.to_thread(
        Fence,
        settings.state_dir,
        node.boot_id,
        lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
        damaged=damaged,
        disk=disk,
    )
    reconciler: Reconciler[Network] = Reconciler(
        backend,
        networks.links,
        networks.egress,
        hosts_text,
        clock=time.monotonic,
        random_numbers=generator,
        fence=fence,
        conditions=conditions,
        inspection_interval=INSPECTION_INTERVAL,
        # Creating one of them is no work that would have to be held back.
        parallel_creates=NULL_CREATES if settings.null_kernels else parallel_starts(node.processors),
    )
    instance, terms = (
        await asyncio.to_thread(instance_of, identities.current(), settings.state_dir),
        await asyncio.to_thread(Terms, settings.state_dir / "term", damaged, disk),
    )
    welcome = functools.partial(_welcome, settings, node, uplink, instance)
    sync = SyncService(
        reconciler,
        terms,
        backends=lambda: backend.names,
        welcome=lambda: welcome(backend.names),
        protect=functools.partial(_protect, networks, registries),
        sampler=Sampler(functools.partial(_usage, backend)),
    )
    workspaces = Workspaces(backend, settings.state_dir / "code", CACHE)
    server = Server(sync, backend, workspaces, identities.current)
    try:
        await backend.open(reconciler.changed)
        await networks.open(backend.observe().keys())
        port = await server.start(settings.listen)
        address = settings.advertise or f"{_bracketed(uplink.address)}:{port}"
        log.info("agent %s listens at %s and is dialled at %s", settings.agent_id, settings.listen, address)
        about = Announcement(settings.managers, address, instance, version())
        announcer = Announcer(about, identities, generator)
        async with asyncio.TaskGroup() as group:
            reconciling = group.create_task(reconciler.run(stopping), name="reconcile")
            background = [
                group.create_task(announcer.announce_always(sync), name="announce"),
                group.create_task(announcer.renew_always(), name="renew"),
                group.create_task(networks.guard.watch(), name="guard"),
                group.create_task(workspaces.keep_swept(), name="workspaces"),
                group.create_task(fence.keep_watched(), name="watchdog"),
                group.create_task(fence.keep_written(), name="fence"),
                group.create_task(disk.watch(), name="disk"),
                group.create_task(report_damage(damaged, conditions), name="damaged files"),
            ]
            await stopping.wait()
            log.info("stopping; kernels run on")
            for task in background:
                task.cancel()
            await server.stop()
            await reconciling
    finally:
        await server.stop()
        await networks.close()
        await backend.close()


def _protect(networks: NodeNetworks, registries: RegistryAddresses, addresses: frozenset[str]) -> None:
    """Keeps kernels, and the engine when it fetches an image, from the addresses of the fleet."""
    networks.protect(addresses)
    registries.protect(addresses)


async def _usage(backend: Runtime, attempt_id: str) -> Usage | None:
    try:
        return await backend.kernel(attempt_id).usage()
    except UnknownAttemptError:
        return None


def _holdings(settings: Settings) -> Holdings:
    """Returns what attempts may hold exclusively: cores only when the node offers the cores it has. Blocks."""
    return Holdings({} if CPU in settings.slots else cores_by_node(), find_gpus())


def _state(settings: Settings) -> tuple[DamagedFiles, Conditions, Disk]:
    conditions = Conditions()
    disk = Disk(settings.state_dir, conditions, (settings.scratch_dir,))
    return DamagedFiles(settings.state_dir / DIRECTORY), conditions, disk


@dataclass(frozen=True, slots=True)
class _Common:
    """The objects that both kinds of kernels share."""

    holdings: Holdings
    damaged: DamagedFiles
    disk: Disk
    conditions: Conditions


def _processes(settings: Settings, node: Node, resolver: str, common: _Common) -> ProcessRuntime:
    return ProcessRuntime(
        ProcessOptions(
            agent_id=settings.agent_id,
            state_dir=settings.state_dir,
            scratch_dir=settings.scratch_dir,
            boot_id=node.boot_id,
            uid=settings.uid,
            gid=settings.gid,
            users=settings.users,
            hidden=settings.hidden,
            tasks=settings.tasks,
            output_limit=settings.output_limit,
            work_size=settings.work_size,
            work_files=settings.work_files,
            resolver=resolver,
        ),
        holdings=common.holdings,
        damaged=common.damaged,
        disk=common.disk,
        conditions=common.conditions,
    )


def _containers(
    settings: Settings, node: Node, resolver: str, common: _Common, registries: RegistryAddresses
) -> DockerRuntime | None:
    """Returns the backend for kernels with an image; None where there is no engine and never was. Blocks."""
    host = find_host(settings.docker_host, has_records(settings.state_dir))
    if host is None:
        return None
    return DockerRuntime(
        DockerOptions(
            agent_id=settings.agent_id,
            host=host,
            state_dir=settings.state_dir,
            scratch_dir=settings.scratch_dir,
            boot_id=node.boot_id,
            uid=settings.uid,
            gid=settings.gid,
            users=settings.users,
            tasks=settings.tasks,
            output_limit=settings.output_limit,
            work_size=settings.work_size,
            work_files=settings.work_files,
            registry_config=settings.registry_config,
            registry_addresses=registries,
            resolver=resolver,
            starts=parallel_starts(node.processors),
        ),
        holdings=common.holdings,
        damaged=common.damaged,
        disk=common.disk,
        conditions=common.conditions,
    )


async def _identify(settings: Settings, identities: IdentityStore) -> Identity:
    """Loads the identity, or enrols when there is none that is valid."""
    identity = await asyncio.to_thread(identities.load, settings.agent_id)
    if identity is not None and not identity.expired(datetime.now(UTC)):
        return identity
    if not settings.join_token or not settings.ca_fingerprint:
        why = "is not enrolled" if identity is None else "has an expired certificate"
        raise IdentityError(f"agent {settings.agent_id} {why}: a join token and the CA's fingerprint are needed")
    identity = await enroll(settings.agent_id, settings.managers, settings.join_token, settings.ca_fingerprint)
    await asyncio.to_thread(identities.save, identity)
    log.info("agent %s is enrolled", settings.agent_id)
    return identity


def _welcome(
    settings: Settings, node: Node, uplink: Uplink, instance: str, backends: Sequence[str]
) -> agent_service_pb2.Welcome:
    return agent_service_pb2.Welcome(
        agent_id=settings.agent_id,
        instance=instance,
        boot_id=node.boot_id,
        version=version(),
        architecture=node.architecture,
        capacity=capacity(node, settings.reserve, settings.slots),
        backends=backends,
        underlay_address=uplink.address,
        underlay_mtu=uplink.mtu,
    )


def _addresses_of_managers(settings: Settings) -> set[str]:
    return {address for manager in settings.managers for address in addresses_of(split_address(manager)[0])}


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def check(settings: Settings) -> None:
    """Raises ValueError on addresses and networks that are none, and on an engine that is not on this node."""
    if settings.docker_host and not settings.docker_host.startswith("unix:///"):
        raise ValueError(f"{settings.docker_host!r} is not a Docker engine of this node: unix:///PATH is needed")
    for network in settings.egress_allow:
        ipaddress.IPv4Network(network)
    for network in settings.registry_allow:
        ipaddress.ip_network(network)
    for server in settings.name_servers:
        if ipaddress.IPv4Address(server).is_loopback:
            raise ValueError(f"{server} is this node's own, and no kernel reaches it")
    for address in filter(None, (*settings.managers, settings.listen, settings.advertise)):
        split_address(address)
