"""Limits how many wrong tokens an address may send, in this one place.

Only wrong ones count, and a valid token is taken whatever was counted: many people may be behind one address, and a
token has 256 random bits, so what has to be slowed is the program that tries, not the people beside it. What is counted
is what this replica is sent.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from urllib.parse import unquote

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
    family, _, rest = peer.partition(":")
    host = unquote(rest.rpartition(":")[0]).strip("[]")
    if family not in ("ipv4", "ipv6"):
        return peer
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return peer
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return str(ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))
        address = address.ipv4_mapped
    return str(address)
