"""What is reported of a call that the server ends while requests are on their way to it."""

from __future__ import annotations

import asyncio

import pytest

from retinue.client.errors import Aborted, CallError, Unavailable, UsageError
from retinue.client.transport.bidi_stream import BidiStream
from tests.support.ended_calls import DETAILS, RESPONSES, served


async def sent(exchange: BidiStream[bytes, bytes]) -> None:
    """Sends until that fails."""
    while True:
        await exchange.send(b"x" * 1000)


async def received(exchange: BidiStream[bytes, bytes], came: list[bytes]) -> None:
    """Receives until that fails."""
    while True:
        came.append(await exchange.receive())


@pytest.mark.parametrize("read_first", [0, 1, 3])
@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [("ABORTED", Aborted, DETAILS), ("OK", Unavailable, "the server ended the stream")],
)
async def test_what_came_before_the_end_is_read_and_the_end_is_as_the_server_sent_it(
    code: str, kind: type[CallError], message: str, read_first: int
) -> None:
    async with served() as channel:
        exchange = BidiStream[bytes, bytes](channel.stream_stream(f"/ANSWERED/{code}"), "")
        await exchange.send(b"x")
        came = [await exchange.receive() for _ in range(read_first)]
        with pytest.raises(kind, match=message):
            await sent(exchange)
        with pytest.raises(kind, match=message):
            await received(exchange, came)
        assert came == list(RESPONSES)
        assert exchange.ended_well is (code == "OK")


async def test_tasks_send_at_the_same_time() -> None:
    async with served() as channel:
        exchange = BidiStream[bytes, bytes](channel.stream_stream("/ECHOED/OK"), "")
        # More than the window of the stream: the first is on its way while the others are to be sent.
        sending = [asyncio.create_task(exchange.send(letter * 1_000_000)) for letter in (b"a", b"b", b"c")]
        # The end of the requests waits for its turn, too.
        await asyncio.gather(*sending, exchange.end_requests())
        assert [await exchange.receive() for _ in sending] == [b"a", b"b", b"c"]


async def test_nothing_can_be_sent_behind_the_end_of_the_requests() -> None:
    async with served() as channel:
        exchange = BidiStream[bytes, bytes](channel.stream_stream("/ANSWERED/ABORTED"), "")
        await exchange.send(b"x")
        await exchange.end_requests()
        with pytest.raises(UsageError):
            await exchange.send(b"x")
        with pytest.raises(Aborted):
            await received(exchange, [])
