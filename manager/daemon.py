"""The manager's process: what is started, in which order, and how it ends.

Start: database, schema, authority, ports, background work, health. Stop, in reverse order: health says NOT_SERVING,
streams end with UNAVAILABLE, calls in progress may finish, the ports close, background work is cancelled,
the database goes last.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import functools
import os
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import grpc
import grpc.aio
from prometheus_client import Gauge

from retinue.manager import development, options
from retinue.manager.agent_rpc.dialer import Dialer
from retinue.manager.agent_rpc.reach import ClientIdentity
from retinue.manager.agent_rpc.relay import Forwarder
from retinue.manager.controllers.leader import Leader
from retinue.manager.dispatch.protected_addresses import HostAddresses, control_plane_hosts
from retinue.manager.domain.session.secrets import SessionSecrets
from retinue.manager.identity.authority import MANAGER_DNS, Authority
from retinue.manager.identity.endpoint_tokens import EndpointDomain
from retinue.manager.identity.own_certificate import OwnCertificate
from retinue.manager.idle.activity import ActivityRecorder
from retinue.manager.installation import (
    alone,
    claim,
    embedded_server,
    follow_authority,
    prepare_directory,
    read_seal_key,
    refuse_second_cluster,
)
from retinue.manager.listeners import Ports, serving
from retinue.manager.server import pages
from retinue.manager.server.auditing import Auditor
from retinue.manager.server.authentication import Authenticator
from retinue.manager.server.calls import Browsers
from retinue.manager.store.fleet import nodes
from retinue.manager.store.journal.journal_tail import JournalTail
from retinue.manager.store.leadership import leadership
from retinue.manager.store.migrations import migrate
from retinue.manager.store.postgres import cluster
from retinue.manager.store.postgres.database import Database
from retinue.manager.store.postgres.health import watch_database
from retinue.manager.store.postgres.lanes import Lane, enter_lane, in_lane
from retinue.manager.supervision import supervise
from retinue.manager.webhooks import seal
from retinue.rpc.cancellation import cancellable
from retinue.rpc.metrics import CERTIFICATE_ENDS, end_of, end_of_file, serving_metrics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from retinue.manager.endpoints.controller import EndpointController
    from retinue.manager.gateway.serving import Gateway
    from retinue.manager.gateway.settings import GatewaySettings
    from retinue.manager.settings import Settings
    from retinue.manager.store.postgres.embedded import EmbeddedServer


_NAMES_SECONDS = 2.0

_DATABASE_REACHABLE = Gauge("retinue_manager_database_reachable", "1 while the database answers the manager, else 0.")
_DATABASE_EMBEDDED = Gauge("retinue_manager_database_embedded", "1 if the manager runs its database itself, else 0.")
_DATA_FREE = Gauge("retinue_manager_data_free_bytes", "Free space on the disk of the manager's data directory.")
_DATA_SIZE = Gauge("retinue_manager_data_size_bytes", "Size of the disk of the manager's data directory.")
_JOURNAL_LAG = Gauge(
    "retinue_journal_lag_seconds", "Seconds since the manager last had all events of the journal, for its watchers."
)


@dataclass(frozen=True, slots=True)
class Ready:
    """The addresses of a started manager and, in development mode, its credentials."""

    endpoint: str
    agent_endpoint: str
    credentials: development.Credentials | None


class Leading:
    """Leads when it is this replica's turn."""

    def __init__(  # noqa: PLR0917  # what the manager has made
        self,
        database: Database,
        tail: JournalTail,
        dialer: Dialer,
        settings: Settings,
        secrets: SessionSecrets,
        domain: EndpointDomain,
        gateway: Gateway | None,
    ) -> None:
        self._database = database
        self._tail = tail
        self._dialer = dialer
        self._settings = settings
        self._secrets = secrets
        self._domain = domain
        self._addresses = None if gateway is None else gateway.address.public
        hosts = control_plane_hosts(
            (*options.listen_addresses(settings.listen), *options.listen_addresses(settings.agent_listen)),
            settings.advertise,
            settings.database_url,
        )
        self._control_plane = HostAddresses(hosts)
        self._leader: Leader | None = None

    async def run(self) -> None:
        """Campaigns until cancelled."""
        enter_lane(Lane.LEADER)
        async with asyncio.TaskGroup() as group:
            group.create_task(cancellable(self._control_plane.run), name="control plane")
            # Once, at the start: no term waits for a name service.
            await self._control_plane.wait_answered(_NAMES_SECONDS)
            await leadership.campaign(self._database, _process_name(), self._term)

    def endpoints(self) -> EndpointController | None:
        """Returns the controller of endpoints while this replica leads."""
        return None if self._leader is None else self._leader.endpoints

    def refresh_agents(self) -> None:
        """Handles that agents may have come or moved. A leader in another replica finds out by itself,
        within a second.
        """
        if self._leader is not None:
            self._leader.refresh_agents()

    async def _term(self, lease: leadership.Lease) -> None:
        settings = self._settings
        async with self._database.transaction() as tx:
            if lease.former is not None:
                await leadership.check(tx, lease.term)
                await nodes.keep_heard(tx, lease.former)
            incarnation = str((await cluster.read(tx)).incarnation)
        self._leader = Leader(
            self._database,
            self._tail,
            self._dialer,
            settings.timers,
            incarnation,
            lease.term,
            self._secrets,
            null_kernels=settings.development,
            webhook_addresses=settings.webhook_addresses,
            control_plane=self._control_plane.addresses,
            check_lease=lease.check,
            endpoint_domain=self._domain,
            prometheus_url=settings.prometheus_url,
            subnets=settings.session_subnets,
            vxlan_port=settings.vxlan_port,
            addresses=self._addresses,
            kept=_days(settings.keep_sessions_days),
            audit_kept=_days(settings.keep_audit_days),
            shares_kept=_days(settings.keep_shares_days),
        )
        try:
            await self._leader.run()
        finally:
            self._leader = None


async def serve(settings: Settings, stop: asyncio.Event, ready: Callable[[Ready], None]) -> None:
    """Runs a manager until `stop` is set; `ready` is called once it serves.

    Raises BusyError, MismatchError, EmbeddedServerError, SchemaTooNewError, SchemaTooOldError, UnfitDatabaseError,
    StoreUnavailable when it cannot start, and OSError when a port is taken.
    """
    directory = settings.data_directory
    prepare_directory(directory)
    seal_key = read_seal_key(settings.ca_seal_key_file)
    await refuse_second_cluster(directory, settings.database_url)
    async with _database_server(settings) as (url, embedded):
        await migrate(url)
        database = Database(url)
        try:
            authority = await claim(database, directory, _now, seal_key)
            seal.use_key(authority.derive_key("webhooks"))
            await _run(settings, database, authority, embedded, stop, ready)
        except ExceptionGroup as group:
            # One failed, the rest was cancelled: what failed says it all.
            if len(group.exceptions) == 1:
                raise group.exceptions[0] from None
            raise
        finally:
            await database.dispose()


async def _run(  # noqa: PLR0917  # what serve has made
    settings: Settings,
    database: Database,
    authority: Authority,
    embedded: EmbeddedServer | None,
    stop: asyncio.Event,
    ready: Callable[[Ready], None],
) -> None:
    tail = JournalTail(database)
    await tail.newest()
    # A page continues in the history that it began in.
    pages.use_key(authority.derive_key(f"pages {tail.incarnation}"))
    dialer = agent_dialer(authority)
    secrets = SessionSecrets(authority.derive_key("sessions"))
    domain = await asyncio.to_thread(EndpointDomain.make, authority, settings.endpoint_domain)
    interactions = ActivityRecorder(database)
    authenticator = Authenticator(database, monotonic=time.monotonic, clock=_now)
    auditor, browsers = Auditor(database, _process_name(), _now), Browsers()
    gateway = None if settings.gateway is None else await asyncio.to_thread(_gateway, settings.gateway, authority)
    leading = Leading(database, tail, dialer, settings, secrets, domain, gateway)
    has_console = settings.gateway is not None and settings.gateway.console
    console_origin = gateway.address.console_origin if gateway is not None and has_console else ""
    async with asyncio.TaskGroup() as group:
        with in_lane(Lane.BACKGROUND):
            background = [
                group.create_task(supervise("journal tail", tail.run), name="journal tail"),
                group.create_task(supervise("interactions", interactions.run), name="interactions"),
                group.create_task(supervise("audit", auditor.run), name="audit"),
                group.create_task(
                    supervise(
                        "certificate authority", lambda: follow_authority(database, settings.data_directory, authority)
                    ),
                    name="certificate authority",
                ),
            ]
        if embedded is not None:
            background.append(
                group.create_task(supervise("embedded database", embedded.keep), name="embedded database")
            )
        try:
            async with (
                serving(
                    database=database,
                    tail=tail,
                    authority=authority,
                    authenticator=authenticator,
                    dialer=dialer,
                    secrets=secrets,
                    interactions=interactions,
                    moved=leading.refresh_agents,
                    endpoints=leading.endpoints,
                    endpoint_domain=settings.endpoint_domain,
                    prometheus=bool(settings.prometheus_url),
                    listen=settings.listen,
                    agent_listen=settings.agent_listen,
                    advertise=settings.advertise,
                    grace_seconds=settings.grace_seconds,
                    direct_listen=settings.direct_listen,
                    gateway=gateway,
                    console_origin=console_origin,
                    max_pending_sessions=settings.max_pending_sessions,
                    auditor=auditor,
                    browsers=browsers,
                    max_strangers=settings.max_strangers,
                ) as ports,
                contextlib.AsyncExitStack() as stack,
            ):
                if settings.metrics:
                    _show(settings, authority, tail)
                    await stack.enter_async_context(serving_metrics(settings.metrics, "retinue-manager"))
                if gateway is not None:
                    console = None
                    if console_origin:
                        served = _console(console_origin, database, authenticator, authority, ports, auditor, browsers)
                        console = await stack.enter_async_context(served)
                    forwarder, directory = Forwarder(dialer, interactions), settings.data_directory
                    await stack.enter_async_context(
                        gateway.serving(group, database, tail, forwarder, directory, console, auditor.deny)
                    )
                background.append(group.create_task(supervise("leadership", leading.run), name="leadership"))
                background.append(
                    group.create_task(
                        supervise("health", lambda: watch_database(database, functools.partial(_report, ports))),
                        name="health",
                    )
                )
                await ports.set_serving(serving=True)
                ready(
                    Ready(
                        ports.endpoint, ports.agent_endpoint, await _credentials(settings, database, authority, ports)
                    )
                )
                await stop.wait()
        finally:
            for task in background:
                task.cancel()
            await dialer.close()


async def _report(ports: Ports, reason: str, answers: bool) -> None:
    _DATABASE_REACHABLE.set(answers)
    await ports.set_serving(serving=not reason, reason=reason)


def _show(settings: Settings, authority: Authority, tail: JournalTail) -> None:
    """Shows to Prometheus what is looked at with each scrape, and not followed."""

    def space(which: Literal["f_bavail", "f_blocks"]) -> float:
        try:
            found = os.statvfs(settings.data_directory)
        except OSError:
            return float("nan")
        return float(getattr(found, which) * found.f_frsize)

    _DATABASE_EMBEDDED.set(not settings.database_url)
    _DATA_FREE.set_function(lambda: space("f_bavail"))
    _DATA_SIZE.set_function(lambda: space("f_blocks"))
    _JOURNAL_LAG.set_function(tail.lag)
    # Another certificate may take its place.
    CERTIFICATE_ENDS.labels("authority").set_function(lambda: end_of(authority.certificate))
    if settings.gateway is not None and (pair := settings.gateway.certificate) is not None:
        CERTIFICATE_ENDS.labels("browsers").set_function(functools.partial(end_of_file, pair[0]))


def _gateway(settings: GatewaySettings, authority: Authority) -> Gateway:
    """Takes the gateway's port. Raises OSError."""
    # The engine's messages are many, and other managers need none of them.
    from retinue.manager.gateway.serving import Gateway  # noqa: PLC0415

    return Gateway(settings, authority)


def _console(  # noqa: PLR0917  # what the manager has made
    origin: str,
    database: Database,
    authenticator: Authenticator,
    authority: Authority,
    ports: Ports,
    auditor: Auditor,
    browsers: Browsers,
) -> contextlib.AbstractAsyncContextManager[Callable[[socket.socket], Awaitable[None]]]:
    """Returns the web console, which is a client of this manager's own port for users."""
    # As for the gateway.
    from retinue.manager.console.core.address import ConsoleAddress  # noqa: PLC0415
    from retinue.manager.console.serving import Console  # noqa: PLC0415

    def connect() -> grpc.aio.Channel:
        credentials = grpc.ssl_channel_credentials(authority.certificate)
        options = (
            ("grpc.ssl_target_name_override", MANAGER_DNS),
            # Each has a connection of its own, which is cut only when it is old itself.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_http_proxy", 0),
            ("grpc.http2.bdp_probe", 0),
            ("grpc.max_receive_message_length", -1),
        )
        return grpc.aio.secure_channel(ports.local, credentials, options)

    return Console(ConsoleAddress(origin), database, authenticator, connect, auditor, browsers).serving()


def agent_dialer(authority: Authority) -> Dialer:
    """Returns a dialer with the manager's certificate as a client of agents."""
    own = OwnCertificate(authority, authority.issue_manager_client)

    def identity() -> ClientIdentity:
        certificate = own.current()
        return ClientIdentity(authority.certificate, certificate.key, certificate.certificate)

    @functools.lru_cache(maxsize=1)
    def credentials(of: ClientIdentity) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(of.roots, of.key, of.certificate)

    return Dialer(lambda: credentials(identity()), identity)


async def _credentials(
    settings: Settings, database: Database, authority: Authority, ports: Ports
) -> development.Credentials | None:
    if not settings.development:
        return None
    return await development.prepare(
        database,
        authority,
        settings.data_directory,
        endpoint=ports.endpoint,
        agent_endpoint=ports.agent_endpoint,
    )


@contextlib.asynccontextmanager
async def _database_server(settings: Settings) -> AsyncIterator[tuple[str, EmbeddedServer | None]]:
    if settings.database_url:
        yield settings.database_url, None
        return
    with alone(settings.data_directory):
        embedded = embedded_server(settings.data_directory)
        try:
            yield await embedded.start(), embedded
        finally:
            await embedded.stop()


def _process_name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def _days(number: int) -> dt.timedelta | None:
    """Returns for how long something is kept; None: for ever."""
    return dt.timedelta(days=number) if number else None


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
