"""From a network as it should be and what there is, to the steps between. Pure.

Every plan compares before it changes, so that it can be made again after a crash at any point, and is empty once it was
applied. Interfaces are created with indices chosen here: later steps of the same batch can name them without asking.

Nothing is learned and nothing is flooded to other nodes: for every remote kernel the VXLAN device knows the node, the
bridge knows the port, and the bridge answers ARP from its own permanent neighbours (Linux: `neigh_suppress`). For every
local kernel the bridge knows the port, takes no other source address from it (`locked`) and sends it no frames for
unknown addresses.

In a network of several nodes each node has a link of its own on the bridge, by which the paths between nodes are
probed: what goes over it goes the way of the frames of kernels, and Linux answers there although no agent runs.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from retinue.agent.network.core.observed import (
    AddressEntry,
    BridgeSettings,
    Link,
    NeighbourEntry,
    Observed,
    PortSettings,
    RouteEntry,
    StationEntry,
    TunnelEntry,
    TunnelSettings,
    Uplink,
)
from retinue.agent.network.core.operations import (
    BringUp,
    CreateBridge,
    CreateTunnel,
    CreateVeth,
    DeleteLink,
    DropEntry,
    Namespace,
    Operation,
    PutEntry,
    SetBridge,
    SetLink,
    SetPort,
    Step,
)
from retinue.agent.network.core.path_topology import path_ends
from retinue.agent.network.errors import InvalidNetworkError, NetworkError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from retinue.agent.network.core.operations import Entry
    from retinue.agent.network.core.path_topology import PathEnds
    from retinue.agent.network.core.topology import Member, Network

BRIDGE = "br0"
TUNNEL = "vx0"
KERNEL_LINK = "eth0"
PROBE_LINK = "probe0"
"""The link by which this node probes others and is probed, in the session's namespace."""
PROBE_PORT = "p0"
"""Its port of the bridge."""
# Low indices may be taken by the devices that some modules put into every new namespace.
BRIDGE_INDEX = 101
TUNNEL_INDEX = 102
PROBE_PORT_INDEX, PROBE_LINK_INDEX = 103, 104
KERNEL_LINK_INDEX = 101
_FIRST_PORT_INDEX = 1000
_PORT_NAME = re.compile(r"k[0-9]+")

VXLAN_TTL = 64
_OVERHEAD = {4: 50, 6: 70}

BRIDGE_SETTINGS = BridgeSettings(spanning_tree=False, multicast_snooping=False)
TUNNEL_PORT = PortSettings(
    learning=False,
    unicast_flood=False,
    multicast_flood=False,
    broadcast_flood=False,
    neighbour_suppression=True,
    locked=False,
)
KERNEL_PORT = PortSettings(
    learning=False,
    unicast_flood=False,
    multicast_flood=True,
    broadcast_flood=True,
    neighbour_suppression=False,
    locked=True,
)
# Only what is sent to it comes to the link for probes: kernels' broadcasts do not.
PROBE_PORT_SETTINGS = replace(KERNEL_PORT, multicast_flood=False, broadcast_flood=False)


def plan_network(network: Network, uplink: Uplink | None, observed: Observed) -> tuple[Step, ...]:
    """Returns the steps that bring the session's namespace into its desired state: bridge, VXLAN,
    entries for remote kernels, ports that exist.

    `uplink` is needed when the network has a VNI. Ports of kernels that are no longer local members are removed; ports
    of members are repaired, never created. Raises NetworkError without an uplink, InvalidNetworkError when its MTU is
    too small.
    """
    ports = {port_name(network, member): member for member in network.members if member.local}
    ends = path_ends(network)
    strangers = [name for name in observed.links if _PORT_NAME.fullmatch(name) and name not in ports]
    if ends is None:
        # Its other end is removed with it.
        strangers += [PROBE_PORT] if PROBE_PORT in observed.links else []
    steps: list[Operation] = [DeleteLink(observed.links[name].index) for name in strangers]
    bridge, kept = _plan_bridge(network, observed)
    steps += bridge
    steps += _plan_tunnel(network, uplink, ends, kept)
    if ends is not None:
        steps += _plan_probe_link(network, ends, kept)
    for name, member in ports.items():
        if (port := kept.links.get(name)) is not None:
            steps += _plan_port(port, _Port(network.mtu, KERNEL_PORT, frozenset({member.mac})), kept)
    return tuple(Step(Namespace.NODE if isinstance(step, CreateTunnel) else Namespace.SESSION, step) for step in steps)


def plan_attachment(network: Network, member: Member, session: Observed, kernel: Observed) -> tuple[Step, ...]:
    """Returns the steps that attach a kernel: a veth from the bridge to the kernel's namespace, its address,
    its loopback.

    `session` holds at least the bridge, the kernel's port and the stations behind that port; `kernel` all of the
    kernel's namespace. Raises NetworkError when there is no bridge, or when the kernel has an interface of another kind
    by that name.
    """
    if BRIDGE not in session.links:
        raise NetworkError(f"there is no bridge yet for session {network.session_id}")
    steps: list[Step] = []
    name = port_name(network, member)
    port, inner = session.links.get(name), kernel.links.get(KERNEL_LINK)
    if inner is not None and inner.kind != "veth":
        raise NetworkError(f"the kernel's namespace has an {KERNEL_LINK} that is not ours, of kind {inner.kind!r}")
    if port is not None and inner is not None and _paired(port, inner) and inner.mac == member.mac:
        index = inner.index
        operations = _plan_port(port, _Port(network.mtu, KERNEL_PORT, frozenset({member.mac})), session)
    else:
        if port is not None:
            steps.append(Step(Namespace.SESSION, DeleteLink(port.index)))
        if inner is not None:
            steps.append(Step(Namespace.KERNEL, DeleteLink(inner.index)))
            inner = None
        index = _free_index(kernel)
        operations = _new_port(network, member, index)
    steps += (Step(Namespace.SESSION, operation) for operation in operations)
    steps += (Step(Namespace.KERNEL, operation) for operation in _plan_inside(network, member, index, inner, kernel))
    return tuple(steps)


def port_name(network: Network, member: Member) -> str:
    """Returns the name of the kernel's port of the bridge: its address's place in the subnet,
    which no other member has.
    """
    return f"k{network.offset(member)}"


def bridge_mac(network: Network) -> str:
    """Returns the MAC of the bridge. It has no address and sends nothing, but it must be set:
    an inherited one changes at times.

    A change of the MAC makes Linux forget even the permanent neighbours.
    """
    octets = (0x0E, 0x58, *ipaddress.IPv4Network(network.subnet).network_address.packed)
    return ":".join(f"{octet:02x}" for octet in octets)


def overhead(underlay_address: str) -> int:
    """Returns the bytes that VXLAN takes from a packet on the underlay: 50 over IPv4, 70 over IPv6."""
    return _OVERHEAD[ipaddress.ip_address(underlay_address).version]


@dataclass(frozen=True, slots=True)
class _Port:
    """A port of the bridge as it should be, with the stations behind it."""

    mtu: int
    settings: PortSettings
    macs: frozenset[str]


def _plan_bridge(network: Network, observed: Observed) -> tuple[list[Operation], Observed]:
    """Plans the bridge; returns the steps, and what remains of `observed` after them."""
    mac, link = bridge_mac(network), observed.links.get(BRIDGE)
    steps: list[Operation] = []
    if link is not None and (link.kind, link.index, link.mac) == ("bridge", BRIDGE_INDEX, mac):
        if link.bridge != BRIDGE_SETTINGS:
            steps.append(SetBridge(link.index, BRIDGE_SETTINGS))
        if link.mtu != network.mtu or not link.up:
            steps.append(SetLink(link.index, network.mtu, master=0))
        return steps, observed
    if link is not None:
        steps.append(DeleteLink(link.index))
    steps.append(CreateBridge(BRIDGE_INDEX, BRIDGE, mac, network.mtu, BRIDGE_SETTINGS))
    released = {name: replace(other, master=0) for name, other in observed.links.items() if name != BRIDGE}
    return steps, replace(observed, links=released, stations=frozenset(), neighbours=frozenset())


def _plan_tunnel(network: Network, uplink: Uplink | None, ends: PathEnds | None, observed: Observed) -> list[Operation]:
    """Plans the VXLAN device, and the entries for remote kernels and probed nodes in its table and in those of the
    bridge.
    """
    link = observed.links.get(TUNNEL)
    remote = [member for member in network.members if not member.local]
    behind = {member.mac: member.underlay_address for member in remote}
    behind |= {peer.mac: peer.underlay_address for peer in (() if ends is None else ends.peers)}
    steps: list[Operation] = []
    if not network.vni:
        if link is not None:
            steps.append(DeleteLink(link.index))
    else:
        settings = _tunnel_settings(network, uplink)
        tunnels = observed.tunnels
        if link is not None and (link.kind, link.index, link.tunnel) != ("vxlan", TUNNEL_INDEX, settings):
            steps.append(DeleteLink(link.index))
            link = None
        if link is None:
            steps.append(CreateTunnel(TUNNEL_INDEX, TUNNEL, network.mtu, settings))
            link = Link(TUNNEL_INDEX, TUNNEL, "vxlan", "", network.mtu, up=False, tunnel=settings)
            # The entries of the old device were deleted with it.
            tunnels = frozenset()
        steps += _plan_port(link, _Port(network.mtu, TUNNEL_PORT, frozenset(behind)), observed)
        wanted = {TunnelEntry(mac, address) for mac, address in behind.items()}
        steps += _plan_entries(TUNNEL_INDEX, wanted, tunnels)
    neighbours = {NeighbourEntry(member.address, member.mac) for member in remote}
    return steps + _plan_entries(BRIDGE_INDEX, neighbours, observed.neighbours)


def _plan_probe_link(network: Network, ends: PathEnds, observed: Observed) -> list[Operation]:
    """Plans the link for probes, its port of the bridge, and what it has to know of the other nodes."""
    port, link = observed.links.get(PROBE_PORT), observed.links.get(PROBE_LINK)
    wanted = _Port(network.mtu, PROBE_PORT_SETTINGS, frozenset({ends.own.mac}))
    address = AddressEntry(PROBE_LINK_INDEX, ends.own.address, 32)
    neighbours = {NeighbourEntry(peer.address, peer.mac) for peer in ends.peers}
    routes = {RouteEntry(PROBE_LINK_INDEX, f"{peer.address}/32") for peer in ends.peers}
    steps: list[Operation] = []
    if port is not None and link is not None and _is_probe_link(port, link, ends):
        steps += _plan_port(port, wanted, observed)
        if link.mtu != network.mtu or not link.up:
            steps.append(SetLink(link.index, network.mtu, master=0))
        addresses = {entry for entry in observed.addresses if entry.link == link.index}
        steps += _plan_entries(link.index, {address}, addresses)
        steps += _plan_entries(link.index, neighbours, observed.probe_neighbours)
        return steps + _plan_entries(link.index, routes, observed.routes)
    # Removing one end removes the other.
    if (old := port or link) is not None:
        steps.append(DeleteLink(old.index))
        if port is not None and link is not None and port.peer != link.index:
            steps.append(DeleteLink(link.index))
    steps += [
        CreateVeth(
            index=PROBE_PORT_INDEX,
            name=PROBE_PORT,
            mtu=network.mtu,
            master=BRIDGE_INDEX,
            peer_index=PROBE_LINK_INDEX,
            peer_name=PROBE_LINK,
            peer_mac=ends.own.mac,
        ),
        SetPort(PROBE_PORT_INDEX, PROBE_PORT_SETTINGS),
        PutEntry(PROBE_PORT_INDEX, StationEntry(PROBE_PORT_INDEX, ends.own.mac)),
        BringUp(PROBE_LINK_INDEX),
        PutEntry(PROBE_LINK_INDEX, address),
    ]
    steps += _plan_entries(PROBE_LINK_INDEX, neighbours, ())
    return steps + _plan_entries(PROBE_LINK_INDEX, routes, ())


def _is_probe_link(port: Link, link: Link, ends: PathEnds) -> bool:
    indices = (port.index, link.index) == (PROBE_PORT_INDEX, PROBE_LINK_INDEX)
    return indices and link.kind == "veth" and _paired(port, link) and link.mac == ends.own.mac


def _tunnel_settings(network: Network, uplink: Uplink | None) -> TunnelSettings:
    if uplink is None:
        raise NetworkError("the node has no underlay address, and the session is spread over several nodes")
    largest = uplink.mtu - overhead(uplink.address)
    if network.mtu > largest:
        raise InvalidNetworkError(
            f"MTU {network.mtu} of session {network.session_id} does not fit: {uplink.name} carries {uplink.mtu}, "
            f"which leaves {largest} inside VXLAN"
        )
    return TunnelSettings(network.vni, uplink.address, uplink.index, network.vxlan_port, learning=False, ttl=VXLAN_TTL)


def _plan_port(link: Link, wanted: _Port, observed: Observed) -> list[Operation]:
    """Plans the steps that make `link` the wanted port of the bridge."""
    steps: list[Operation] = []
    if (link.mtu, link.master, link.up) != (wanted.mtu, BRIDGE_INDEX, True):
        steps.append(SetLink(link.index, wanted.mtu, BRIDGE_INDEX))
    joined = link.master == BRIDGE_INDEX
    if not joined or not _same_port(link.port, wanted.settings):
        steps.append(SetPort(link.index, wanted.settings))
    # A link that joins brings no stations along.
    present = {entry for entry in observed.stations if entry.port == link.index and joined}
    return steps + _plan_entries(link.index, {StationEntry(link.index, mac) for mac in wanted.macs}, present)


def _new_port(network: Network, member: Member, peer_index: int) -> list[Operation]:
    index = _FIRST_PORT_INDEX + network.offset(member)
    return [
        CreateVeth(
            index=index,
            name=port_name(network, member),
            mtu=network.mtu,
            master=BRIDGE_INDEX,
            peer_index=peer_index,
            peer_name=KERNEL_LINK,
            peer_mac=member.mac,
        ),
        SetPort(index, KERNEL_PORT),
        PutEntry(index, StationEntry(index, member.mac)),
    ]


def _plan_inside(network: Network, member: Member, index: int, inner: Link | None, kernel: Observed) -> list[Operation]:
    """Plans the kernel's own end; `inner` is None when it has just been created, with the index `index`."""
    steps: list[Operation] = []
    loopback = kernel.links.get("lo")
    if loopback is not None and not loopback.up:
        steps.append(BringUp(loopback.index))
    present: set[AddressEntry] = set()
    if inner is None:
        steps.append(BringUp(index))
    else:
        present = {entry for entry in kernel.addresses if entry.link == index}
        if inner.mtu != network.mtu or not inner.up:
            steps.append(SetLink(index, network.mtu, master=0))
    return steps + _plan_entries(index, {AddressEntry(index, member.address, network.prefix_length)}, present)


def _free_index(kernel: Observed) -> int:
    """Returns an index for the kernel's end: the usual one unless an interface that stays has it."""
    taken = {link.index for link in kernel.links.values() if link.name != KERNEL_LINK}
    return KERNEL_LINK_INDEX if KERNEL_LINK_INDEX not in taken else max(taken) + 1


def _plan_entries(link: int, desired: Iterable[Entry], present: Iterable[Entry]) -> list[Operation]:
    """Returns the difference; what goes, goes first, since an old and a new entry may share their key."""
    wanted, found = set(desired), set(present)
    steps: list[Operation] = [DropEntry(link, entry) for entry in sorted(found - wanted, key=repr)]
    return steps + [PutEntry(link, entry) for entry in sorted(wanted - found, key=repr)]


def _paired(port: Link, inner: Link) -> bool:
    return (port.kind, port.peer, inner.peer) == ("veth", inner.index, port.index)


def _same_port(present: PortSettings | None, wanted: PortSettings) -> bool:
    if present is None:
        return False
    # An older Linux does not know `locked`, and there is nothing to repair in that.
    return present == (replace(wanted, locked=None) if present.locked is None else wanted)
