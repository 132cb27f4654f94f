"""What a leader sends when its lease has ended: nothing."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.manager.dispatch.agent_link import GuardedStream
from retinue.manager.session.core.attempts import TermOverError


class Call:
    def __init__(self) -> None:
        self.written: list[object] = []

    async def write(self, message: object) -> None:
        self.written.append(message)


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
