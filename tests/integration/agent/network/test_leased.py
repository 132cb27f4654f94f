"""Leased ports: the address that leases one reaches a program at the kernel's loopback address,
and no other address does.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

import pytest

from tests.integration.agent.network.nodes import Node, WorkerError, inside
from tests.integration.agent.network.outside import NEIGHBOUR, NODE_OUTSIDE, ROUTER, Outgoer, outgoer, world
from tests.integration.agent.network.ports import PORT, UNDERLAY, published, refused, talk
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator

LOOPBACK = "127.0.0.1"


@contextlib.contextmanager
def private_server(kernel: Outgoer, port: int = PORT) -> Iterator[socket.socket]:
    """What most programs for one person do: they listen at the loopback address."""
    with kernel.open(socket.SOCK_STREAM) as listener:
        listener.bind((LOOPBACK, port))
        listener.listen()
        yield listener


async def leased(node: Node, kernel: Outgoer, source: str, seconds: float = NEVER, port: int = PORT) -> int:
    address, number = await node.call("lease", kernel.attempt_id, kernel.path, port, source, seconds)
    assert address == UNDERLAY
    assert 62_384 <= number < 63_768
    return int(number)


async def test_the_one_that_leases_a_port_reaches_it_and_sees_what_listens_at_the_loopback_address() -> None:
    async with world() as place, outgoer(place.node) as kernel:
        number = await leased(place.node, kernel, NEIGHBOUR)
        with private_server(kernel) as listener:
            assert await asyncio.to_thread(talk, place.neighbour, UNDERLAY, number, listener) == LOOPBACK
            assert await asyncio.to_thread(refused, place.outside, NODE_OUTSIDE, number)
            assert await asyncio.to_thread(refused, place.node.name, UNDERLAY, number)
            # Routers have their own ports, and reach no leased one.
            await place.node.call("route", [ROUTER])
            assert await asyncio.to_thread(refused, place.outside, NODE_OUTSIDE, number)
            # Another manager's gateway has the same number, once it asks.
            assert await leased(place.node, kernel, ROUTER) == number
            assert await asyncio.to_thread(talk, place.outside, NODE_OUTSIDE, number, listener) == LOOPBACK
            await place.node.call("end_lease", kernel.attempt_id, PORT, ROUTER)
            assert await asyncio.to_thread(refused, place.outside, NODE_OUTSIDE, number)
            assert await asyncio.to_thread(talk, place.neighbour, UNDERLAY, number, listener) == LOOPBACK
            # A manager on the node itself comes with the node's address.
            assert await leased(place.node, kernel, LOOPBACK) == number
            assert await asyncio.to_thread(talk, place.node.name, UNDERLAY, number, listener) == LOOPBACK


async def test_a_leased_port_leaves_a_published_one_of_the_same_kernel_as_it_is() -> None:
    async with world() as place, outgoer(place.node) as kernel:
        lease, routed = await leased(place.node, kernel, NEIGHBOUR), await published(place.node, kernel)
        await place.node.call("route", [ROUTER])
        with kernel.open(socket.SOCK_STREAM) as outer, private_server(kernel) as private:
            # A replica at its own address: routers reach it, and not what is at the loopback address beside it.
            outer.bind((kernel.address, PORT))
            outer.listen()
            assert await asyncio.to_thread(talk, place.outside, NODE_OUTSIDE, routed, outer) == ROUTER
            assert await asyncio.to_thread(talk, place.neighbour, UNDERLAY, lease, private) == LOOPBACK


async def test_a_lease_ends_in_time_and_open_connections_do_not_end_with_it() -> None:
    async with world() as place, outgoer(place.node) as kernel:
        number = await leased(place.node, kernel, NEIGHBOUR, 0.001)
        with private_server(kernel) as listener, contextlib.ExitStack() as stack:
            client = stack.enter_context(_connected(place.neighbour, number))
            connection = stack.enter_context(listener.accept()[0])
            await place.node.call("expire")
            assert await asyncio.to_thread(refused, place.neighbour, UNDERLAY, number)
            client.sendall(b"still")
            assert connection.recv(10) == b"still"
            # The number is the port's for as long as a former holder may ask again.
            assert await leased(place.node, kernel, NEIGHBOUR) == number
            assert await asyncio.to_thread(talk, place.neighbour, UNDERLAY, number, listener) == LOOPBACK


async def test_after_the_agent_starts_again_the_number_is_the_same_once_it_is_leased_again() -> None:
    async with world() as place, outgoer(place.node) as kernel, outgoer(place.node) as other:
        number, gone = await leased(place.node, kernel, NEIGHBOUR), await leased(place.node, other, NEIGHBOUR)
        with private_server(kernel) as listener:
            await place.node.call("open", [kernel.attempt_id])
            assert await leased(place.node, kernel, NEIGHBOUR) == number
            assert await asyncio.to_thread(talk, place.neighbour, UNDERLAY, number, listener) == LOOPBACK
            assert await asyncio.to_thread(refused, place.neighbour, UNDERLAY, gone)
            await place.node.call("withdraw", [kernel.attempt_id])
            assert await asyncio.to_thread(refused, place.neighbour, UNDERLAY, number)


async def test_what_cannot_be_leased() -> None:
    async with world() as place, outgoer(place.node) as kernel:
        with pytest.raises(WorkerError, match="PortUnreachableError"):
            await leased(place.node, kernel, "2001:db8::1")
        with pytest.raises(WorkerError, match="PortUnreachableError"):
            await leased(place.node, Outgoer("stranger.1", kernel.namespace), NEIGHBOUR)
        for port in range(1, 65):
            await leased(place.node, kernel, NEIGHBOUR, port=port)
        with pytest.raises(WorkerError, match="PortsExhaustedError"):
            await leased(place.node, kernel, NEIGHBOUR, port=65)


def _connected(name: str, number: int) -> socket.socket:
    client = inside(name, lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))
    client.settimeout(NEVER)
    client.connect((UNDERLAY, number))
    return client
