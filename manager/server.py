"""The manager's process: what is started, in which order, and how it ends.

Start: database, schema, authority, ports, background work, health. End, the other way round: health says NOT_SERVING, streams
end with UNAVAILABLE, calls under way may finish, the ports close, background work is cancelled, the database goes last.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import fcntl
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
from sqlalchemy import text

from manager import development
from manager.api import pages
from manager.api.authentication import Authenticator
from manager.api.ports import Ports, serving
from manager.fleet.dialer import Dialer
from manager.fleet.forwarding import Forwarder
from manager.fleet.protected import control_plane_hosts, resolve
from manager.gateway.serving import Gateway
from manager.identity.authority import Authority
from manager.lifecycle.interactions import Interactions
from manager.lifecycle.leader import Leader
from manager.lifecycle.secrets import SessionSecrets
from manager.settings import Settings
from manager.store import leadership
from manager.store.database import Database, StoreUnavailable
from manager.store.embedded import EmbeddedServer
from manager.store.journal import JournalTail
from manager.store.migrations import migrate
from manager.webhooks import seal

_log = logging.getLogger(__name__)

_HEALTH_SECONDS = 2.0


class BusyError(Exception):
    """Another manager runs on the same data directory."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Where a manager that has started is reached, and, in development mode, with what."""

    endpoint: str
    agent_endpoint: str
    credentials: development.Credentials | None


class Leading:
    """Leads when it is this replica's turn."""

    def __init__(
        self, database: Database, tail: JournalTail, dialer: Dialer, settings: Settings, secrets: SessionSecrets
    ) -> None:
        self._database = database
        self._tail = tail
        self._dialer = dialer
        self._settings = settings
        self._secrets = secrets
        self._leader: Leader | None = None

    async def run(self) -> None:
        """Campaigns until cancelled."""
        await leadership.campaign(self._database, f"{socket.gethostname()}:{os.getpid()}", self._term)

    def retarget(self) -> None:
        """Agents may have come or moved. A leader elsewhere finds out by itself, within a second."""
        if self._leader is not None:
            self._leader.retarget()

    async def _term(self, term: int) -> None:
        settings = self._settings
        hosts = control_plane_hosts((settings.listen, settings.agent_listen), settings.advertise, settings.database_url)
        self._leader = Leader(
            self._database,
            self._tail,
            self._dialer,
            settings.timers,
            term,
            self._secrets,
            null_kernels=settings.development,
            webhook_addresses=settings.webhook_addresses,
            control_plane=await asyncio.to_thread(resolve, hosts),
        )
        try:
            await self._leader.run()
        finally:
            self._leader = None


async def serve(settings: Settings, stop: asyncio.Event, ready: Callable[[Ready], None]) -> None:
    """Runs a manager until `stop` is set; `ready` is called once it serves.

    Raises BusyError, EmbeddedServerError, SchemaTooNewError, WrongEncodingError, StoreUnavailable when it cannot start, and OSError when a port is
    taken.
    """
    prepare_directory(settings.data_directory)
    authority = await asyncio.to_thread(Authority.load, settings.data_directory, _now)
    pages.use_key(authority.derive_key("pages"))
    seal.use_key(authority.derive_key("webhooks"))
    async with _database_server(settings) as (url, embedded):
        await migrate(url)
        database = Database(url)
        try:
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
    dialer = Dialer(client_credentials(authority))
    secrets = SessionSecrets(authority.derive_key("sessions"))
    leading = Leading(database, tail, dialer, settings, secrets)
    interactions = Interactions(database)
    authenticator = Authenticator(database, monotonic=time.monotonic, clock=_now)
    gateway = None if settings.gateway is None else await asyncio.to_thread(Gateway, settings.gateway, authority)
    async with asyncio.TaskGroup() as group:
        background = [
            group.create_task(tail.run(), name="journal tail"),
            group.create_task(interactions.run(), name="interactions"),
        ]
        if embedded is not None:
            background.append(group.create_task(embedded.keep(), name="embedded database"))
        try:
            async with (
                serving(
                    database=database,
                    tail=tail,
                    authority=authority,
                    authenticator=authenticator,
                    dialer=dialer,
                    interactions=interactions,
                    moved=leading.retarget,
                    listen=settings.listen,
                    agent_listen=settings.agent_listen,
                    advertise=settings.advertise,
                    grace_seconds=settings.grace_seconds,
                    gateway=None if gateway is None else gateway.address,
                ) as ports,
                contextlib.AsyncExitStack() as stack,
            ):
                if gateway is not None:
                    directory = settings.data_directory
                    await stack.enter_async_context(
                        gateway.serving(group, database, tail, Forwarder(dialer, interactions), directory)
                    )
                background.append(group.create_task(leading.run(), name="leadership"))
                background.append(group.create_task(_tell_health(database, ports), name="health"))
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


def prepare_directory(directory: Path) -> None:
    """Makes the data directory; others may pass through it, as the database's user must, and not look around."""
    if not directory.exists():
        directory.mkdir(mode=0o711, parents=True)


def client_credentials(authority: Authority) -> grpc.ChannelCredentials:
    """Those of the manager as a client of agents."""
    certificate = authority.issue_manager_client()
    return grpc.ssl_channel_credentials(authority.certificate, certificate.key, certificate.certificate)


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


async def _tell_health(database: Database, ports: Ports) -> None:
    """Serving is to reach the database."""
    while True:
        await asyncio.sleep(_HEALTH_SECONDS)
        try:
            async with database.transaction() as tx:
                await tx.execute(text("SELECT 1"))
        except StoreUnavailable:
            await ports.set_serving(serving=False)
        else:
            await ports.set_serving(serving=True)


@contextlib.asynccontextmanager
async def _database_server(settings: Settings) -> AsyncIterator[tuple[str, EmbeddedServer | None]]:
    if settings.database_url:
        yield settings.database_url, None
        return
    with _alone(settings.data_directory / "manager.lock"):
        embedded = embedded_server(settings)
        try:
            yield await embedded.start(), embedded
        finally:
            await embedded.stop()


def embedded_server(settings: Settings) -> EmbeddedServer:
    """The database server that belongs to a data directory."""
    return EmbeddedServer(settings.data_directory / "postgres")


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Two managers must not share an embedded database: the first one to end would stop it for both."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(f"another manager runs on {path.parent}") from None
        yield
    finally:
        os.close(descriptor)


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
