"""Published ports: only routers reach them, whatever happens to the agent and to the rules."""

from __future__ import annotations

import asyncio

import pytest

from tests.integration.agent.network.outside import (
    NEIGHBOUR,
    NODE_OUTSIDE,
    PUBLIC,
    ROUTER,
    ears,
    heard,
    outgoer,
    world,
)
from tests.integration.agent.network.ports import UNDERLAY, published, refused, server, talk


@pytest.mark.attack("other-kernels-from-outside")
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
