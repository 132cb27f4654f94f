"""Which nodes of a session's network probe each other, and by which addresses. Pure.

A *path* leads from one node of a session's network to another. In a network of few nodes each node probes all others.
In a larger one it probes the node of the main kernel and those that are 1, 2, 4, … places away in a ring, in both
directions: every node is probed by several, and the number of probes grows as n log n. The relation is symmetric, and
follows from what all nodes of the network know, so that each of them knows who probes it.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from retinue.agent.network.core.topology import Network

MESH_NODES = 16
"""Up to so many nodes, each probes all others."""
_FIRST_ADDRESS = int(ipaddress.IPv4Address("169.254.128.1"))
_MAX_NODES = 1 << 14


@dataclass(frozen=True, slots=True)
class PathEnd:
    """A node of a session's network as the others probe it: its number in the network, and its underlay address.

    `agent_id` is empty when the manager does not name it; `proves` says that its agent is known to answer probes.
    """

    number: int
    underlay_address: str
    agent_id: str = ""
    proves: bool = False

    @property
    def address(self) -> str:
        """Returns its address for probes: link-local, in the session's namespaces only."""
        return str(ipaddress.IPv4Address(_FIRST_ADDRESS + self.number))

    @property
    def mac(self) -> str:
        """Returns the MAC of that address."""
        octets = (0x0E, 0x5A, *ipaddress.IPv4Address(self.address).packed)
        return ":".join(f"{octet:02x}" for octet in octets)

    @property
    def name(self) -> str:
        """Returns what messages call the node."""
        return self.agent_id or self.underlay_address


@dataclass(frozen=True, slots=True)
class PathEnds:
    """This node and those that it probes, by number."""

    own: PathEnd
    peers: tuple[PathEnd, ...]


def path_ends(network: Network) -> PathEnds | None:
    """Returns who is probed in a network; None when it is on one node, or nothing of it is on this one."""
    own = next((member.underlay_address for member in network.members if member.local), None)
    if not network.vni or own is None:
        return None
    try:
        addresses = sorted({member.underlay_address for member in network.members}, key=_order)
    except ValueError:
        # Of its own node an agent does not need the address, and takes any.
        return None
    if not 1 < len(addresses) <= _MAX_NODES:
        return None
    ends: dict[str, PathEnd] = {}
    numbers = {address: number for number, address in enumerate(addresses)}
    for member in network.members:
        address = member.underlay_address
        ends[address] = PathEnd(numbers[address], address, member.agent_id, member.proves_paths)
    peers = peers_of(numbers[own], len(addresses), main=numbers[network.members[0].underlay_address])
    return PathEnds(ends[own], tuple(ends[addresses[number]] for number in sorted(peers)))


def peers_of(number: int, count: int, main: int) -> set[int]:
    """Returns the numbers of the nodes that a node probes, of `count`; `main` is that of the main kernel."""
    if count <= MESH_NODES or number == main:
        return set(range(count)) - {number}
    strides = [1 << power for power in range((count - 1).bit_length())]
    ring = {(number + stride) % count for stride in strides} | {(number - stride) % count for stride in strides}
    return (ring | {main}) - {number}


def _order(address: str) -> tuple[int, int]:
    parsed = ipaddress.ip_address(address)
    return parsed.version, int(parsed)
