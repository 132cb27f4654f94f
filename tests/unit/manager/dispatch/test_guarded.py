"""What a leader sends when its lease has ended: nothing; and what it learns of why an agent ended its stream."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import grpc
import grpc.aio
import pytest

from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.manager.dispatch.agent_link import GuardedStream
from retinue.manager.domain.session.attempts import TermOverError
from tests.support.ended_calls import DETAILS, served


class Call:
    def __init__(self) -> None:
        self.written: list[object] = []

    async def write(self, message: object) -> None:
        self.written.append(message)

    def __aiter__(self) -> Call:
        return self

    def add_done_callback(self, callback: object) -> None:
        """The call does not end."""


async def written(stream: GuardedStream, message: Any) -> None:
    """Writes until that fails."""
    while True:
        await stream.write(message)


def test_nothing_is_sent_after_the_lease() -> None:
    call, over = Call(), False

    def check() -> None:
        if over:
            raise TermOverError("the lease has ended")

    stream = GuardedStream(cast("Any", call), check)
    asyncio.run(stream.write(pb.SyncRequest()))
    over = True
    with pytest.raises(TermOverError):
        asyncio.run(stream.write(pb.SyncRequest()))
    assert len(call.written) == 1


async def test_a_message_that_an_agent_does_not_take_any_more_reports_how_it_ended_the_stream() -> None:
    async with served() as channel:
        call: Any = channel.stream_stream("/ANSWERED/FAILED_PRECONDITION")()
        stream = GuardedStream(call, lambda: None)
        message: Any = b"x" * 1000
        # Nothing was read: the library does not know the agent's status when the first message fails.
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await written(stream, message)
        assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.FAILED_PRECONDITION, DETAILS)
