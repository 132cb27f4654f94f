"""Addresses of private networks: which subnet and VNI a session gets, and who has which address in it. Pure."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Collection, Iterable

# Private space that few sites use; sessions are isolated from each other and from the node, so an overlap with a site's
# own network only matters to kernels that talk to that site. Sites that use it choose another pool.
POOL = ipaddress.IPv4Network("10.128.0.0/9")
SMALLEST_POOL = 24
VXLAN_PORT = 4789
"""The UDP port that nodes of a cluster session send each other its packets to, unless managers are given another."""
"""Bits of the longest prefix that a pool may have."""
# Bytes that VXLAN adds, by the version of IP it travels over.
_OVERHEAD = {4: 50, 6: 70}
_USUAL_MTU = 1500
# 576 inside the session and the larger overhead.
MIN_UNDERLAY_MTU = 646
# What every kind of interface in a kernel takes; an earlier version's agent on a loopback interface says 65,536.
MAX_UNDERLAY_MTU = 65_521
MAX_VNI = 2**24 - 1
# The network, broadcast and bridge addresses are not kernels'.
_RESERVED_ADDRESSES = 3
_MIN_PREFIX = 28
_BLOCK = 1 << (32 - _MIN_PREFIX)


class AddressSpaceExhaustedError(Exception):
    """No free subnet or VNI is left."""


@dataclass(frozen=True, slots=True)
class KernelAddress:
    """A kernel's address in its session's network."""

    address: str
    mac: str


def kernel_address(subnet: str, local_rank: int) -> KernelAddress:
    """Returns the address after the bridge's, by rank; the MAC is derived from it,
    so that it is unique where the address is.
    """
    network = ipaddress.ip_network(subnet)
    address = network.network_address + 2 + local_rank
    return KernelAddress(str(address), ":".join(f"{octet:02x}" for octet in (0x0A, 0x58, *address.packed)))


def parse_pool(text: str) -> ipaddress.IPv4Network:
    """Returns the network that a pool's text means. Raises ValueError unless it is one with room for sessions."""
    pool = ipaddress.IPv4Network(text)
    if pool.prefixlen > SMALLEST_POOL:
        raise ValueError(f"{pool} has no room for the networks of sessions: a /{SMALLEST_POOL} or more is needed")
    if pool.is_global or pool.is_loopback or pool.is_link_local:
        raise ValueError(f"{pool} is not private: kernels could not reach the Internet's hosts there")
    return pool


class SubnetPool:
    """Hands out the lowest free subnets of the pool; sizes are powers of two from /28, aligned to their size.

    Subnets of another pool, from which sessions got theirs before, are nothing to it.
    """

    def __init__(self, taken: Iterable[str], pool: ipaddress.IPv4Network = POOL) -> None:
        self._pool = pool
        self._first = int(pool.network_address) // _BLOCK
        self._used = bytearray(pool.num_addresses // _BLOCK)
        # By size: there is nothing free below.
        self._cursors: dict[int, int] = {}
        for subnet in taken:
            self.hold(subnet)

    def take(self, kernels: int, reachable: Iterable[ipaddress.IPv4Network] = ()) -> str:
        """Allocates a subnet with room for `kernels`, outside the networks that they are to reach. One that holds the
        whole pool counts as reached by all but the session's own addresses. Raises AddressSpaceExhaustedError.
        """
        prefix = min(_MIN_PREFIX, 32 - (kernels + _RESERVED_ADDRESSES - 1).bit_length())
        blocks = (1 << (32 - prefix)) // _BLOCK
        wanted, start = bytes(blocks), self._cursors.get(blocks, 0)
        held = [self._blocks(str(network)) for network in reachable if self._holds(network) and network != self._pool]
        passed = None
        while (start := self._used.find(wanted, start)) >= 0:
            if start % blocks:
                start += blocks - start % blocks
            elif ends := [first + size for first, size in held if first < start + blocks and start < first + size]:
                # Other sessions may have it.
                passed = start if passed is None else passed
                start = max(ends)
            else:
                self._used[start : start + blocks] = b"\x01" * blocks
                self._cursors[blocks] = start + blocks if passed is None else passed
                return f"{ipaddress.ip_address((start + self._first) * _BLOCK)}/{prefix}"
        raise AddressSpaceExhaustedError(
            f"no subnet for {kernels} kernels is left in {self._pool}, outside the private networks that its agents let "
            "kernels reach: start managers with other --session-subnets"
        )

    def hold(self, subnet: str) -> None:
        """Marks a subnet as used."""
        if not self._holds(ipaddress.IPv4Network(subnet)):
            return
        start, blocks = self._blocks(subnet)
        self._used[start : start + blocks] = b"\x01" * blocks

    def give_back(self, subnet: str) -> None:
        """Marks a subnet as free."""
        if not self._holds(ipaddress.IPv4Network(subnet)):
            return
        start, blocks = self._blocks(subnet)
        self._used[start : start + blocks] = bytes(blocks)
        for size, cursor in self._cursors.items():
            self._cursors[size] = min(cursor, start - start % size)

    def _holds(self, network: ipaddress.IPv4Network) -> bool:
        return network.subnet_of(self._pool)

    def _blocks(self, subnet: str) -> tuple[int, int]:
        network = ipaddress.ip_network(subnet)
        return int(network.network_address) // _BLOCK - self._first, max(1, network.num_addresses // _BLOCK)


def choose_vni(taken: Collection[int], source: random.Random) -> int:
    """Returns a free VNI at random: a number that was just released is unlikely to be
    reused while a node may still have it.
    """
    if len(taken) >= MAX_VNI:
        raise AddressSpaceExhaustedError("no free VNI")
    while (vni := source.randint(1, MAX_VNI)) in taken:
        pass
    return vni


def check_underlay(address: str) -> str:
    """Returns the address that an agent takes VXLAN at, or nothing. Raises ValueError when it is neither."""
    if address:
        ipaddress.ip_address(address)
    return address


def inner_mtu(underlays: Collection[tuple[str, int]], *, vxlan: bool) -> int:
    """Returns the MTU inside a session over underlays of (address, MTU): the smallest,
    less the header of VXLAN when it is used.
    """
    overhead = 0
    if vxlan:
        overhead = max((_OVERHEAD[6 if ":" in address else 4] for address, _ in underlays), default=_OVERHEAD[4])
    known = [mtu for _, mtu in underlays if mtu >= MIN_UNDERLAY_MTU]
    return min([MAX_UNDERLAY_MTU, *known] if known else [_USUAL_MTU]) - overhead
