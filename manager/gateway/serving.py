"""The gateway as a whole: made of its parts, started, and taken down."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

from retinue.manager.gateway import engine, sockets
from retinue.manager.gateway.access_cache import Access, AccessCache
from retinue.manager.gateway.core import resources
from retinue.manager.gateway.core.rules import Address
from retinue.manager.gateway.forward_auth import Denied, ForwardAuthHandler
from retinue.manager.gateway.leased_ports import Leased, LeasedPorts
from retinue.manager.gateway.relay import Relay
from retinue.manager.gateway.routes import Routes
from retinue.manager.gateway.services import Services
from retinue.manager.gateway.traffic import TrafficReceiver
from retinue.manager.gateway.tunnels import NewTunnel, Tunnels, new_tunnel
from retinue.manager.identity.own_certificate import OwnCertificate
from retinue.proxy.ads import LISTENERS, SECRETS, AdsServer, RefusedError
from retinue.proxy.program import program

if TYPE_CHECKING:
    import datetime as dt
    from pathlib import Path

    from retinue.manager.agent_rpc.relay import Forwarder
    from retinue.manager.gateway.settings import GatewaySettings
    from retinue.manager.identity.authority import Authority
    from retinue.manager.store.journal.journal_tail import JournalTail
    from retinue.manager.store.postgres.database import Database

_log = logging.getLogger(__name__)

_BACKLOG = 512
_CERTIFICATE_SECONDS = 60.0
_START_SECONDS, _POLL_SECONDS = 15.0, 0.02

Console = Callable[[socket.socket], Awaitable[None]]


class Gateway:
    """A gateway whose port is taken, and which is still to run."""

    def __init__(self, settings: GatewaySettings, authority: Authority) -> None:
        """Takes the port. Raises OSError when it cannot be had, Envoy is missing,
        or certificate and key are no pair.
        """
        self._settings = settings
        self._authority = authority
        self._program = program()
        self._own = OwnCertificate(authority, lambda: authority.issue_gateway(settings.domain))
        self._certificate = self._read_certificate()
        self._tunnels: Tunnels | None = None
        self._console_name = sockets.new_name()
        self._port = _listen(settings)
        self._at: tuple[str, int] = self._port.getsockname()[:2]
        self.address = Address(settings.domain, settings.number or self._at[1], settings.secure)

    @contextlib.asynccontextmanager
    async def serving(  # noqa: PLR0917  # what the manager has made
        self,
        group: asyncio.TaskGroup,
        database: Database,
        tail: JournalTail,
        forwarder: Forwarder,
        directory: Path,
        console: Console | None = None,
        denied: Denied = lambda _address, _method, _error: None,
    ) -> AsyncIterator[None]:
        """Serves for as long as the block lasts, by tasks of `group`; the port is given back then.
        `directory` is the manager's, and `console` takes connections of browsers to the web console. `denied` is called
        with the address of a browser that gets no access to a port, what it asked for in words, and why.
        """
        owner = engine.account(directory)
        cache = AccessCache(database, tail, time.monotonic)
        ads = AdsServer()
        routes = Routes(ads, self.address, None if console is None else self._console_name)

        async def grant(access: Access, secret: str) -> str | None:
            leased = await ports.use(access) if self._settings.direct else None
            if cache.now(access.hash) is None:
                # It was lost meanwhile.
                return None
            return await routes.grant(access.hash, access.target, secret, relay.open(access.hash), leased, access.host)

        def moved(key: bytes, leased: Leased | None) -> None:
            if not tunnels.move(key, leased):
                routes.direct(key, relay.open(key), leased)

        def end(key: bytes) -> None:
            ports.drop(key)
            tunnels.close(key)
            routes.withdraw(key, relay.detach(key))

        def used(key: bytes) -> None:
            access = cache.now(key)
            if access is not None and access.location is not None:
                cache.using(key)
                forwarder.hear(access.location)

        ports = LeasedPorts(forwarder, cache, time.monotonic, moved)
        relay = Relay(forwarder, _user(owner), cache, ports.relayed)
        cache.on_end(end)
        handler = ForwardAuthHandler(self.address, database, cache, grant, committed=tail.wake, denied=denied)
        services = Services(ads, handler, TrafficReceiver(used, cache.using))
        host, port = self._at
        listener = resources.listener(host, port, self.address, services.key)
        tunnels = Tunnels(ads, listener, cache, ports)
        self._put_certificate(ads)
        child = engine.Engine(self._program, services.bootstrap(), port, owner)
        # The engine listens itself. Bound, the number stays this gateway's while it is started again.
        self._port.close()
        self._port = _bound(self._port.family, host, port)
        try:
            async with services.serving():
                tasks = [
                    group.create_task(cache.run(), name="access"),
                    group.create_task(ports.run(), name="leased ports"),
                    group.create_task(child.run(), name="gateway's engine"),
                    group.create_task(self._follow_certificate(ads), name="certificate"),
                    group.create_task(_pass_on(self._console_name, _user(owner), console), name="console"),
                ]
                await self._until_listening(ads)
                self._tunnels = tunnels if self._settings.direct else None
                _log.info("serving HTTP for *.%s at %s:%d", self.address.domain, host, port)
                try:
                    yield
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            self._tunnels = None
            await routes.stop()
            await relay.stop()
            self.close()

    def new_tunnel(self, now: dt.datetime) -> NewTunnel:
        """Returns a tunnel that is not open yet."""
        return new_tunnel(self.address.domain, now)

    async def open_tunnel(self, tunnel: NewTunnel) -> bool:
        """Opens a tunnel whose access is in the database; returns whether it is. Raises StoreUnavailable."""
        return self._tunnels is not None and await self._tunnels.open(tunnel)

    def close(self) -> None:
        """Gives the port back."""
        self._port.close()

    async def _until_listening(self, ads: AdsServer) -> None:
        """Returns once clients are served, or that takes too long: the engine is tried again then."""
        try:
            async with asyncio.timeout(_START_SECONDS):
                await ads.settled(LISTENERS, (resources.LISTENER,))
                while True:
                    with contextlib.suppress(OSError):
                        _, writer = await asyncio.open_connection(*_reached(self._at))
                        writer.close()
                        return
                    await asyncio.sleep(_POLL_SECONDS)
        except (TimeoutError, RefusedError) as error:
            _log.error("the gateway's engine does not listen: %r", error)

    def _put_certificate(self, ads: AdsServer) -> None:
        if self._certificate is not None:
            ads.put(SECRETS, resources.CERTIFICATE, resources.secret(self._certificate))

    def _read_certificate(self) -> tuple[bytes, bytes] | None:
        """Chain and key; None without TLS. Raises OSError, of which ssl.SSLError is one."""
        if self._settings.certificate is not None:
            chain, key = self._settings.certificate
            found = chain.read_bytes(), key.read_bytes()
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(chain, key)
            if (chain.read_bytes(), key.read_bytes()) != found:
                raise OSError(f"{chain} or {key} changed while they were read")
            return found
        if not self._settings.secure:
            return None
        issued = self._own.current()
        return issued.certificate + self._authority.certificate, issued.key

    async def _follow_certificate(self, ads: AdsServer) -> None:
        """Takes up a certificate that was renewed."""
        while self._settings.secure:
            await asyncio.sleep(_CERTIFICATE_SECONDS)
            try:
                found = await asyncio.to_thread(self._read_certificate)
            except OSError as error:
                _log.warning("the certificate of the gateway is not reloaded: %s", error)
                continue
            if found != self._certificate:
                self._certificate = found
                _log.info("the certificate of the gateway was renewed")
                self._put_certificate(ads)


def _user(owner: tuple[int, int] | None) -> int:
    """Returns the user that the engine runs as."""
    return os.geteuid() if owner is None else owner[0]


async def _pass_on(name: str, user: int, console: Console | None) -> None:
    """Passes on connections of the engine to the console, if there is one."""
    if console is None:
        return
    with sockets.listen(name) as listening:
        async for connection in sockets.accepted(listening, user):
            # It may have gone already.
            with contextlib.suppress(OSError):
                await console(connection)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listen(settings: GatewaySettings) -> socket.socket:
    host, _, number = settings.listen.rpartition(":")
    host = host.strip("[]")
    if not number.isdecimal():
        raise OSError(f"{settings.listen!r} is not HOST:PORT")
    if not settings.secure and not _is_loopback(host):
        raise OSError(f"for {settings.domain} HTTP goes without TLS, and so at a loopback address only, not {host!r}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, int(number)), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        raise OSError(f"cannot listen on {settings.listen}: {error}") from error
    return listening


def _bound(family: int, host: str, port: int) -> socket.socket:
    """Returns a socket that has a port and does not listen, beside one that will."""
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    try:
        made.bind((host, port))
    except OSError:
        made.close()
        raise
    return made


def _reached(at: tuple[str, int]) -> tuple[str, int]:
    """Returns where this machine reaches what listens there."""
    host, port = at
    if ipaddress.ip_address(host).is_unspecified:
        return ("::1" if ":" in host else "127.0.0.1"), port
    return at
