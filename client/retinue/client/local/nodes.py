"""Nodes on one machine: network namespaces on a switch, which is a namespace of its own that holds a bridge.

        this machine                switch namespace              node namespaces
    LINK 10.213.x.1/24 ─── veth ─── bridge ─── veth ───────────── eth0 10.213.x.11/24
                                       └────── veth ───────────── eth0 10.213.x.12/24

The switch is not in the machine's own namespace because rules there (dockerd drops what it does not know) would reach bridged frames. The
name of the link is what keeps two underlays apart: the kernel gives it to one only.
"""

from __future__ import annotations

import errno
import ipaddress
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from retinue.client.errors import RetinueError
from retinue.client.local import namespaces

# pyroute2 is part of what an agent needs, not of what a client needs: this module is imported only where clusters are made.
from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

UNDERLAYS = 256
_FIRST_NODE = 11
_LAST_NODE = 250
_BRIDGE = "switch"
_UPLINK = "eth0"


class NodeError(RetinueError):
    """Nodes cannot be made here."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node: `index` counts from 0, `namespace` is its network namespace, `address` where the others reach it."""

    index: int
    namespace: str
    address: str


@dataclass(frozen=True, slots=True)
class Underlay:
    """The network that nodes are joined by: 10.213.`number`.0/24. `prefix` starts the names of its namespaces."""

    prefix: str
    number: int

    @property
    def link(self) -> str:
        """The interface of this machine on the underlay."""
        return f"rtu{self.number}"

    @property
    def switch(self) -> str:
        """The namespace that holds the bridge."""
        return f"{self.prefix}{self.number}-switch"

    @property
    def host_address(self) -> str:
        """This machine's address on the underlay."""
        return f"10.213.{self.number}.1"

    def node(self, index: int) -> Node:
        """The node number `index`, whether it exists or not."""
        if not 0 <= index <= _LAST_NODE - _FIRST_NODE:
            raise NodeError(f"an underlay holds {_LAST_NODE - _FIRST_NODE + 1} nodes")
        return Node(index, f"{self.prefix}{self.number}-n{index + 1}", f"10.213.{self.number}.{_FIRST_NODE + index}")


def create_underlay(prefix: str) -> Underlay:
    """Makes an underlay with the first free number; blocks for some milliseconds. Raises NodeError, PermissionError."""
    with IPRoute() as machine:
        taken = _networks(machine)
        for number in range(UNDERLAYS):
            underlay = Underlay(prefix, number)
            network = ipaddress.ip_network(f"10.213.{number}.0/24")
            if any(network.overlaps(other) for other in taken) or underlay.switch in namespaces.names():
                continue
            if _try_create(machine, underlay):
                return underlay
    raise NodeError("all underlays from 10.213.0.0/24 to 10.213.255.0/24 are in use")


def _try_create(machine: Any, underlay: Underlay) -> bool:
    try:
        namespaces.create(underlay.switch)
    except FileExistsError:
        return False
    try:
        _in_namespace(underlay.switch, _make_bridge)
        try:
            _plug(machine, underlay.link, underlay.switch, underlay.link)
        except NetlinkError as error:
            if error.code != errno.EEXIST:
                raise
            namespaces.delete(underlay.switch)
            return False
        index = machine.link_lookup(ifname=underlay.link)[0]
        machine.addr("add", index=index, address=underlay.host_address, prefixlen=24)
        machine.link("set", index=index, state="up")
    except BaseException:
        delete_underlay(underlay)
        raise
    return True


def add_node(underlay: Underlay, index: int) -> Node:
    """Makes a node and plugs it in; what is there of it from before goes first. Blocks for some milliseconds."""
    node = underlay.node(index)
    delete_node(node)
    namespaces.create(node.namespace)
    try:
        port = f"n{index + 1}"
        with namespaces.netlink_socket(node.namespace) as inside:
            descriptor = _namespace_descriptor(node.namespace)
            try:
                with namespaces.netlink_socket(underlay.switch) as switch_socket, IPRoute(use_socket=switch_socket) as switch:
                    bridge = switch.link_lookup(ifname=_BRIDGE)[0]
                    for leftover in switch.link_lookup(ifname=port):
                        switch.link("del", index=leftover)
                    peer = {"ifname": _UPLINK, "net_ns_fd": descriptor}
                    switch.link("add", ifname=port, kind="veth", master=bridge, peer=peer)
                    switch.link("set", index=switch.link_lookup(ifname=port)[0], state="up")
            finally:
                _close(descriptor)
            with IPRoute(use_socket=inside) as links:
                _up(links, "lo")
                uplink = _up(links, _UPLINK)
                links.addr("add", index=uplink, address=node.address, prefixlen=24)
                links.route("add", dst="default", gateway=underlay.host_address)
    except BaseException:
        delete_node(node)
        raise
    return node
