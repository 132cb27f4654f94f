"""Restricts the addresses of image registries: the node's engine connects to them for any user who names an image.

Never the node itself, what only this link knows (metadata services of clouds among it), and the nodes and managers of
the fleet, unless the node's administrator allows it. The name is resolved just before the engine is called. Changing it
in between takes control of the registry's name, which a resource group has allowed.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING

from retinue.agent.docker.registries import DEFAULT_REGISTRY
from retinue.rpc.core.addresses import METADATA, IpAddress, unwrapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_UNUSED = ipaddress.IPv4Network("240.0.0.0/4")
# Other IPv6 addresses that a registry can have: global ones, and those of a site.
_IPV6 = tuple(map(ipaddress.IPv6Network, ("2000::/3", "fc00::/7")))


class RegistryRefusedError(Exception):
    """The registry is at an address that images are never fetched from; the text is for the node's administrator."""


class UnresolvedError(Exception):
    """The registry's name means no address now."""


def resolve(host: str) -> set[str]:
    """Returns the addresses that a name means on this node, as the engine takes it. Blocks. Raises OSError."""
    return {str(found[4][0]).partition("%")[0] for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}


def is_own(address: IpAddress) -> bool:
    """Returns whether this node has the address."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6  # noqa: PLR2004  # of the protocol
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            # Nothing is sent: Linux reaches an address of its own from that address.
            probe.connect((str(address), 9))
            return ipaddress.ip_address(probe.getsockname()[0]) == address
    except OSError:
        return False


class RegistryAddresses:
    """The addresses that one node lets its engine connect to."""

    def __init__(
        self,
        allowed: Iterable[str] = (),
        always: Iterable[str] = (),
        resolve: Callable[[str], Iterable[str]] = resolve,
        is_own: Callable[[IpAddress], bool] = is_own,
    ) -> None:
        """`allowed` are networks that registries may be in all the same,
        `always` addresses of the fleet that are known from the start.
        """
        self._allowed = tuple(ipaddress.ip_network(network) for network in allowed)
        self._always = _parsed(always)
        self._protected = frozenset[IpAddress]()
        self._resolve = resolve
        self._is_own = is_own

    def protect(self, addresses: Iterable[str]) -> None:
        """Takes the addresses of the fleet's nodes and managers in place of those given before."""
        self._protected = _parsed(addresses)

    def keep_from(self, always: Iterable[str]) -> None:
        """Takes addresses of the fleet that the node knows by itself in place of those given before."""
        self._always = _parsed(always)

    def check(self, registry: str) -> None:
        """Raises RegistryRefusedError for a registry, `host` or `host:port`, that the engine must not connect to.
        Blocks.

        Raises UnresolvedError for a name that means nothing; that of the default registry never comes from a user, and
        may be known to a proxy or mirror of the engine only.
        """
        literal, bracket, _ = registry.removeprefix("[").partition("]")
        host = literal if bracket else registry.partition(":")[0]
        if host == DEFAULT_REGISTRY:
            host = "registry-1.docker.io"
        try:
            found = list(self._resolve(host))
        except OSError as error:
            if registry == DEFAULT_REGISTRY:
                return
            raise UnresolvedError(f"{host} has no address: {error}") from error
        for text in found:
            address = ipaddress.ip_address(text)
            if any(address in network for network in self._allowed if network.version == address.version):
                continue
            if why := self._refusal(address):
                raise RegistryRefusedError(f"registry {registry} is at {text}, {why}")

    def _refusal(self, address: IpAddress) -> str:
        address = unwrapped(address)
        if address.is_loopback or address.is_unspecified or self._is_own(address):
            return "which is this node"
        if address.is_link_local or address in METADATA:
            return "which is link-local, or a metadata service"
        if address in self._always or address in self._protected:
            return "which is of the fleet"
        if isinstance(address, ipaddress.IPv6Address):
            return "" if any(address in network for network in _IPV6) else "which is no address of a registry"
        return "which is no address of a registry" if address.is_multicast or address in _UNUSED else ""


def _parsed(addresses: Iterable[str]) -> frozenset[IpAddress]:
    return frozenset(map(ipaddress.ip_address, addresses))
