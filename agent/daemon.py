"""Puts an agent together, runs it, and stops it: kernels run on when it ends."""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import logging
import random
import secrets
import signal
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from agent.announcement import Announcement, Announcer
from agent.api.server import Server
from agent.api.sync import SyncService
from agent.api.terms import Terms
from agent.attempts import CPU
from agent.backends.dispatch import Dispatch
from agent.backends.docker import DockerBackend, has_records
from agent.backends.docker_engine import find_host
from agent.backends.docker_kernels import DockerOptions
from agent.backends.kernels import ProcessOptions
from agent.backends.null import NullBackend
from agent.backends.process import ProcessBackend
from agent.code.workspaces import Workspaces
from agent.enrollment import enroll, split_address
from agent.identity import Identity, IdentityError, IdentityStore
from agent.kernel.build import CACHE
from agent.kernel.ssh_programs import find_programs
from agent.network.hosts import hosts_text
from agent.network.name_servers import read
from agent.network.name_servers import text as resolver_text
from agent.network.node import NodeNetworks, addresses_of
from agent.network.underlay import find_uplink
from agent.reconcile.fence import Fence
from agent.reconcile.loop import Reconciler
from agent.resources.discovery import capacity, discover, parallel_starts
from agent.resources.holdings import Holdings
from agent.resources.sampler import Sampler
from agent.resources.topology import cores_by_node, find_gpus
from retinue.agent.v1 import agent_service_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.backends.backend import Backend
    from agent.network.observed import Uplink
    from agent.network.topology import Network
    from agent.resources.discovery import Node

log = logging.getLogger(__name__)

NULL_CREATES = 100_000


@dataclass(frozen=True, slots=True)
class Settings:
    """How an agent is set up.

    `manager` is `host:port` of the manager's port for users, `listen` that of this agent; `advertise` is where the
    manager dials it, and empty means the underlay address with the port that is listened at. `join_token` and
    `ca_fingerprint` are needed for the first start only. Amounts are in the smallest unit. `docker_host` is the Docker
    engine for kernels with an image, as `unix://PATH`; empty means the usual one, if it answers. With `null_kernels`
    nothing runs at all: for tests and benches.
    `registry_config` holds credentials for registries, as Docker's `config.json` does; without it, images are fetched as
    anybody can.
    `name_servers` are for kernels with a way out, by default the node's own; `egress_allow` are networks those may reach
    although they are not public.
    """

    agent_id: str
    state_dir: Path
    scratch_dir: Path
    manager: str
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
    tasks: int = 4096
    output_limit: int = 64 << 20
    docker_host: str = ""
    null_kernels: bool = False
    registry_config: Path | None = None
    name_servers: tuple[str, ...] = ()
    egress_allow: tuple[str, ...] = ()


@functools.cache
def version() -> str:
    """Version of this software."""
    return metadata.version("retinue")


async def run(settings: Settings) -> None:
    """Runs an agent until SIGTERM or SIGINT; raises what `serve` raises."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await serve(settings, stopping)


async def serve(settings: Settings, stopping: asyncio.Event) -> None:
    """Runs an agent until `stopping` is set.

    Raises IdentityError, OSError, grpc.aio.AioRpcError, BackendError or NetworkError when it cannot start.
    """
    settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    identities = IdentityStore(settings.state_dir / "identity.json")
    await _identify(settings, identities)
    node = await asyncio.to_thread(discover)
    uplink = await asyncio.to_thread(find_uplink, settings.underlay_address or None)
    name_servers, search = (settings.name_servers, ()) if settings.name_servers else await asyncio.to_thread(read)
    resolver = resolver_text(name_servers, search)
    backend: Dispatch | NullBackend
    if settings.null_kernels:
        log.warning(
            "kernels of this agent do nothing: it is for tests and benches, and for managers in development mode"
        )
        backend = NullBackend()
    else:
        holdings = await asyncio.to_thread(_holdings, settings)
        node = replace(node, gpus=len(holdings.gpus))
        containers = await asyncio.to_thread(_containers, settings, node, resolver, holdings)
        if await asyncio.to_thread(find_programs) is None:
            log.warning(
                "kernels of one session cannot reach each other by ssh: `python -m agent.kernel` builds what is missing"
            )
        backend = Dispatch(_processes(settings, node, resolver, holdings), containers)
    networks = NodeNetworks(
        settings.agent_id,
        uplink,
        name_servers=name_servers,
        allowed=settings.egress_allow,
        always=await asyncio.to_thread(addresses_of, split_address(settings.manager)[0]),
    )
    generator = random.SystemRandom()
    fence = await asyncio.to_thread(
        Fence, settings.state_dir, node.boot_id, lambda: time.clock_gettime(time.CLOCK_BOOTTIME)
    )
    reconciler: Reconciler[Network] = Reconciler(
        backend,
        networks.links,
        networks.egress,
        hosts_text,
        clock=time.monotonic,
        random_numbers=generator,
        fence=fence,
        # Creating one of them is no work that would have to be held back.
        parallel_creates=NULL_CREATES if settings.null_kernels else parallel_starts(node.processors),
    )
    instance = secrets.token_hex(8)
    terms = await asyncio.to_thread(Terms, settings.state_dir / "term")
    welcome = functools.partial(_welcome, settings, node, uplink, instance)
    sync = SyncService(
        reconciler,
        terms,
        backends=lambda: backend.names,
        welcome=lambda: welcome(backend.names),
        protect=networks.protect,
        sampler=Sampler(functools.partial(_first_pid, backend)),
    )
    workspaces = Workspaces(backend, settings.state_dir / "code", CACHE)
    server = Server(sync, backend, workspaces, identities.current)
    try:
        await backend.open(reconciler.changed)
        await networks.open(backend.observed().keys())
        port = await server.start(settings.listen)
        address = settings.advertise or f"{_bracketed(uplink.address)}:{port}"
        log.info("agent %s listens at %s and is dialled at %s", settings.agent_id, settings.listen, address)
        about = Announcement(settings.manager, address, instance, version())
        announcer = Announcer(about, identities, generator)
        async with asyncio.TaskGroup() as group:
            reconciling = group.create_task(reconciler.run(stopping), name="reconcile")
            background = [
                group.create_task(announcer.announce_always(sync), name="announce"),
                group.create_task(announcer.renew_always(), name="renew"),
                group.create_task(networks.guard.watch(), name="guard"),
                group.create_task(fence.keep_watched(), name="warden"),
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


def _first_pid(backend: Backend, attempt_id: str) -> int | None:
    process = backend.first_process(attempt_id)
    return None if process is None else process.pid


def _holdings(settings: Settings) -> Holdings:
    """What attempts may hold for themselves. Cores are theirs only where the node offers those it has. Blocks."""
    return Holdings({} if CPU in settings.slots else cores_by_node(), find_gpus())


def _processes(settings: Settings, node: Node, resolver: str, holdings: Holdings) -> ProcessBackend:
    return ProcessBackend(
        ProcessOptions(
            agent_id=settings.agent_id,
            state_dir=settings.state_dir,
            scratch_dir=settings.scratch_dir,
            boot_id=node.boot_id,
            uid=settings.uid,
            gid=settings.gid,
            hidden=settings.hidden,
            tasks=settings.tasks,
            output_limit=settings.output_limit,
            resolver=resolver,
        ),
        holdings=holdings,
    )


def _containers(settings: Settings, node: Node, resolver: str, holdings: Holdings) -> DockerBackend | None:
    """The backend for kernels with an image; None where there is no engine and never was. Blocks."""
    host = find_host(settings.docker_host, has_records(settings.state_dir))
    if host is None:
        return None
    return DockerBackend(
        DockerOptions(
            agent_id=settings.agent_id,
            host=host,
            state_dir=settings.state_dir,
            scratch_dir=settings.scratch_dir,
            boot_id=node.boot_id,
            uid=settings.uid,
            gid=settings.gid,
            tasks=settings.tasks,
            output_limit=settings.output_limit,
            registry_config=settings.registry_config,
            resolver=resolver,
            starts=parallel_starts(node.processors),
        ),
        holdings=holdings,
    )


async def _identify(settings: Settings, identities: IdentityStore) -> Identity:
    """Loads the identity, or enrols when there is none that is valid."""
    identity = await asyncio.to_thread(identities.load, settings.agent_id)
    if identity is not None and not identity.expired(datetime.now(UTC)):
        return identity
    if not settings.join_token or not settings.ca_fingerprint:
        why = "is not enrolled" if identity is None else "has an expired certificate"
        raise IdentityError(f"agent {settings.agent_id} {why}: a join token and the CA's fingerprint are needed")
    identity = await enroll(settings.agent_id, settings.manager, settings.join_token, settings.ca_fingerprint)
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


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def check(settings: Settings) -> None:
    """Raises ValueError on addresses and networks that are none, and on an engine that is not on this node."""
    if settings.docker_host and not settings.docker_host.startswith("unix:///"):
        raise ValueError(f"{settings.docker_host!r} is not a Docker engine of this node: unix:///PATH is needed")
    for network in settings.egress_allow:
        ipaddress.IPv4Network(network)
    for server in settings.name_servers:
        if ipaddress.IPv4Address(server).is_loopback:
            raise ValueError(f"{server} is this node's own, and no kernel reaches it")
    for address in filter(None, (settings.manager, settings.listen, settings.advertise)):
        split_address(address)
