"""Nodes that are network namespaces: made, joined, removed, from whatever state."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyroute2 import IPRoute

from retinue.devtools import nodes
from retinue.rpc import network_namespaces
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator

# Others make and remove underlays meanwhile.
PREFIX = f"rt-test-nodes-{secrets.token_hex(4)}-"


def _links() -> dict[int, str]:
    """Links of this machine by their indexes: names are used again."""
    with IPRoute() as machine:
        return {int(link["index"]): str(link.get_attr("IFLA_IFNAME")) for link in machine.get_links()}


def _descriptors() -> set[str]:
    """Open sockets of netlink and namespaces of this process: other parts of it open and close others."""
    netlink = {line.split()[9] for line in Path("/proc/self/net/netlink").read_text().splitlines()[1:]}
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            target = os.readlink(entry)
            if target.startswith("net:") or target.removeprefix("socket:[").removesuffix("]") in netlink:
                found.add(target)
    return found


@pytest.fixture
def underlay() -> Iterator[nodes.Underlay]:
    made = nodes.create_underlay(PREFIX)
    try:
        yield made
    finally:
        nodes.delete_underlay(made)


def _exchange(server: nodes.Node, client: str | None) -> bytes:
    """What a server on one node sends to a client on another, or on this machine itself."""

    def listen() -> socket.socket:
        return socket.create_server((server.address, 5000))

    def connect() -> bytes:
        with socket.create_connection((server.address, 5000), timeout=NEVER) as peer:
            return peer.recv(5)

    with nodes.run_in(server.namespace, listen) as listener:

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.sendall(b"hello")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            return nodes.run_in(client, connect) if client is not None else connect()
        finally:
            thread.join()


def test_nodes_reach_each_other_and_this_machine_reaches_them(underlay: nodes.Underlay) -> None:
    first, second = nodes.add_node(underlay, 0), nodes.add_node(underlay, 1)
    assert first.address.endswith(".11")
    assert _exchange(second, first.namespace) == b"hello"
    assert _exchange(first, second.namespace) == b"hello"
    assert _exchange(first, None) == b"hello"


def test_a_node_is_made_again_over_an_old_one(underlay: nodes.Underlay) -> None:
    node = nodes.add_node(underlay, 0)
    with nodes.netlink_socket(node.namespace):
        # The old one lives on while the socket is open, and must not be in the way.
        assert nodes.add_node(underlay, 0) == node
        assert _exchange(node, None) == b"hello"
    assert nodes.extra_links(node.namespace) == []


def test_nothing_is_left_and_removing_twice_is_no_error() -> None:
    other = nodes.create_underlay(PREFIX)
    descriptors = _descriptors()
    made = [nodes.create_underlay(PREFIX) for _ in range(3)]
    try:
        assert len({underlay.number for underlay in made}) == 3
        names = {underlay.link for underlay in made}
        ours = {index for index, name in _links().items() if name in names}
        assert len(ours) == 3
        for underlay in made:
            nodes.add_node(underlay, 0)
        nodes.delete_node(made[0].node(0))
        nodes.delete_node(made[0].node(0))
    finally:
        for underlay in made:
            nodes.delete_underlay(underlay)
            nodes.delete_underlay(underlay)
    try:
        left = _links()
        assert not ours & left.keys()
        assert other.link in left.values()
        assert network_namespaces.names(PREFIX) == [other.switch]
        assert _descriptors() <= descriptors
    finally:
        nodes.delete_underlay(other)
    assert network_namespaces.names(PREFIX) == []


async def test_underlays_made_at_once_do_not_collide() -> None:
    made = await asyncio.gather(*(asyncio.to_thread(nodes.create_underlay, PREFIX) for _ in range(6)))
    try:
        assert len({underlay.number for underlay in made}) == 6
    finally:
        for underlay in made:
            await asyncio.to_thread(nodes.delete_underlay, underlay)


def test_half_made_nodes_are_removed(underlay: nodes.Underlay) -> None:
    """The process that created the name died before it mounted a namespace there."""
    node = underlay.node(3)
    (network_namespaces.DIRECTORY / node.namespace).touch()
    assert nodes.add_node(underlay, 3) == node
    assert _exchange(node, None) == b"hello"
    nodes.delete_node(node)
    (network_namespaces.DIRECTORY / node.namespace).touch()
    nodes.delete_underlay(underlay)
    assert node.namespace not in network_namespaces.names()


def test_names_and_limits(underlay: nodes.Underlay) -> None:
    with pytest.raises(nodes.NodeError):
        underlay.node(240)
    with pytest.raises(nodes.NodeError):
        underlay.node(-1)
    with pytest.raises(FileExistsError):
        network_namespaces.create(underlay.switch, exclusive=True)
    with pytest.raises(FileNotFoundError):
        nodes.run_in(f"{PREFIX}none", lambda: None)
    assert nodes.extra_links(f"{PREFIX}none") == []


def test_what_happens_in_a_namespace_stays_there(underlay: nodes.Underlay) -> None:
    node = nodes.add_node(underlay, 0)

    def own_links() -> set[str]:
        return {name for _, name in socket.if_nameindex()}

    assert nodes.run_in(node.namespace, own_links) == {"lo", "eth0"}
    assert underlay.link in own_links()
    with pytest.raises(ZeroDivisionError):
        nodes.run_in(node.namespace, lambda: 1 // 0)
