"""Puts an agent together, runs it, and stops it: kernels run on when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import random
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from retinue.agent.api.server import Server
from retinue.agent.api.sync import SyncService
from retinue.agent.api.terms import Terms
from retinue.agent.attempts import Isolation
from retinue.agent.builds import SSH, NodeBuilds
from retinue.agent.code.workspaces import Workspaces
from retinue.agent.conditions import Conditions
from retinue.agent.docker.credentials import describe_trouble
from retinue.agent.docker.engine import find_host
from retinue.agent.docker.fetched_images import FetchedImages
from retinue.agent.docker.options import DockerOptions
from retinue.agent.docker.registry_addresses import RegistryAddresses
from retinue.agent.docker.runtime import DockerRuntime, has_records
from retinue.agent.errors import UnknownAttemptError
from retinue.agent.fencing.lease import Fence
from retinue.agent.host.lanes import NETWORK
from retinue.agent.inside.provision import wants_ssh
from retinue.agent.kernel.build import CACHE
from retinue.agent.kubernetes.options import KubernetesOptions
from retinue.agent.kubernetes.runtime import KubernetesRuntime
from retinue.agent.network.name_servers import NameServers
from retinue.agent.network.node import ManagerAddresses, NodeNetworks
from retinue.agent.network.underlay import find_uplink, moved_from
from retinue.agent.node_faults import noting_faults
from retinue.agent.probes.prober import Prober
from retinue.agent.probes.questions import ask, say_ready
from retinue.agent.probes.scraper import Scraper
from retinue.agent.process.options import ProcessOptions
from retinue.agent.process.runtime import ProcessRuntime
from retinue.agent.reconcile.loop import Reconciler
from retinue.agent.resources.core.holdings import Holdings
from retinue.agent.resources.discovery import capacity, cores_by_node, discover, parallel_starts
from retinue.agent.resources.gpus import Driver, GpuUse, GpuWatch
from retinue.agent.resources.sampler import Sampler
from retinue.agent.resources.usage_history import UsageHistory
from retinue.agent.runtime.contract import RuntimeStatus
from retinue.agent.runtime.disk_use import find_disk
from retinue.agent.runtime.null import NullRuntime
from retinue.agent.runtime.options import RuntimeOptions, Shared
from retinue.agent.runtimes import Runtimes
from retinue.agent.state.damaged import DIRECTORY, DamagedFiles, report_damage
from retinue.agent.state.disk import Disk
from retinue.agent.state.exclusive import lock
from retinue.agent.v1 import agent_service_pb2
from retinue.agent.vm.images import ImageRoots
from retinue.agent.vm.options import VmOptions
from retinue.agent.vm.runtime import VmRuntime
from retinue.rpc import direct_port
from retinue.rpc.cancellation import cancellable
from retinue.rpc.core.amounts import CPU
from retinue.rpc.enrollment.announcement import Announcement, Announcer
from retinue.rpc.enrollment.enrollment import identify
from retinue.rpc.enrollment.identity import IdentityStore, instance_of
from retinue.rpc.enrollment.managers import split_address
from retinue.rpc.logs import log_tasks
from retinue.rpc.metrics import CERTIFICATE_ENDS, end_of, serving_metrics
from retinue.rpc.retrying import keep
from retinue.rpc.service_manager import notify_ready
from retinue.rpc.version import software_version

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping

    from retinue.agent.attempts import AttemptSpec
    from retinue.agent.network.core.observed import Uplink
    from retinue.agent.resources.discovery import Node
    from retinue.agent.resources.sampler import GpuReader, Reader
    from retinue.agent.runtime.contract import OptionalRuntime, Runtime
    from retinue.agent.settings import Settings

_log = logging.getLogger(__name__)

NULL_CREATES = 100_000
ADDRESS_INTERVAL = 5.0
"""Seconds between two looks at whether the node still has its address."""
MANAGERS_INTERVAL = 60.0
"""Seconds between two looks at what the managers' names mean."""
INSPECTION_INTERVAL = 30.0
"""Seconds between two comparisons of a session's network with its plan."""


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

    Raises InUseError, IdentityError, OSError, grpc.aio.AioRpcError, KernelRuntimeError or
    NetworkError when it cannot start.
    """
    settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    in_use = f"another agent process uses the data directory {settings.state_dir}: stop it first"
    # First of all: what follows takes over what a former process left, and ends what it does not need.
    descriptor = await asyncio.to_thread(lock, settings.state_dir, in_use)
    try:
        await _serve(settings, stopping)
    finally:
        os.close(descriptor)


async def _serve(settings: Settings, stopping: asyncio.Event) -> None:  # noqa: PLR0915  # one part after the other
    damaged, conditions, disk = _state(settings)
    identities = IdentityStore(settings.state_dir / "identity.json")
    await identify(settings.agent_id, settings.managers, settings.join_token, settings.ca_fingerprint, identities)
    node = await asyncio.to_thread(discover)
    uplink = await asyncio.to_thread(find_uplink, settings.underlay_address or None)
    if settings.underlay_mtu:
        # Networks that exist keep theirs; of new ones the managers choose it by what agents say.
        uplink = replace(uplink, mtu=min(uplink.mtu, settings.underlay_mtu))
    name_servers = NameServers(settings.name_servers)
    if (found := await asyncio.to_thread(name_servers.changed)) is not None:
        name_servers.take(*found)
    resolver = name_servers.resolver
    managers = ManagerAddresses(split_address(manager)[0] for manager in settings.managers)
    await asyncio.to_thread(managers.look)
    registries = RegistryAddresses(settings.registry_allow, managers.known)
    builds = NodeBuilds(CACHE, builds=settings.builds, changed=lambda _: reconciler.changed())
    runtime: Runtimes | NullRuntime
    gpu_watch: GpuWatch | None = None
    if settings.null_kernels:
        _log.warning(
            "kernels of this agent do nothing: it is for tests and benches, and for managers in development mode"
        )
        runtime = NullRuntime()
        gpus: GpuReader = _no_gpus
    else:
        node = replace(node, disk=await asyncio.to_thread(find_disk, settings.scratch_dir))
        shared = Shared(await asyncio.to_thread(_holdings, settings), damaged, disk, conditions)
        driver = Driver()
        gpu_watch = GpuWatch(driver, shared.holdings, conditions)
        gpu_watch.take(await asyncio.to_thread(gpu_watch.look))
        gpus = GpuUse(shared.holdings.gpus_of, driver).read
        fetched = await asyncio.to_thread(FetchedImages, settings.state_dir)
        containers = await _containers(settings, node, resolver, shared, registries, fetched=fetched)
        others: dict[Isolation, OptionalRuntime] = {}
        missing = []
        if containers is not None:
            others[Isolation.CONTAINER] = containers
        else:
            missing.append(RuntimeStatus(DockerRuntime.name, available=False, message="no Docker engine was found"))
        machines = _options(
            VmOptions,
            settings,
            node,
            resolver,
            hidden=settings.hidden,
            shown=settings.shown,
            starts=parallel_starts(node.processors),
        )
        others[Isolation.VM] = await _machines(settings, machines, shared, registries, builds, fetched=fetched)
        processes = _options(ProcessOptions, settings, node, resolver, hidden=settings.hidden, shown=settings.shown)
        runtime = Runtimes(ProcessRuntime(processes, shared), others, missing)
    networks = NodeNetworks(
        settings.agent_id,
        uplink,
        settings.state_dir,
        name_servers=name_servers,
        allowed=settings.egress_allow,
        always=managers.known,
        conditions=conditions,
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
    reconciler = Reconciler(
        runtime,
        networks.links,
        networks.egress,
        networks.publisher,
        clock=time.monotonic,
        random_numbers=generator,
        fence=fence,
        conditions=conditions,
        inspection_interval=INSPECTION_INTERVAL,
        # Creating one of them is no work that would have to be held back.
        parallel_creates=NULL_CREATES if settings.null_kernels else parallel_starts(node.processors),
        waits_for=functools.partial(_waits_for, builds),
        paths=networks.paths,
    )
    instance, terms = (
        await asyncio.to_thread(instance_of, identities.current(), settings.state_dir),
        await asyncio.to_thread(Terms, settings.state_dir / "term", damaged, disk),
    )
    prober = Prober(
        runtime,
        networks.egress,
        networks.publisher,
        reconciler.desired,
        reconciler.changed,
        ask=say_ready if settings.null_kernels else ask,
    )
    scraper = Scraper(runtime, networks.egress, reconciler.desired)
    sampler = Sampler(functools.partial(_usage_reader, runtime), gpus)
    # Null kernels use nothing, and there are a hundred thousand of them.
    history = UsageHistory(sampler, tuple if settings.null_kernels else reconciler.attempts)
    sync = SyncService(
        reconciler,
        terms,
        about=_about(settings, node, uplink, instance),
        reachable=lambda: (*settings.egress_allow, *name_servers.servers),
        runtimes=lambda: runtime.statuses,
        capacity=lambda: capacity(
            node if gpu_watch is None else replace(node, gpus=gpu_watch.count),
            settings.reserve,
            settings.slots,
            runtime.capacity,
        ),
        protect=functools.partial(_protect, networks, registries),
        route=networks.route,
        routed=prober.status,
        answered=prober.answered,
        sampler=sampler,
        scraper=scraper,
    )
    workspaces = Workspaces(runtime, settings.state_dir / "code", builds)
    server = Server(sync, runtime, workspaces, networks.publisher, identities.current, builds=builds, history=history)
    try:
        reconciler.listen(prober.wake)
        networks.paths.listen(reconciler.changed)
        await runtime.open(reconciler.changed)
        await networks.open(runtime.observe().keys())
        if not settings.null_kernels:
            await builds.begin()
        port = await server.start(settings.listen, direct_port.listen_address(settings.direct_listen, settings.listen))
        address = settings.advertise or f"{_bracketed(uplink.address)}:{port}"
        _log.info("agent %s listens at %s and is dialled at %s", settings.agent_id, settings.listen, address)
        about = Announcement(settings.managers, address, instance, software_version())
        announcer = Announcer(about, identities, generator)
        async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            faults = stack.enter_context(noting_faults(conditions))
            if settings.metrics:
                CERTIFICATE_ENDS.labels("node").set_function(lambda: end_of(identities.current().certificate))
                await stack.enter_async_context(serving_metrics(settings.metrics, "retinue-agent"))
            # Without it the agent would be connected and do nothing: whatever it ends with, ends the agent.
            reconciling = group.create_task(cancellable(reconciler.run, stopping), name="reconcile")
            parts: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
                "announcements": lambda: announcer.announce_always(sync.wait_idle),
                "certificate renewal": announcer.renew_always,
                "rules": networks.guard.watch,
                "name servers": networks.follow,
                "addresses of managers": lambda: _follow_managers(managers, networks, registries),
                "probes": prober.run,
                "metrics of kernels": scraper.run,
                "usage history": history.run,
                "workspaces": workspaces.keep_swept,
                "watchdog": fence.keep_watched,
                "fence": fence.keep_written,
                "disk": disk.watch,
                "limits": faults.watch,
                "damaged files": lambda: report_damage(damaged, conditions),
            }
            if not settings.underlay_address:
                parts["own address"] = lambda: _end_when_moved(uplink, stopping)
            if gpu_watch is not None:
                parts["GPUs"] = functools.partial(gpu_watch.run, reconciler.changed)
            background = [group.create_task(keep(name, part, _log), name=name) for name, part in parts.items()]
            notify_ready()
            await stopping.wait()
            _log.info("stopping; kernels run on")
            for task in background:
                task.cancel()
            await server.stop()
            await reconciling
    finally:
        await builds.close()
        await server.stop()
        await networks.close()
        await runtime.close()


async def _follow_managers(managers: ManagerAddresses, networks: NodeNetworks, registries: RegistryAddresses) -> None:
    """Keeps kernels, and the engine, from the managers where their names lead by now."""
    while True:
        await asyncio.sleep(MANAGERS_INTERVAL)
        if await asyncio.to_thread(managers.look):
            _log.info("the managers' addresses are %s", ", ".join(sorted(managers.known)))
            networks.keep_from(managers.known)
            registries.keep_from(managers.known)


async def _end_when_moved(uplink: Uplink, stopping: asyncio.Event) -> None:
    """Ends the agent when its node has another address: started again, as service managers do, it announces the new
    one.
    """
    while True:
        await asyncio.sleep(ADDRESS_INTERVAL)
        if (found := await NETWORK.run(moved_from, uplink.address)) is not None:
            _log.error(
                "this node's address is %s and no longer %s: the agent ends, and has to be started again",
                found.address,
                uplink.address,
            )
            stopping.set()


def _waits_for(builds: NodeBuilds, spec: AttemptSpec) -> str:
    """Returns why an attempt cannot be created yet: ssh is put into kernels of cluster sessions when they are made."""
    if builds.in_progress(SSH) and wants_ssh(spec):
        return "this node builds ssh between kernels, once, which takes a minute or two"
    return ""


def _protect(networks: NodeNetworks, registries: RegistryAddresses, addresses: frozenset[str]) -> None:
    """Keeps kernels, and the engine when it fetches an image, from the addresses of the fleet."""
    networks.protect(addresses)
    registries.protect(addresses)


def _usage_reader(runtime: Runtime, attempt_id: str) -> Reader | None:
    try:
        return runtime.kernel(attempt_id).usage
    except UnknownAttemptError:
        return None


def _no_gpus(attempt_ids: Iterable[str]) -> Mapping[str, float]:
    del attempt_ids
    return {}


def _holdings(settings: Settings) -> Holdings:
    """Returns what attempts may hold exclusively: cores only when the node offers the cores it has. Blocks."""
    return Holdings({} if CPU in settings.slots else cores_by_node())


def _state(settings: Settings) -> tuple[DamagedFiles, Conditions, Disk]:
    conditions = Conditions()
    disk = Disk(settings.state_dir, conditions, (settings.scratch_dir,))
    return DamagedFiles(settings.state_dir / DIRECTORY), conditions, disk


_Options = TypeVar("_Options", bound=RuntimeOptions)


def _options(
    kind: type[_Options], settings: Settings, node: Node, resolver: Callable[[], str], **more: Any
) -> _Options:
    return kind(
        agent_id=settings.agent_id,
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
        resolver=resolver,
        **more,
    )


async def _machines(
    settings: Settings,
    options: VmOptions,
    shared: Shared,
    registries: RegistryAddresses,
    builds: NodeBuilds,
    *,
    fetched: FetchedImages,
) -> VmRuntime:
    """Returns the runtime for virtual machines; on a node that has none of what they need, it says so."""
    host = await find_host(settings.docker_host, needed=False)
    roots = settings.state_dir / "vm" / "images"
    images = None
    if host is not None:
        images = ImageRoots(
            host,
            settings.agent_id,
            roots,
            settings.registry_config,
            registries,
            fetched=fetched,
        )
    return VmRuntime(options, shared, images=images, builds=builds)


async def _containers(
    settings: Settings,
    node: Node,
    resolver: Callable[[], str],
    shared: Shared,
    registries: RegistryAddresses,
    *,
    fetched: FetchedImages,
) -> OptionalRuntime | None:
    """Returns the runtime for kernels with an image; None where there is no engine and never was."""
    if (cluster := settings.kubernetes) is not None:
        pods = _options(
            KubernetesOptions,
            settings,
            node,
            resolver,
            node_name=cluster.node,
            namespace=cluster.namespace,
            config=cluster.config,
            priority_class=cluster.priority_class,
            pull_secrets=cluster.pull_secrets,
            runtime=cluster.runtime,
            starts=parallel_starts(node.processors),
        )
        return KubernetesRuntime(pods, shared)
    host = await find_host(settings.docker_host, await asyncio.to_thread(has_records, settings.state_dir))
    if host is None:
        return None
    if trouble := await asyncio.to_thread(describe_trouble, settings.registry_config):
        _log.warning("images of private registries cannot be fetched: %s", trouble)
    options = _options(
        DockerOptions,
        settings,
        node,
        resolver,
        host=host,
        registry_config=settings.registry_config,
        registry_addresses=registries,
        starts=parallel_starts(node.processors),
        fetched_images=fetched,
        image_removal=settings.image_removal,
    )
    return DockerRuntime(options, shared)


def _about(settings: Settings, node: Node, uplink: Uplink, instance: str) -> agent_service_pb2.Welcome:
    """Returns what does not change of the node while the agent runs."""
    return agent_service_pb2.Welcome(
        agent_id=settings.agent_id,
        instance=instance,
        boot_id=node.boot_id,
        version=software_version(),
        architecture=node.architecture,
        underlay_address=uplink.address,
        underlay_mtu=uplink.mtu,
        proves_paths=True,
    )


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
