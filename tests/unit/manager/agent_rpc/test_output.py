"""Output that an agent sends is in order, or is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import pytest

from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.manager.agent_rpc.output import OutputGoneError, OutputPastEndError, Span, stream_output
from retinue.manager.agent_rpc.relay import AgentRefusedError, AttemptLocation, Forwarder

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

PLACE = AttemptLocation("n1", "h:1", "k.1")


class Sent(Forwarder):
    """An agent that sends these pieces."""

    def __init__(self, *pieces: tuple[int, bytes], error: Exception | None = None) -> None:
        object.__setattr__(self, "pieces", pieces)
        object.__setattr__(self, "error", error)

    async def stream(self, *_: Any) -> AsyncGenerator[Any, None]:
        for offset, data in self.pieces:  # type: ignore[attr-defined]  # see above
            yield pb.StreamLogsResponse(offset=offset, data=data)
        if self.error is not None:  # type: ignore[attr-defined]  # see above
            raise self.error  # type: ignore[attr-defined]  # see above


async def read(agent: Forwarder) -> list[tuple[int, bytes]]:
    return [piece[:2] async for piece in stream_output(agent, PLACE, Span(), follow=False)]


async def test_pieces_in_order_and_with_gaps() -> None:
    pieces = [(3, b"abc"), (6, b""), (6, b"d"), (100, b"e")]
    assert await read(Sent(*pieces)) == pieces


async def test_a_stream_of_a_newer_agent_is_unspecified() -> None:
    class Newer(Forwarder):
        def __init__(self) -> None:
            pass

        async def stream(self, *_: Any) -> AsyncGenerator[Any, None]:
            for number in range(4):
                sent = pb.StreamLogsResponse(offset=number, data=b"x")
                # An open enum: any number may come.
                sent.stream = number  # type: ignore[assignment]
                yield sent

    found = [piece.stream async for piece in stream_output(Newer(), PLACE, Span(), follow=False)]
    assert found == [0, 1, 2, 0]


@pytest.mark.parametrize("offset", [-1, -(2**63), 4, 2**63 - 1])
async def test_an_offset_that_makes_no_sense_ends_it(offset: int) -> None:
    with pytest.raises(OutputGoneError):
        await read(Sent((3, b"abc"), (offset, b"x")))


@pytest.mark.parametrize(("size", "found"), [("12", 12), ("", 0), ("-1", 0), ("\u0663", 0), ("9" * 5000, 0)])
async def test_whatever_it_says_its_size_is(size: str, found: int) -> None:
    error = AgentRefusedError(grpc.StatusCode.OUT_OF_RANGE, "OFFSET_PAST_END", "m", {"size": size})
    with pytest.raises(OutputPastEndError) as raised:
        await read(Sent(error=error))
    assert raised.value.size == found
