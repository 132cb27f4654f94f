"""Which addresses are dialled for users who name them. Pure.

What a name means is judged, not the name: who dials looks it up, asks here, and dials the address that was permitted.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TypeAlias

IpAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

METADATA = frozenset(
    map(ipaddress.ip_address, ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254"))
)
"""Metadata services of clouds, which give a machine its secrets, besides those at link-local addresses."""
# IPv6 networks whose addresses hold an IPv4 address in their last 32 bits: those that are mapped, those of NAT64, and
# the deprecated compatible ones, which some still route into IPv4.
_EMBEDDING = tuple(map(ipaddress.IPv6Network, ("::/96", "::ffff:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48")))


@dataclass(frozen=True, slots=True)
class AddressPolicy:
    """Addresses that requests may go to: of the public internet, and those that are allowed; none that is denied."""

    allowed: tuple[Network, ...] = ()
    denied: tuple[Network, ...] = ()

    def permits(self, address: str) -> bool:
        """Whether requests may go to an address. One that only wraps another counts as that."""
        inner = unwrapped(ipaddress.ip_address(address.partition("%")[0]))
        if any(inner in network for network in self.denied):
            return False
        if any(inner in network for network in self.allowed):
            return True
        if isinstance(inner, ipaddress.IPv6Address) and inner.is_site_local:
            return False
        return inner.is_global and not inner.is_multicast and inner not in METADATA


PUBLIC_ONLY = AddressPolicy()


def unwrapped(address: IpAddress) -> IpAddress:
    """Returns the IPv4 address that an IPv6 address leads to, as far as its form says so; else the address itself."""
    if isinstance(address, ipaddress.IPv6Address) and not (address.is_loopback or address.is_unspecified):
        if address.sixtofour is not None:
            return address.sixtofour
        if any(address in network for network in _EMBEDDING):
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def is_address(host: str) -> bool:
    """Returns whether a host is an address, and not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def parse_networks(text: str) -> tuple[Network, ...]:
    """Returns the networks of a list with commas. Raises ValueError."""
    return tuple(ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip())
