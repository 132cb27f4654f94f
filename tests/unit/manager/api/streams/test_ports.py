"""The manager's direct port beside a stream to a port."""

from __future__ import annotations

import asyncio
import socket

from retinue.manager.api.streams import ports
from retinue.manager.v1 import kernel_service_pb2 as pb
from retinue.rpc import direct_port
from retinue.rpc.direct_port import DirectPorts, Offer
from retinue.types.v1 import port_pb2
from tests.support.eventually import NEVER


async def test_an_agent_that_says_again_and_again_that_it_has_opened_a_port_starts_one_relay() -> None:
    arrival: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    offer = Offer(port_pb2.DirectPort(port=2, ticket=b"t"), arrival)  # type: ignore[arg-type]  # nothing comes
    opened = pb.PortOpened(port=1, direct=port_pb2.DirectPort(host="127.0.0.1", port=1))
    before = asyncio.all_tasks()
    async with ports._Relay(offer) as relay:  # noqa: SLF001
        answers = [relay.add_to(pb.OpenPortResponse(opened=opened)) for _ in range(100)]
        assert len(asyncio.all_tasks() - before) == 1
        assert [answer.opened.relay.port for answer in answers] == [2] + [0] * 99
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_what_the_node_said_before_the_end_of_the_stream_reaches_the_caller() -> None:
    """The agent ends the stream before the caller has read anything."""
    loop, content = asyncio.get_running_loop(), bytes(range(256)) * 1024
    node, manager = DirectPorts(), DirectPorts()
    for each in (node, manager):
        each.open("127.0.0.1", 0)
    with node.offer(True) as inside, manager.offer(True) as outside:
        assert inside is not None
        assert outside is not None
        inside.port.host = outside.port.host = "127.0.0.1"
        opened = pb.PortOpened(port=1, direct=inside.port)
        async with asyncio.timeout(NEVER):
            async with ports._Relay(outside) as relay:  # noqa: SLF001
                relay.add_to(pb.OpenPortResponse(opened=opened))
                connecting = asyncio.create_task(direct_port.connect(outside.port))
                await asyncio.wait({inside.arrival})
                agent = inside.admit()
                caller = await connecting
                # Nothing moves meanwhile: it does not wait.
                sent = agent.send(content)
                agent.shutdown(socket.SHUT_RDWR)
            came = bytearray()
            with caller:
                while data := await loop.sock_recv(caller, 1 << 20):
                    came += data
            assert sent
            assert bytes(came) == content[:sent]
    await node.close()
    await manager.close()
