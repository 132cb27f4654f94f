"""Finds the address and the interface of the node that carry the traffic between nodes. Blocking."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from typing import TYPE_CHECKING

from pyroute2.netlink import rtnl
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from retinue.agent.network import netlink as route_netlink
from retinue.agent.network.core.observed import AddressEntry, Uplink
from retinue.agent.network.core.plan import overhead
from retinue.agent.network.core.topology import MIN_MTU
from retinue.agent.network.errors import NetworkError
from retinue.agent.network.observation import observe_addresses, observe_link

if TYPE_CHECKING:
    from collections.abc import Collection

    from retinue.agent.network.netlink import Netlink

_MAIN_TABLE = 254
MAX_UPLINK_MTU = 65_521
"""Largest MTU that counts, in bytes: what the taps of virtual machines take. A loopback interface has 65,536, which no
veth takes.
"""


def find_uplink(address: str | None = None) -> Uplink:
    """Returns the interface that has `address`, in the process's own network namespace.

    Without an address: the first one of the default route's interface; with no default route, the first one that can be
    reached from outside. Raises NetworkError when there is none, its interface is down,
    or its MTU is too small for VXLAN. An MTU above `MAX_UPLINK_MTU` counts as that.
    """
    with route_netlink.connected() as netlink:
        entry = _default(netlink) if address is None else _given(netlink, address)
        link = observe_link(netlink, entry.link)
    if not link.up:
        raise NetworkError(f"interface {link.name} with the underlay address {entry.address} is down")
    uplink = Uplink(link.index, link.name, str(ipaddress.ip_address(entry.address)), min(link.mtu, MAX_UPLINK_MTU))
    least = MIN_MTU + overhead(uplink.address)
    if uplink.mtu < least:
        raise NetworkError(f"interface {link.name} has an MTU of {link.mtu}; VXLAN needs {least} or more")
    return uplink


def moved_from(address: str) -> Uplink | None:
    """Returns what `find_uplink` chooses when no interface has `address` any more; None while one has, and while the
    node has no other address. Blocks.
    """
    try:
        find_uplink(address)
    except NetworkError:
        with contextlib.suppress(NetworkError):
            found = find_uplink()
            return None if found.address == address else found
    return None


def _given(netlink: Netlink, address: str) -> AddressEntry:
    try:
        wanted = ipaddress.ip_address(address)
    except ValueError as error:
        raise NetworkError(f"underlay address: {error}") from error
    family = socket.AF_INET if isinstance(wanted, ipaddress.IPv4Address) else socket.AF_INET6
    for entry in observe_addresses(netlink, family):
        if ipaddress.ip_address(entry.address) == wanted:
            return entry
    raise NetworkError(f"no interface of this node has the underlay address {address}")


def _default(netlink: Netlink) -> AddressEntry:
    entries = sorted(
        (entry for entry in observe_addresses(netlink) if _reachable(entry.address)), key=lambda entry: entry.link
    )
    for index, source in _default_routes(netlink):
        for entry in entries:
            if entry.link == index and source in {"", entry.address}:
                return entry
    if not entries:
        raise NetworkError("this node has no address that other nodes can reach; give it an underlay address")
    return entries[0]


def _default_routes(netlink: Netlink) -> Collection[tuple[int, str]]:
    """Returns the interface and preferred source, if any, of the default routes, the best one first."""
    question = rtmsg()
    question["header"]["type"] = rtnl.RTM_GETROUTE
    question["family"] = socket.AF_INET
    routes = [
        (route.get_attr("RTA_PRIORITY") or 0, route.get_attr("RTA_OIF"), route.get_attr("RTA_PREFSRC") or "")
        for route in netlink.dump(question)
        if route["dst_len"] == 0 and route["table"] == _MAIN_TABLE and route.get_attr("RTA_OIF")
    ]
    return [(index, source) for _, index, source in sorted(routes)]


def _reachable(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    return not (parsed.is_loopback or parsed.is_link_local)
