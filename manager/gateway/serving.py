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
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from retinue.manager.agent_rpc.relay import Forwarder
from retinue.manager.gateway import caddy, sockets
from retinue.manager.gateway.access_cache import AccessCache
from retinue.manager.gateway.core import pages
from retinue.manager.gateway.core.configuration import configuration
from retinue.manager.gateway.core.rules import Address
from retinue.manager.gateway.forward_auth import ForwardAuthHandler
from retinue.manager.gateway.relay import Relay
from retinue.manager.identity.authority import Authority
from retinue.manager.store.database import Database
from retinue.manager.store.journal_tail import JournalTail

_log = logging.getLogger(__name__)

_BACKLOG = 512
_CERTIFICATE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Settings of a gateway: where it listens, and the domain whose hosts lead to it."""

    # `host:port`; port 0 means any that is free.
    listen: str
    domain: str = "localhost"
    # The port that users see; None: the one it listens at.
    number: int | None = None
    # Files of a certificate for `*.domain` and its key, in PEM. None: the manager's own authority issues one, but for
    # `localhost`, where nothing leaves the machine.
    certificate: tuple[Path, Path] | None = None

    @property
    def secure(self) -> bool:
        """Returns True when it speaks TLS."""
        return self.certificate is not None or self.domain.rpartition(".")[2] != "localhost"


class Gateway:
    """A gateway whose port is taken, and which is still to run."""

    def __init__(self, settings: GatewaySettings, authority: Authority) -> None:
        """Takes the port. Raises OSError when it cannot be had, Caddy is missing, or certificate and key are no pair."""
        self._settings = settings
        self._authority = authority
        self._program = caddy.program()
        self._certificate = self._read_certificate()
        self._listening = _listen(settings)
        number = settings.number or self.listening_at[1]
        self.address = Address(settings.domain, number, settings.secure)

    @contextlib.asynccontextmanager
    async def serving(
        self, group: asyncio.TaskGroup, database: Database, tail: JournalTail, forwarder: Forwarder, directory: Path
    ) -> AsyncIterator[None]:
        """Serves for as long as the block lasts, by tasks of `group`; the port is given back then. `directory` is the manager's."""
        owner = caddy.account(directory)
        user = os.geteuid() if owner is None else owner[0]
        cache = AccessCache(database, tail, time.monotonic)
        relay = Relay(forwarder, user, cache)
        cache.on_end(relay.close)
        handler = ForwardAuthHandler(self.address, database, cache, relay.open, user=user, committed=tail.wake)
        name = sockets.new_name()
        page = pages.UNREACHABLE.body()
        child = caddy.Caddy(
            self._program,
            self._listening,
            lambda descriptor: configuration(descriptor, name, page, self._certificate),
            owner,
        )
        runner = await handler.serve(sockets.listen(name))
        tasks = [
            group.create_task(cache.run(), name="access"),
            group.create_task(child.run(), name="caddy"),
            group.create_task(self._follow_certificate(child), name="certificate"),
        ]
        _log.info("serving HTTP for *.%s at %s:%d", self.address.domain, *self.listening_at)
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await relay.stop()
            await runner.cleanup()
            self.close()

    @property
    def listening_at(self) -> tuple[str, int]:
        """Host and port, which what stands in front may pass on to."""
        host, port, *_ = self._listening.getsockname()
        return host, port

    def close(self) -> None:
        """Gives the port back."""
        self._listening.close()

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
        issued = self._authority.issue_gateway(self._settings.domain)
        return issued.certificate + self._authority.certificate, issued.key

    async def _follow_certificate(self, child: caddy.Caddy) -> None:
        """Takes up a certificate that was renewed."""
        while self._settings.certificate is not None:
            await asyncio.sleep(_CERTIFICATE_SECONDS)
            try:
                found = await asyncio.to_thread(self._read_certificate)
            except OSError as error:
                _log.warning("the certificate of the gateway is not reloaded: %s", error)
                continue
            if found != self._certificate:
                self._certificate = found
                _log.info("the certificate of the gateway was renewed")
                await child.stop()


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
