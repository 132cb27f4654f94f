"""Published ports: only routers reach them, whatever happens to the agent and to the rules."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

from tests.integration.agent.network.nodes import TIMEOUT, Node, inside
from tests.integration.agent.network.outside import (
    NEIGHBOUR,
    NODE_OUTSIDE,
    PUBLIC,
    ROUTER,
    Outgoer,
    ears,
    heard,
    outgoer,
    world,
)

PORT = 8000
UNDERLAY = "192.0.2.1"


@contextlib.contextmanager
def server(kernel: Outgoer) -> Iterator[socket.socket]:
    with kernel.open(socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("", PORT))
        listener.listen()
        yield listener


def talk(name: str, address: str, number: int, listener: socket.socket) -> str:
    """Has a client of a namespace exchange bytes with the kernel; returns the address that the kernel saw."""
    with inside(name, lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as client:
        client.settimeout(TIMEOUT)
        client.connect((address, number))
        connection, (seen, _) = listener.accept()
        with connection:
            client.sendall(b"question")
            assert connection.recv(100) == b"question"
            connection.sendall(b"answer")
            assert client.recv(100) == b"answer"
            return str(seen)


def refused(name: str, address: str, number: int) -> bool:
    """Whether a connection from a namespace is refused at once: nothing of the node itself listens there."""
    with inside(name, lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as client:
        client.settimeout(TIMEOUT)
        return client.connect_ex((address, number)) == 111


async def published(node: Node, kernel: Outgoer, *, closed: bool = False) -> int:
    address, number = await node.call("publish", kernel.attempt_id, PORT, closed)
    assert address == UNDERLAY
    assert 30_000 <= number < 32_768
    return int(number)


async def test_routers_reach_a_published_port_and_others_do_not() -> None:
    async with world() as place, outgoer(place.node) as kernel:
        number = await published(place.node, kernel)
        with server(kernel) as listener:
            assert await asyncio.to_thread(refused, place.neighbour, UNDERLAY, number)
            await place.node.call("route", [NEIGHBOUR])
            assert await asyncio.to_thread(talk, place.neighbour, UNDERLAY, number, listener) == NEIGHBOUR
            assert await asyncio.to_thread(refused, place.outside, NODE_OUTSIDE, number)
            assert await asyncio.to_thread(refused, place.node.name, UNDERLAY, number)
            # What is not published stays closed to routers, too.
            assert await asyncio.to_thread(refused, place.neighbour, UNDERLAY, number + 1)
            await place.node.call("route", [])
            assert await asyncio.to_thread(refused, place.neighbour, UNDERLAY, number)


async def test_a_router_on_the_node_itself_reaches_a_published_port() -> None:
    async with world() as place, outgoer(place.node) as kernel:
        number = await published(place.node, kernel)
        with server(kernel) as listener:
            for routers in ([UNDERLAY], ["127.0.0.1"]):
                await place.node.call("route", routers)
                assert await asyncio.to_thread(talk, place.node.name, UNDERLAY, number, listener) == UNDERLAY
            await place.node.call("route", [NEIGHBOUR])
            assert await asyncio.to_thread(refused, place.node.name, UNDERLAY, number)


async def test_a_kernel_opens_nothing_to_a_router_and_a_closed_one_nothing_to_any_host() -> None:
    async with world() as place, outgoer(place.node) as kernel, outgoer(place.node) as open_kernel:
        number = await published(place.node, kernel, closed=True)
        await place.node.call("protect", [NEIGHBOUR])
        await place.node.call("route", [NEIGHBOUR, ROUTER])
        with (
            server(kernel) as listener,
            ears(place.neighbour, "", 7000) as (neighbour,),
            ears(place.outside, "", 7000) as (outside,),
        ):
            assert await asyncio.to_thread(talk, place.neighbour, UNDERLAY, number, listener) == NEIGHBOUR
            assert await asyncio.to_thread(talk, place.outside, NODE_OUTSIDE, number, listener) == ROUTER
            for address in (NEIGHBOUR, ROUTER, PUBLIC):
                kernel.say(address, 7000, b"unasked")
            open_kernel.say(NEIGHBOUR, 7000, b"unasked")
            open_kernel.say(PUBLIC, 7000, b"the last one")
            assert await asyncio.to_thread(outside.recv, 100) == b"the last one"
            assert not heard(outside)
            assert not heard(neighbour)


async def test_a_published_port_survives_the_agent_and_its_rules_and_a_number_rests_when_it_is_withdrawn() -> None:
    async with world() as place, outgoer(place.node) as kernel, outgoer(place.node) as other:
        number = await published(place.node, kernel)
        gone = await published(place.node, other)
        await place.node.call("route", [NEIGHBOUR])
        with server(kernel) as listener:
            # As an agent does that starts again: the other attempt has ended meanwhile.
            await place.node.call("open", [kernel.attempt_id])
            assert await place.node.call("location", kernel.attempt_id) == [UNDERLAY, number]
            assert await place.node.call("location", other.attempt_id) is None
            assert await asyncio.to_thread(talk, place.neighbour, UNDERLAY, number, listener) == NEIGHBOUR
            assert await asyncio.to_thread(refused, place.neighbour, UNDERLAY, gone)
            await place.node.call("withdraw", [kernel.attempt_id])
            assert await asyncio.to_thread(refused, place.neighbour, UNDERLAY, number)
            assert await published(place.node, kernel) not in {number, gone}
