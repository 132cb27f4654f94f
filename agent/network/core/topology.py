"""The topology of a session's private network: its subnet, its VXLAN number and the location of its members. Pure."""

from __future__ import annotations

import ipaddress
import re
import uuid
from dataclasses import dataclass

from retinue.agent.network.errors import InvalidNetworkError

MIN_MTU = 576
"""Smallest MTU inside a session, in bytes: what every IPv4 host has to take in one piece (RFC 791)."""
MAX_MTU = 65535
MAX_VNI = 2**24 - 1
VXLAN_PORT = 4789
"""The UDP port of VXLAN unless a cluster has another (RFC 7348)."""
LOCALHOST = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
"""The lines of /etc/hosts every kernel has, with a network or without."""

_MAC = re.compile(r"[0-9a-f]{2}(?::[0-9a-f]{2}){5}")
_HOSTNAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class Member:
    """A kernel in its session's network; `underlay_address` is that of its node.

    `agent_id` is the agent there, empty of a manager that does not say it; `proves_paths` says that this agent is known
    to answer probes of paths.
    """

    kernel_id: str
    hostname: str
    address: str
    mac: str
    underlay_address: str
    local: bool
    agent_id: str = ""
    proves_paths: bool = False


@dataclass(frozen=True, slots=True)
class Network:
    """A session's network as one node has to know it; `vni` 0 means that all members are local. `mtu` is in bytes,
    `vxlan_port` the port that all of its nodes have.
    """

    session_id: str
    vni: int
    subnet: str
    mtu: int
    members: tuple[Member, ...]
    vxlan_port: int = VXLAN_PORT

    @property
    def prefix_length(self) -> int:
        """Returns the length of the subnet's prefix in bits."""
        return ipaddress.IPv4Network(self.subnet).prefixlen

    def offset(self, member: Member) -> int:
        """Returns the position of the member's address in the subnet, 1 for the first one after the subnet's own."""
        return int(ipaddress.IPv4Address(member.address)) - int(ipaddress.IPv4Network(self.subnet).network_address)

    def member(self, kernel_id: str) -> Member:
        """Returns the local member with this kernel. Raises InvalidNetworkError when there is none."""
        for member in self.members:
            if member.kernel_id == kernel_id and member.local:
                return member
        raise InvalidNetworkError(f"kernel {kernel_id} has no place in the network of session {self.session_id} here")


def check(network: Network) -> None:
    """Raises InvalidNetworkError unless a node can make the network as it is described."""
    session_key(network.session_id)
    _require(0 <= network.vni <= MAX_VNI, f"VNI {network.vni} is not within 0 to {MAX_VNI}")
    _require(0 < network.vxlan_port < 2**16, f"port {network.vxlan_port} of VXLAN is none")
    _require(MIN_MTU <= network.mtu <= MAX_MTU, f"MTU {network.mtu} is not within {MIN_MTU} to {MAX_MTU}")
    try:
        subnet = ipaddress.IPv4Network(network.subnet)
    except ValueError as error:
        raise InvalidNetworkError(f"subnet {network.subnet!r}: {error}") from error
    for member in network.members:
        _check_member(network, subnet, member)
    for what in ("kernel_id", "hostname", "address", "mac"):
        values = [getattr(member, what) for member in network.members]
        _require(len(values) == len(set(values)), f"two members have the same {what}")


def session_key(session_id: str) -> str:
    """Returns the 32 hexadecimal digits of a session's id. Raises InvalidNetworkError
    unless it is a UUID in its usual form.
    """
    try:
        parsed = uuid.UUID(session_id)
    except ValueError as error:
        raise InvalidNetworkError(f"session id {session_id!r} is not a UUID") from error
    _require(str(parsed) == session_id, f"session id {session_id!r} is not a UUID in its usual form")
    return parsed.hex


def _check_member(network: Network, subnet: ipaddress.IPv4Network, member: Member) -> None:
    name = f"member {member.hostname!r}"
    _require(bool(member.kernel_id), f"{name} has no kernel id")
    _require(_HOSTNAME.fullmatch(member.hostname) is not None, f"{name}: not a host name")
    try:
        address = ipaddress.IPv4Address(member.address)
    except ValueError as error:
        raise InvalidNetworkError(f"{name}: {error}") from error
    _require(str(address) == member.address, f"{name}: address {member.address!r} is not in its usual form")
    _require(
        address in subnet and address not in {subnet.network_address, subnet.broadcast_address},
        f"{name}: {address} is not a host's address in {subnet}",
    )
    _require(_MAC.fullmatch(member.mac) is not None, f"{name}: {member.mac!r} is not a MAC address")
    _require(not int(member.mac[:2], 16) & 1, f"{name}: {member.mac} is a multicast address")
    if member.local:
        return
    _require(network.vni != 0, f"{name} is on another node and the network has no VNI")
    try:
        underlay = ipaddress.ip_address(member.underlay_address)
    except ValueError as error:
        raise InvalidNetworkError(f"{name}: underlay address: {error}") from error
    _require(not underlay.is_unspecified and not underlay.is_multicast, f"{name}: {underlay} is not a node's address")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidNetworkError(message)


def hosts_text(network: Network) -> str:
    """Returns /etc/hosts for the kernels of a network: the local host's lines, then one line for every member,
    in the order of the members.
    """
    return LOCALHOST + "".join(f"{member.address}\t{member.hostname}\n" for member in network.members)
