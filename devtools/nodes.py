"""Nodes on one machine: network namespaces on a switch, which is a namespace of its own that holds a bridge.

        this machine                switch namespace              node namespaces
    LINK 10.213.x.1/24 ─── veth ─── bridge ─── veth ───────────── eth0 10.213.x.11/24
                                       └────── veth ───────────── eth0 10.213.x.12/24

The switch is not in the machine's own namespace because rules there (dockerd drops what it does not know) would reach
bridged frames. The name of the link keeps two underlays apart: the kernel gives it to one only. Everything here blocks
for some milliseconds, needs root, and must not be called from a thread with a running event loop.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from retinue.client.errors import RetinueError
from retinue.rpc import network_namespaces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_UNDERLAYS = 256
_FIRST_HOST, _LAST_HOST = 11, 250
_BRIDGE = "switch"
_HOST_PORT = "host"
_UPLINK = "eth0"
_Value = TypeVar("_Value")


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
        """Returns the interface of this machine on the underlay."""
        return f"rtu{self.number}"

    @property
    def switch(self) -> str:
        """Returns the namespace that holds the bridge."""
        return f"{self.prefix}{self.number}-switch"

    @property
    def host_address(self) -> str:
        """Returns this machine's address on the underlay."""
        return f"10.213.{self.number}.1"

    def node(self, index: int) -> Node:
        """Returns the node number `index`, whether it exists or not.
        Raises NodeError when an underlay has no such number.
        """
        if not 0 <= index <= _LAST_HOST - _FIRST_HOST:
            raise NodeError(f"an underlay holds {_LAST_HOST - _FIRST_HOST + 1} nodes")
        return Node(index, f"{self.prefix}{self.number}-n{index + 1}", f"10.213.{self.number}.{_FIRST_HOST + index}")


def create_underlay(prefix: str, first: int = 0) -> Underlay:
    """Makes an underlay with the first free number from `first` on, around. Raises NodeError, PermissionError."""
    with IPRoute() as machine:
        taken = [
            ipaddress.ip_interface(f"{message.get_attr('IFA_ADDRESS')}/{message['prefixlen']}").network
            for message in machine.get_addr(family=socket.AF_INET)
        ]
        for offset in range(_UNDERLAYS):
            number = (first + offset) % _UNDERLAYS
            underlay = Underlay(prefix, number)
            network = ipaddress.ip_network(f"10.213.{number}.0/24")
            if not any(network.overlaps(other) for other in taken) and _try_create(machine, underlay):
                return underlay
    raise NodeError("all underlays from 10.213.0.0/24 to 10.213.255.0/24 are in use")


def add_node(underlay: Underlay, index: int) -> Node:
    """Makes a node and plugs it in; what is there of it from before goes first. Raises NodeError, PermissionError."""
    node = underlay.node(index)
    delete_node(node)
    network_namespaces.create(node.namespace, exclusive=True)
    try:
        with _links(underlay.switch) as switch:
            _plug(switch, f"n{index + 1}", _UPLINK, node.namespace)
        with _links(node.namespace) as links:
            links.link("set", index=_index(links, "lo"), state="up")
            uplink = _index(links, _UPLINK)
            links.addr("add", index=uplink, address=node.address, prefixlen=24)
            links.link("set", index=uplink, state="up")
            links.route("add", dst="default", gateway=underlay.host_address)
    except BaseException:
        delete_node(node)
        raise
    return node


def delete_node(node: Node) -> None:
    """Removes a node, with its end of its link and so the link; one that is not there is no error."""
    _empty(node.namespace, _UPLINK)
    network_namespaces.delete(node.namespace)


def delete_underlay(underlay: Underlay) -> None:
    """Removes an underlay and every node on it; what is not there is no error."""
    for name in network_namespaces.names(f"{underlay.prefix}{underlay.number}-n"):
        _empty(name, _UPLINK)
        network_namespaces.delete(name)
    # Removing one end of a link takes the other one with it, now; with a namespace it would go at some later time.
    with IPRoute() as machine:
        for index in machine.link_lookup(ifname=underlay.link):
            machine.link("del", index=index)
    network_namespaces.delete(underlay.switch)


def _try_create(machine: IPRoute, underlay: Underlay) -> bool:
    try:
        network_namespaces.create(underlay.switch, exclusive=True)
    except FileExistsError:
        return False
    try:
        with _links(underlay.switch) as switch:
            switch.link("add", ifname=_BRIDGE, kind="bridge", br_stp_state=0)
            switch.link("set", index=_index(switch, _BRIDGE), state="up")
        with _descriptor(underlay.switch) as descriptor:
            peer = {"ifname": _HOST_PORT, "net_ns_fd": descriptor}
            machine.link("add", ifname=underlay.link, kind="veth", peer=peer)
    except NetlinkError as error:
        network_namespaces.delete(underlay.switch)
        if error.code == errno.EEXIST:
            return False
        raise
    try:
        with _links(underlay.switch) as switch:
            switch.link("set", index=_index(switch, _HOST_PORT), master=_index(switch, _BRIDGE), state="up")
        index = _index(machine, underlay.link)
        machine.addr("add", index=index, address=underlay.host_address, prefixlen=24)
        machine.link("set", index=index, state="up")
    except BaseException:
        delete_underlay(underlay)
        raise
    return True


def _plug(switch: IPRoute, port: str, peer_name: str, peer_namespace: str) -> None:
    """Makes a link from a port of the switch to `peer_name` in another namespace; one of the port's name goes first."""
    for leftover in switch.link_lookup(ifname=port):
        switch.link("del", index=leftover)
    with _descriptor(peer_namespace) as descriptor:
        peer = {"ifname": peer_name, "net_ns_fd": descriptor}
        switch.link("add", ifname=port, kind="veth", master=_index(switch, _BRIDGE), peer=peer)
    switch.link("set", index=_index(switch, port), state="up")


def _empty(namespace: str, link: str) -> None:
    try:
        with _links(namespace) as links:
            for index in links.link_lookup(ifname=link):
                links.link("del", index=index)
    except OSError as error:
        # The name is there and no namespace behind it: someone died between making the one and the other.
        if error.errno not in (errno.ENOENT, errno.EINVAL):
            raise


@contextlib.contextmanager
def _links(namespace: str) -> Iterator[IPRoute]:
    # Leaving closes the socket; an open one would keep the namespace.
    with IPRoute(use_socket=netlink_socket(namespace)) as links:
        yield links


@contextlib.contextmanager
def _descriptor(namespace: str) -> Iterator[int]:
    descriptor = os.open(network_namespaces.DIRECTORY / namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _index(links: IPRoute, name: str) -> int:
    found = links.link_lookup(ifname=name)
    if not found:
        raise NodeError(f"the link {name} is gone")
    return int(found[0])


def run_in(name: str, function: Callable[[], _Value]) -> _Value:
    """Runs a function in a thread inside a namespace, and waits for it. Raises FileNotFoundError when there is none."""

    def run() -> _Value:
        with _descriptor(name) as descriptor:
            network_namespaces.enter(descriptor)
        return function()

    return network_namespaces.in_thread(run)


def netlink_socket(name: str) -> socket.socket:
    """Returns a netlink socket that belongs to the namespace, usable from any thread.
    The namespace lives while it is open.
    """
    return run_in(name, lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, 0))


def extra_links(namespace: str) -> list[str]:
    """Returns the names of the links in a node's namespace besides its loopback and its uplink, with their kind:
    `vx0 (vxlan)`.
    """
    try:
        with _links(namespace) as links:
            found = {str(link.get_attr("IFLA_IFNAME")): link for link in links.get_links()}
    except FileNotFoundError:
        return []
    return [f"{name} ({_kind(link)})" for name, link in sorted(found.items()) if name not in ("lo", _UPLINK)]


def links_of_kind(namespace: str, kind: str) -> list[str]:
    """Returns the names of the links of one kind, for instance `vxlan`, in a namespace. Raises FileNotFoundError."""
    with _links(namespace) as links:
        return sorted(str(link.get_attr("IFLA_IFNAME")) for link in links.get_links() if _kind(link) == kind)


def _kind(link: Any) -> str:
    information = link.get_attr("IFLA_LINKINFO")
    return str(information.get_attr("IFLA_INFO_KIND")) if information is not None else "device"
