"""Reads a namespace's links and tables from netlink, as plain values. Blocking."""

from __future__ import annotations

import errno
import ipaddress
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyroute2.netlink import rtnl
from pyroute2.netlink.rtnl import ndmsg as neighbour_flags
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import IFF_UP, ifinfmsg
from pyroute2.netlink.rtnl.ndmsg import ndmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

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
)
from retinue.agent.network.netlink import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from retinue.agent.network.netlink import Message, Netlink

_SKIP_STATISTICS = 8
_MAIN_TABLE = 254
_SELF = neighbour_flags.flags["self"]
_PERMANENT, _NO_ARP = neighbour_flags.states["permanent"], neighbour_flags.states["noarp"]


def observe_session(netlink: Netlink, bridge: str, probe: str) -> Observed:
    """Returns a session's namespace, whole: its links, and the tables of its bridge, its VXLAN device and its link for
    probes. Raises NetworkError.
    """
    links = _links(netlink)
    tunnels, stations = _forwarding(netlink, links.values())
    whole = Observed(links, tunnels, stations, _neighbours(netlink, links.get(bridge)))
    if (link := links.get(probe)) is None:
        return whole
    return replace(
        whole,
        addresses=observe_addresses(netlink),
        routes=_routes(netlink, link),
        probe_neighbours=_neighbours(netlink, link),
    )


def observe_port(netlink: Netlink, bridge: str, port: str) -> Observed:
    """Returns, of a session's namespace, only the bridge, one port and the stations behind it. Raises NetworkError."""
    links = {}
    for name in (bridge, port):
        if (link := find_link(netlink, name)) is not None:
            links[name] = link
    if port not in links:
        return Observed(links)
    return Observed(links, stations=_forwarding(netlink, [links[port]])[1])


def observe_kernel(netlink: Netlink) -> Observed:
    """Returns a kernel's namespace: its links and their IPv4 addresses. Raises NetworkError."""
    links = _links(netlink)
    return Observed(links, addresses=observe_addresses(netlink))


def observe_outside(netlink: Netlink, name: str) -> Observed:
    """Returns, of a node's namespace, only one link, and the permanent neighbours and routes on it.
    Raises NetworkError.
    """
    link = find_link(netlink, name)
    if link is None:
        return Observed()
    return Observed({name: link}, neighbours=_neighbours(netlink, link), routes=_routes(netlink, link))


def observe_inside(netlink: Netlink, name: str) -> Observed:
    """Returns a kernel's namespace, and the permanent neighbours and routes on the link of that name.
    Raises NetworkError.
    """
    whole = observe_kernel(netlink)
    link = whole.links.get(name)
    if link is None:
        return whole
    neighbours, routes = _neighbours(netlink, link), _routes(netlink, link)
    return Observed(whole.links, addresses=whole.addresses, neighbours=neighbours, routes=routes)


def observe_connected(netlink: Netlink) -> frozenset[str]:
    """Returns the IPv4 networks that the namespace's interfaces are on. Raises NetworkError."""
    interfaces = (ipaddress.IPv4Interface((entry.address, entry.prefix_length)) for entry in observe_addresses(netlink))
    return frozenset(str(interface.network) for interface in interfaces if not interface.is_loopback)


def observe_addresses(netlink: Netlink, family: socket.AddressFamily = socket.AF_INET) -> frozenset[AddressEntry]:
    """Returns all addresses of a family in the namespace. Raises NetworkError."""
    question = _question(ifaddrmsg, rtnl.RTM_GETADDR, family=family)
    return frozenset(
        AddressEntry(found["index"], _text(found, "IFA_LOCAL") or _text(found, "IFA_ADDRESS"), found["prefixlen"])
        for found in netlink.dump(question)
    )


def observe_link(netlink: Netlink, index: int) -> Link:
    """Returns the link with an index. Raises RequestError with ENODEV when there is none."""
    question = _question(ifinfmsg, rtnl.RTM_GETLINK, index=index)
    question["attrs"] = [("IFLA_EXT_MASK", _SKIP_STATISTICS)]
    return _link(netlink.request(question)[0])


def _links(netlink: Netlink) -> dict[str, Link]:
    question = _question(ifinfmsg, rtnl.RTM_GETLINK)
    question["attrs"] = [("IFLA_EXT_MASK", _SKIP_STATISTICS)]
    return {link.name: link for link in map(_link, netlink.dump(question))}


def find_link(netlink: Netlink, name: str) -> Link | None:
    """Returns the link of that name, or None. Raises NetworkError."""
    question = _question(ifinfmsg, rtnl.RTM_GETLINK)
    question["attrs"] = [("IFLA_IFNAME", name), ("IFLA_EXT_MASK", _SKIP_STATISTICS)]
    try:
        return _link(netlink.request(question)[0])
    except RequestError as error:
        if error.code == errno.ENODEV:
            return None
        raise


def _forwarding(netlink: Netlink, links: Iterable[Link]) -> tuple[frozenset[TunnelEntry], frozenset[StationEntry]]:
    """Entries of VXLAN devices and static entries of bridges, of the ports among the links."""
    tunnels, stations = set(), set()
    for link in links:
        if not link.master and link.kind != "vxlan":
            continue
        for found in netlink.dump(_question(ndmsg, rtnl.RTM_GETNEIGH, family=socket.AF_BRIDGE, ifindex=link.index)):
            if found["ifindex"] != link.index:
                continue
            mac = _text(found, "NDA_LLADDR")
            if not found["flags"] & _SELF:
                if found["state"] & _NO_ARP:
                    stations.add(StationEntry(link.index, mac))
            elif link.kind == "vxlan":
                tunnels.add(TunnelEntry(mac, _text(found, "NDA_DST")))
    return frozenset(tunnels), frozenset(stations)


def _neighbours(netlink: Netlink, bridge: Link | None) -> frozenset[NeighbourEntry]:
    if bridge is None:
        return frozenset()
    question = _question(ndmsg, rtnl.RTM_GETNEIGH, family=socket.AF_INET)
    question["attrs"] = [("NDA_IFINDEX", bridge.index)]
    return frozenset(
        NeighbourEntry(_text(found, "NDA_DST"), _text(found, "NDA_LLADDR"))
        for found in netlink.dump(question)
        if found["ifindex"] == bridge.index and found["state"] & _PERMANENT
    )


def _routes(netlink: Netlink, link: Link) -> frozenset[RouteEntry]:
    question = _question(rtmsg, rtnl.RTM_GETROUTE, family=socket.AF_INET, table=_MAIN_TABLE)
    question["attrs"] = [("RTA_OIF", link.index)]
    try:
        answer = netlink.dump(question)
    except RequestError as error:
        if error.code != errno.ENOENT:
            raise
        # A namespace gets the table with its first route.
        answer = []
    return frozenset(
        RouteEntry(link.index, _destination(found), _text(found, "RTA_GATEWAY"))
        for found in answer
        if found.get_attr("RTA_OIF") == link.index and found["table"] == _MAIN_TABLE
    )


def _destination(route: Any) -> str:
    return str(ipaddress.IPv4Network((_text(route, "RTA_DST") or 0, route["dst_len"])))


def _question(message_class: Any, kind: int, **fields: int) -> Message:
    message = message_class()
    message["header"]["type"] = kind
    for name, value in fields.items():
        message[name] = value
    return message


def _text(message: Any, attribute: str) -> str:
    return message.get_attr(attribute) or ""


def _link(found: Any) -> Link:
    details = found.get_attr("IFLA_LINKINFO")
    kind = (details and details.get_attr("IFLA_INFO_KIND")) or ""
    data = details and details.get_attr("IFLA_INFO_DATA")
    slave = (
        details and details.get_attr("IFLA_INFO_SLAVE_KIND") == "bridge" and details.get_attr("IFLA_INFO_SLAVE_DATA")
    )
    return Link(
        index=found["index"],
        name=found.get_attr("IFLA_IFNAME"),
        kind=kind,
        mac=_text(found, "IFLA_ADDRESS"),
        mtu=found.get_attr("IFLA_MTU") or 0,
        up=bool(found["flags"] & IFF_UP),
        master=found.get_attr("IFLA_MASTER") or 0,
        peer=(found.get_attr("IFLA_LINK") or 0) if kind == "veth" else 0,
        bridge=_bridge(data) if kind == "bridge" and data else None,
        tunnel=_tunnel(data) if kind == "vxlan" and data else None,
        port=_port(slave) if slave else None,
    )


def _bridge(data: Any) -> BridgeSettings:
    return BridgeSettings(
        spanning_tree=bool(data.get_attr("IFLA_BR_STP_STATE")),
        multicast_snooping=bool(data.get_attr("IFLA_BR_MCAST_SNOOPING")),
    )


def _tunnel(data: Any) -> TunnelSettings:
    local = data.get_attr("IFLA_VXLAN_LOCAL") or data.get_attr("IFLA_VXLAN_LOCAL6")
    return TunnelSettings(
        vni=data.get_attr("IFLA_VXLAN_ID"),
        local=str(ipaddress.ip_address(local)) if local else "",
        uplink=data.get_attr("IFLA_VXLAN_LINK") or 0,
        port=data.get_attr("IFLA_VXLAN_PORT"),
        learning=bool(data.get_attr("IFLA_VXLAN_LEARNING")),
        ttl=data.get_attr("IFLA_VXLAN_TTL"),
    )


def _port(data: Any) -> PortSettings:
    locked = data.get_attr("IFLA_BRPORT_LOCKED")
    return PortSettings(
        learning=bool(data.get_attr("IFLA_BRPORT_LEARNING")),
        unicast_flood=bool(data.get_attr("IFLA_BRPORT_UNICAST_FLOOD")),
        multicast_flood=bool(data.get_attr("IFLA_BRPORT_MCAST_FLOOD")),
        broadcast_flood=bool(data.get_attr("IFLA_BRPORT_BCAST_FLOOD")),
        neighbour_suppression=bool(data.get_attr("IFLA_BRPORT_NEIGH_SUPPRESS")),
        locked=None if locked is None else bool(locked),
    )
