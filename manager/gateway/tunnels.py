"""Tunnels: connections of programs, not of browsers, that pass the engine as bytes,
each in a chain of the listener's filters.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from envoy.config.listener.v3.listener_pb2 import Listener

from retinue.manager.gateway.core import connections, resources
from retinue.manager.gateway.core.connections import TunnelIdentity
from retinue.manager.gateway.core.rules import TUNNEL_SECONDS
from retinue.manager.gateway.leased_ports import Leased, LeasedPorts, listens
from retinue.proxy.ads import CLUSTERS, LISTENERS, AdsServer, RefusedError

if TYPE_CHECKING:
    from envoy.config.listener.v3.listener_components_pb2 import FilterChain

    from retinue.manager.gateway.access_cache import AccessCache

_BACKDATE = dt.timedelta(minutes=5)
_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class NewTunnel:
    """A tunnel that is to be opened: its identity, and the hash of its certificate, which stands for the access."""

    identity: TunnelIdentity
    hash: bytes


def new_tunnel(domain: str, now: dt.datetime) -> NewTunnel:
    """Returns a tunnel under a gateway's domain, with a key of its own."""
    name = f"{secrets.token_hex(16)}.tunnel.{domain}"
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tunnel")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATE)
        .not_valid_after(now + dt.timedelta(seconds=TUNNEL_SECONDS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    identity = TunnelIdentity(name, certificate.public_bytes(serialization.Encoding.PEM), private)
    return NewTunnel(identity, certificate.fingerprint(hashes.SHA256()))


class Tunnels:
    """All tunnels of a gateway, and its listener, of which they are parts; belongs on one event loop."""

    def __init__(self, ads: AdsServer, listener: Listener, cache: AccessCache, ports: LeasedPorts) -> None:
        """Has the engine listen, without a tunnel."""
        self._ads = ads
        self._listener = listener
        self._cache = cache
        self._ports = ports
        self._chains: dict[bytes, FilterChain] = {}
        self._put()

    async def open(self, tunnel: NewTunnel) -> bool:
        """Opens a tunnel whose access is in the database; returns True once the engine has it. Raises StoreUnavailable.

        Returns False when the node is not reached from here, the engine does not follow,
        or the access was lost meanwhile.
        """
        key = tunnel.hash
        access = await self._cache.look_up(key)
        leased = None if access is None or access.location is None else await self._ports.use(access)
        # A program that refuses connections there may take them elsewhere in the kernel.
        if leased is None or not await listens(*leased) or self._cache.now(key) is None:
            self._ports.drop(key)
            return False
        self._chains[key] = connections.tunnel_chain(key, tunnel.identity)
        self._direct(key, leased)
        self._put()
        try:
            async with asyncio.timeout(_SECONDS):
                await self._ads.settled(CLUSTERS, (connections.kernel_name(key),))
                await self._ads.settled(LISTENERS, (resources.LISTENER,))
        except (TimeoutError, RefusedError):
            self.close(key)
        return key in self._chains

    def move(self, key: bytes, leased: Leased | None) -> bool:
        """Has new connections go to another place, unless that is unknown;
        returns whether the access is that of a tunnel.
        """
        if key not in self._chains:
            return False
        # An agent that is away for a moment takes no port away: one that leads elsewhere by now refuses,
        # and clients go through the manager.
        if leased is not None:
            self._direct(key, leased)
        return True

    def close(self, key: bytes) -> None:
        """Ends every connection of a tunnel, and takes no other."""
        if self._chains.pop(key, None) is not None:
            self._ports.drop(key)
            self._put()
            self._ads.remove(CLUSTERS, connections.kernel_name(key))

    def _direct(self, key: bytes, leased: Leased) -> None:
        self._ads.put(CLUSTERS, connections.kernel_name(key), connections.kernel_cluster(key, None, leased))

    def _put(self) -> None:
        listener = Listener()
        listener.CopyFrom(self._listener)
        listener.filter_chains.extend(self._chains.values())
        self._ads.put(LISTENERS, resources.LISTENER, listener)
