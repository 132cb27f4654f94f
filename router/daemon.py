"""Puts a router together, runs it, and stops it: its engine runs on, unless it is to end too."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import random
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import grpc.aio

from retinue.manager.v1 import enrollment_service_pb2
from retinue.proxy.program import program
from retinue.router.certificate import OwnCertificate
from retinue.router.core.listener import Listening, Logged
from retinue.router.metrics import showing_endpoints
from retinue.router.serving import Serving
from retinue.router.sync import SyncServicer
from retinue.router.tables import Tables
from retinue.router.traffic import read_traffic
from retinue.router.v1 import router_service_pb2 as pb
from retinue.router.v1 import router_service_pb2_grpc
from retinue.rpc.core.addresses import PUBLIC_ONLY, AddressPolicy
from retinue.rpc.enrollment.announcement import Announcement, Announcer
from retinue.rpc.enrollment.enrollment import identify
from retinue.rpc.enrollment.identity import IdentityStore, instance_of
from retinue.rpc.enrollment.managers import split_address
from retinue.rpc.enrollment.peers import server_credentials
from retinue.rpc.logs import log_tasks
from retinue.rpc.metrics import CERTIFICATE_ENDS, end_of, serving_metrics
from retinue.rpc.service_manager import notify_ready
from retinue.rpc.sockets import listen_error
from retinue.rpc.version import software_version

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_log = logging.getLogger(__name__)

_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.max_receive_message_length", 64 << 20),
)
_ROTATION_SECONDS = 60.0
_STOP_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a router.

    `listen` is for managers, who dial `advertise`; `clients` is where clients connect, by TLS unless `plain`; `url` is
    what they are sent to. `certificate` and `private_key` are files of one's own, in place of the manager's. `metrics`
    is `host:port`, or empty. Pickers of endpoints are connected to at `picker_addresses`. With `stop_engine` the engine
    ends with the router.
    """

    router_id: str
    directory: Path
    managers: tuple[str, ...]
    listen: str
    clients: str
    advertise: str = ""
    url: str = ""
    join_token: str = field(default="", repr=False)
    ca_fingerprint: str = ""
    envoy: Path | None = None
    plain: bool = False
    certificate: Path | None = None
    private_key: Path | None = None
    metrics: str = ""
    logged: Logged = Logged.ALL
    access_log_bytes: int = 64 << 20
    picker_addresses: AddressPolicy = PUBLIC_ONLY
    stop_engine: bool = False


async def run(settings: Settings) -> None:
    """Runs a router until SIGTERM or SIGINT. Raises IdentityError, OSError,
    ValueError and grpc.aio.AioRpcError when it cannot start.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    loop.add_signal_handler(signal.SIGUSR1, log_tasks)
    settings.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    host, port = split_address(settings.clients)
    access_log = str(settings.directory / "access.log")
    listening = Listening(host, port, tls=not settings.plain, access_log=access_log, logged=settings.logged)
    serving = Serving(
        settings.router_id, settings.directory, settings.envoy or program(), listening, settings.picker_addresses
    )
    own = await asyncio.to_thread(_own_certificate, settings, serving)
    tables = await asyncio.to_thread(
        Tables, settings.directory / "table", serving.set_table if own is None else own.follow
    )
    try:
        async with serving.open():
            # Before a manager is asked for anything: clients may be waiting.
            tables.begin()
            await _serve(settings, serving, tables, own, stopping)
    finally:
        if settings.stop_engine:
            await serving.engine.stop()


def _own_certificate(settings: Settings, serving: Serving) -> OwnCertificate | None:
    """Returns the certificate of one's own, where there is one. Raises OSError and ValueError. Blocks."""
    if settings.certificate is None or settings.private_key is None:
        return None
    return OwnCertificate(settings.certificate, settings.private_key, serving.set_table)


async def _serve(
    settings: Settings, serving: Serving, tables: Tables, own: OwnCertificate | None, stopping: asyncio.Event
) -> None:
    identities = IdentityStore(settings.directory / "identity.json")
    router = enrollment_service_pb2.NODE_KIND_ROUTER
    await identify(
        settings.router_id, settings.managers, settings.join_token, settings.ca_fingerprint, identities, router
    )
    servicer = SyncServicer(
        serving, tables, functools.partial(_welcome, settings, serving), functools.partial(read_traffic, serving)
    )
    async with _listening(settings.listen, servicer, identities) as port:
        instance = await asyncio.to_thread(instance_of, identities.current(), settings.directory)
        address = settings.advertise or f"{settings.listen.rpartition(':')[0]}:{port}"
        about = Announcement(settings.managers, address, instance, software_version())
        announcer = Announcer(about, identities, random.SystemRandom(), kind=router)
        async with contextlib.AsyncExitStack() as stack:
            if settings.metrics:
                CERTIFICATE_ENDS.labels("node").set_function(lambda: end_of(identities.current().certificate))
                if not settings.plain:
                    CERTIFICATE_ENDS.labels("clients").set_function(lambda: end_of(serving.table.common.certificate))
                await stack.enter_async_context(showing_endpoints(serving))
                await stack.enter_async_context(serving_metrics(settings.metrics, "retinue-router"))
            background = [
                asyncio.create_task(announcer.announce_always(servicer.wait_disconnected), name="announce"),
                asyncio.create_task(announcer.renew_always(), name="renew"),
                asyncio.create_task(_rotate(serving, settings.access_log_bytes), name="access log"),
            ]
            if own is not None:
                background.append(asyncio.create_task(own.watch(), name="certificate"))
            _log.info("router %s listens at %s and is dialled at %s", settings.router_id, settings.listen, address)
            notify_ready()
            try:
                await stopping.wait()
            finally:
                for task in background:
                    task.cancel()
                await asyncio.gather(*background, return_exceptions=True)


@contextlib.asynccontextmanager
async def _listening(address: str, servicer: SyncServicer, identities: IdentityStore) -> AsyncIterator[int]:
    server = grpc.aio.server(options=_OPTIONS)
    router_service_pb2_grpc.add_RouterServiceServicer_to_server(servicer, server)
    try:
        port = server.add_secure_port(address, server_credentials(identities.current))
    except RuntimeError as error:
        raise listen_error(address) from error
    await server.start()
    try:
        yield port
    finally:
        await server.stop(_STOP_SECONDS)


async def _welcome(settings: Settings, serving: Serving) -> pb.Welcome:
    try:
        engine = await serving.engine.admin.version()
    except OSError:
        engine = ""
    url = settings.url or f"{'http' if settings.plain else 'https'}://{settings.clients}"
    return pb.Welcome(router_id=settings.router_id, version=software_version(), engine_version=engine, url=url)


async def _rotate(serving: Serving, size: int) -> None:
    """Keeps the access log, and one before it, below a size each."""
    path = Path(serving.listening.access_log)
    while True:
        await asyncio.sleep(_ROTATION_SECONDS)
        with contextlib.suppress(OSError):
            if await asyncio.to_thread(os.path.getsize, path) > size:
                await asyncio.to_thread(path.replace, path.with_suffix(".log.1"))
                await serving.engine.admin.post("/reopen_logs")
