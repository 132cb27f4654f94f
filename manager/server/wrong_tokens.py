"""Limits how many wrong tokens an address may send, in this one place.

Only wrong ones count, and a valid token is taken whatever was counted: many people may be behind one address, and a
token has 256 random bits, so what has to be slowed is the program that tries, not the people beside it. What is counted
is what this replica is sent.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from typing import TypeAlias
from urllib.parse import unquote

Endpoint: TypeAlias = tuple[str, int]
"""The address and the port of one end of a connection."""

BURST = 100
# Per second, of what was counted.
FORGIVEN = 5.0
# What was counted at most, in bursts: who has sent millions waits no longer for it than that.
_MAX_BURSTS = 3
_MAX_ADDRESSES = 10_000
# An IPv6 host has a whole network of this size to itself.
_IPV6_PREFIX = 64


class WrongTokens:
    """Counts wrong tokens by address, in bounded memory; belongs on one event loop."""

    def __init__(self, burst: int = BURST, forgiven: float = FORGIVEN, max_addresses: int = _MAX_ADDRESSES) -> None:
        """An address may send `burst` wrong tokens at once, and `forgiven` more a second."""
        self._burst = burst
        self._forgiven = forgiven
        self._max_addresses = max_addresses
        # By address, the one that was wrong last at the end: what was counted, and when.
        self._counted: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def count(self, address: str, now: float) -> float:
        """Counts a wrong token at `now` in seconds; how many seconds the address had better wait,
        0 within the limit.
        """
        before, then = self._counted.pop(address, (0.0, now))
        counted = max(0.0, before - (now - then) * self._forgiven) + 1.0
        if len(self._counted) >= self._max_addresses:
            # The one that has been quiet for longest.
            self._counted.popitem(last=False)
        self._counted[address] = (min(counted, float(_MAX_BURSTS * self._burst)), now)
        return max(0.0, (self._counted[address][0] - self._burst) / self._forgiven)

    def __len__(self) -> int:
        return len(self._counted)


def address_of(peer: str) -> str:
    """Returns the key that wrong tokens are counted under, for a peer as the library names it: an IPv4 address,
    an IPv6 network, else the whole.
    """
    endpoint = endpoint_of(peer)
    return peer if endpoint is None else network_of(endpoint[0])


def endpoint_of(peer: str) -> Endpoint | None:
    """Returns address and port of a peer as the library names it; None of one that has none."""
    family, _, rest = peer.partition(":")
    host, _, port = unquote(rest).rpartition(":")
    if family not in ("ipv4", "ipv6") or not port.isdecimal():
        return None
    try:
        return plain_address(host.strip("[]")), int(port)
    except ValueError:
        return None


def plain_address(host: str) -> str:
    """Returns an address without its zone, and an IPv4 address that is mapped into IPv6 as that.
    Raises ValueError.
    """
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def network_of(address: str) -> str:
    """Returns an IPv4 address as it is, and of an IPv6 address its network."""
    if ":" not in address:
        return address
    return str(ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))
