"""The manager's direct port beside a stream to a port."""

from __future__ import annotations

import asyncio

from retinue.manager.api.streams import ports
from retinue.manager.v1 import kernel_service_pb2 as pb
from retinue.rpc.direct_port import Offer
from retinue.types.v1 import port_pb2


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
