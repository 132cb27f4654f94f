"""Operations as netlink messages."""

from __future__ import annotations

import ipaddress
import socket
import struct
from functools import singledispatch
from typing import Any, NamedTuple

from pyroute2.netlink import rtnl
from pyroute2.netlink.rtnl import ndmsg as neighbour_flags
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import IFF_UP, ifinfmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from retinue.agent.network.core.observed import (
    AddressEntry,
    BridgeSettings,
    NeighbourEntry,
    PortSettings,
    RouteEntry,
    StationEntry,
    TunnelEntry,
)
from retinue.agent.network.core.operations import (
    BringUp,
    CreateBridge,
    CreateTunnel,
    CreateVeth,
    DeleteLink,
    DropEntry,
    Operation,
    PutEntry,
    SetBridge,
    SetLink,
    SetPort,
)
from retinue.agent.network.netlink import Message, Packed

_NEIGHBOUR, _ATTRIBUTE = struct.Struct("=BxxxiHBx"), struct.Struct("=HH")
_NDA_DST, _NDA_LLADDR = 1, 2
_CREATE, _REPLACE, _EXCLUSIVE = 0x400, 0x100, 0x200
_MAIN_TABLE, _STATIC, _UNICAST, _SCOPE_LINK, _ON_LINK = 254, 4, 1, 253, 4
_SELF, _MASTER = neighbour_flags.flags["self"], neighbour_flags.flags["master"]
_PERMANENT, _NO_ARP, _REACHABLE = (neighbour_flags.states[name] for name in ("permanent", "noarp", "reachable"))
# In a bridge's table "permanent" means the bridge's own address, and frames to it would be swallowed.
STATION_STATE = _NO_ARP | _REACHABLE
_TUNNEL_STATE = _PERMANENT | _NO_ARP


def delete_named(name: str) -> Message:
    """Returns the request that removes the interface of that name; ENODEV when there is none."""
    return _link(rtnl.RTM_DELLINK, 0, attributes=[("IFLA_IFNAME", name)])


@singledispatch
def encode(operation: Operation, *, session: int, kernel: int) -> Message:
    """Returns the message of an operation; `session` and `kernel` are descriptors of
    namespaces to create interfaces in.
    """
    raise TypeError(f"no message for {operation!r}")


@encode.register
def _(operation: CreateBridge, *, session: int, kernel: int) -> Message:
    attributes = [
        ("IFLA_IFNAME", operation.name),
        ("IFLA_ADDRESS", operation.mac),
        ("IFLA_MTU", operation.mtu),
        _kind("bridge", _bridge(operation.settings)),
    ]
    return _link(rtnl.RTM_NEWLINK, operation.index, up=True, flags=_CREATE | _EXCLUSIVE, attributes=attributes)


@encode.register
def _(operation: SetBridge, *, session: int, kernel: int) -> Message:
    return _link(rtnl.RTM_NEWLINK, operation.index, attributes=[_kind("bridge", _bridge(operation.settings))])


@encode.register
def _(operation: CreateTunnel, *, session: int, kernel: int) -> Message:
    settings = operation.settings
    version = ipaddress.ip_address(settings.local).version
    attributes = [
        ("IFLA_IFNAME", operation.name),
        ("IFLA_MTU", operation.mtu),
        ("IFLA_NET_NS_FD", session),
        _kind(
            "vxlan",
            [
                ("IFLA_VXLAN_ID", settings.vni),
                ("IFLA_VXLAN_LOCAL" if version == 4 else "IFLA_VXLAN_LOCAL6", settings.local),  # noqa: PLR2004  # IPv4
                ("IFLA_VXLAN_LINK", settings.uplink),
                ("IFLA_VXLAN_PORT", settings.port),
                ("IFLA_VXLAN_LEARNING", int(settings.learning)),
                ("IFLA_VXLAN_TTL", settings.ttl),
            ],
        ),
    ]
    return _link(rtnl.RTM_NEWLINK, operation.index, flags=_CREATE | _EXCLUSIVE, attributes=attributes)


@encode.register
def _(operation: CreateVeth, *, session: int, kernel: int) -> Message:
    inner = {
        "index": operation.peer_index,
        "attrs": [
            ("IFLA_IFNAME", operation.peer_name),
            ("IFLA_ADDRESS", operation.peer_mac),
            ("IFLA_MTU", operation.mtu),
            ("IFLA_NET_NS_FD", kernel),
        ],
    }
    attributes = [
        ("IFLA_IFNAME", operation.name),
        ("IFLA_MTU", operation.mtu),
        ("IFLA_MASTER", operation.master),
        _kind("veth", [("VETH_INFO_PEER", inner)]),
    ]
    if operation.mac:
        attributes.append(("IFLA_ADDRESS", operation.mac))
    return _link(rtnl.RTM_NEWLINK, operation.index, up=True, flags=_CREATE | _EXCLUSIVE, attributes=attributes)


@encode.register
def _(operation: SetLink, *, session: int, kernel: int) -> Message:
    attributes = [("IFLA_MTU", operation.mtu), ("IFLA_MASTER", operation.master)]
    return _link(rtnl.RTM_NEWLINK, operation.index, up=True, attributes=attributes)


@encode.register
def _(operation: BringUp, *, session: int, kernel: int) -> Message:
    return _link(rtnl.RTM_NEWLINK, operation.index, up=True)


@encode.register
def _(operation: SetPort, *, session: int, kernel: int) -> Message:
    data = {"attrs": _port(operation.settings)}
    slave = {"attrs": [("IFLA_INFO_SLAVE_KIND", "bridge"), ("IFLA_INFO_SLAVE_DATA", data)]}
    return _link(rtnl.RTM_NEWLINK, operation.index, attributes=[("IFLA_LINKINFO", slave)])


@encode.register
def _(operation: DeleteLink, *, session: int, kernel: int) -> Message:
    return _link(rtnl.RTM_DELLINK, operation.index)


@encode.register
def _(operation: PutEntry, *, session: int, kernel: int) -> Message:
    kinds = _Kinds(rtnl.RTM_NEWADDR, rtnl.RTM_NEWNEIGH, rtnl.RTM_NEWROUTE)
    return _entry(operation, kinds, _CREATE | _REPLACE)


@encode.register
def _(operation: DropEntry, *, session: int, kernel: int) -> Message:
    return _entry(operation, _Kinds(rtnl.RTM_DELADDR, rtnl.RTM_DELNEIGH, rtnl.RTM_DELROUTE), 0)


class _Kinds(NamedTuple):
    """Types of the messages for an entry, by what it is."""

    address: int
    neighbour: int
    route: int


def _entry(operation: PutEntry | DropEntry, kinds: _Kinds, flags: int) -> Message:
    match operation.entry:
        case TunnelEntry(mac, destination):
            body = (
                _neighbour(operation.link, socket.AF_BRIDGE, _TUNNEL_STATE, _SELF)
                + _mac(mac)
                + _destination(destination)
            )
        case StationEntry(_, mac):
            body = _neighbour(operation.link, socket.AF_BRIDGE, STATION_STATE, _MASTER) + _mac(mac)
        case NeighbourEntry(address, mac):
            body = _neighbour(operation.link, socket.AF_INET, _PERMANENT, 0) + _destination(address) + _mac(mac)
        case AddressEntry(link, address, prefix_length):
            message = ifaddrmsg()
            message["family"], message["index"], message["prefixlen"] = socket.AF_INET, link, prefix_length
            broadcast = ipaddress.IPv4Network((address, prefix_length), strict=False).broadcast_address
            message["attrs"] = [("IFA_LOCAL", address), ("IFA_ADDRESS", address), ("IFA_BROADCAST", str(broadcast))]
            return _typed(message, kinds.address, flags)
        case RouteEntry() as route:
            return _typed(_route(route), kinds.route, flags)
    return Packed(kinds.neighbour, flags, body)


def _neighbour(link: int, family: int, state: int, flags: int) -> bytes:
    """Returns the fixed part of an entry of a neighbour or forwarding table (`struct ndmsg` in linux/neighbour.h)."""
    return _NEIGHBOUR.pack(family, link, state, flags)


def _mac(mac: str) -> bytes:
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + 6, _NDA_LLADDR) + bytes.fromhex(mac.replace(":", "")) + bytes(2)


def _destination(address: str) -> bytes:
    packed = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(packed), _NDA_DST) + packed


def _route(entry: RouteEntry) -> Message:
    destination = ipaddress.IPv4Network(entry.destination)
    message = rtmsg()
    message["family"], message["dst_len"], message["table"] = socket.AF_INET, destination.prefixlen, _MAIN_TABLE
    message["proto"], message["type"] = _STATIC, _UNICAST
    message["attrs"] = [("RTA_OIF", entry.link)]
    if destination.prefixlen:
        message["attrs"].append(("RTA_DST", str(destination.network_address)))
    if entry.gateway:
        # The gateway has no address of the link's network, and is reached over it all the same.
        message["flags"] = _ON_LINK
        message["attrs"].append(("RTA_GATEWAY", entry.gateway))
    else:
        message["scope"] = _SCOPE_LINK
    return message


def _link(
    kind: int, index: int, *, up: bool = False, flags: int = 0, attributes: list[tuple[str, Any]] | None = None
) -> Message:
    message = ifinfmsg()
    message["index"] = index
    if up:
        message["flags"] = message["change"] = IFF_UP
    message["attrs"] = attributes or []
    return _typed(message, kind, flags)


def _typed(message: Message, kind: int, flags: int) -> Message:
    message["header"]["type"] = kind
    message["header"]["flags"] = flags
    return message


def _kind(name: str, settings: list[tuple[str, Any]]) -> tuple[str, Any]:
    return "IFLA_LINKINFO", {"attrs": [("IFLA_INFO_KIND", name), ("IFLA_INFO_DATA", {"attrs": settings})]}


def _bridge(settings: BridgeSettings) -> list[tuple[str, Any]]:
    return [
        ("IFLA_BR_STP_STATE", int(settings.spanning_tree)),
        ("IFLA_BR_MCAST_SNOOPING", int(settings.multicast_snooping)),
    ]


def _port(settings: PortSettings) -> list[tuple[str, Any]]:
    values = [
        ("IFLA_BRPORT_LEARNING", settings.learning),
        ("IFLA_BRPORT_UNICAST_FLOOD", settings.unicast_flood),
        ("IFLA_BRPORT_MCAST_FLOOD", settings.multicast_flood),
        ("IFLA_BRPORT_BCAST_FLOOD", settings.broadcast_flood),
        ("IFLA_BRPORT_NEIGH_SUPPRESS", settings.neighbour_suppression),
        ("IFLA_BRPORT_LOCKED", settings.locked),
    ]
    return [(name, int(value)) for name, value in values if value is not None]
