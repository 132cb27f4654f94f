"""What is reported of a call that the server ends while requests are on their way to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from retinue.client.bidi_stream import BidiStream
from retinue.client.errors import Aborted, CallError, Unavailable, UsageError
from retinue.rpc.stream_status import StreamStatus

ROUNDS = 30
"""Whether a request or the end comes first differs from round to round."""


class Handler(grpc.GenericRpcHandler):
    """Reads one request, sends three responses, and ends the call as the method is named;
    or sends back what it reads.
    """

    def service(self, handler_call_details: Any) -> Any:
        async def echo(requests: AsyncIterator[bytes], _context: Any) -> Any:
            async for request in requests:
                yield request[:1]

        if handler_call_details.method == "/test/Echo":
            return grpc.stream_stream_rpc_method_handler(echo)

        async def serve(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]) -> Any:
            await anext(requests)
            for number in (b"1", b"2", b"3"):
                yield number
            if handler_call_details.method == "/test/Abort":
                await context.abort(grpc.StatusCode.ABORTED, "as it was asked to")

        return grpc.stream_stream_rpc_method_handler(serve)


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[grpc.aio.Channel]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(None)


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
    ("method", "kind", "message"),
    [
        ("/test/Abort", Aborted, "as it was asked to"),
        ("/test/Return", Unavailable, "the server ended the stream"),
    ],
)
async def test_what_came_before_the_end_is_read_and_the_end_is_as_the_server_sent_it(
    method: str, kind: type[CallError], message: str, read_first: int
) -> None:
    async with served() as channel:
        for _ in range(ROUNDS):
            exchange = BidiStream[bytes, bytes](channel.stream_stream(method)(), "")
            await exchange.send(b"x")
            came = [await exchange.receive() for _ in range(read_first)]
            with pytest.raises(kind, match=message):
                await sent(exchange)
            with pytest.raises(kind, match=message):
                await received(exchange, came)
            assert came == [b"1", b"2", b"3"]
            assert exchange.ended_well is (method == "/test/Return")


async def test_tasks_send_at_the_same_time() -> None:
    async with served() as channel:
        exchange = BidiStream[bytes, bytes](channel.stream_stream("/test/Echo")(), "")
        # More than the window of the stream: the first is on its way while the others are to be sent.
        sending = [asyncio.create_task(exchange.send(letter * 1_000_000)) for letter in (b"a", b"b", b"c")]
        # The end of the requests waits for its turn, too.
        await asyncio.gather(*sending, exchange.end_requests())
        assert [await exchange.receive() for _ in sending] == [b"a", b"b", b"c"]


async def test_nothing_can_be_sent_behind_the_end_of_the_requests() -> None:
    async with served() as channel:
        exchange = BidiStream[bytes, bytes](channel.stream_stream("/test/Abort")(), "")
        await exchange.send(b"x")
        await exchange.end_requests()
        with pytest.raises(UsageError):
            await exchange.send(b"x")
        with pytest.raises(Aborted):
            await received(exchange, [])


@pytest.mark.parametrize("read_first", [0, 1, 3])
async def test_an_agents_status_is_not_lost_behind_a_request_that_could_not_be_sent(read_first: int) -> None:
    hidden = 0
    async with served() as channel:
        for _ in range(ROUNDS):
            call: Any = channel.stream_stream("/test/Abort")()
            ended, responses = StreamStatus(call), aiter(call)
            await call.write(b"x")
            for _ in range(read_first):
                await anext(responses)
            with contextlib.suppress(grpc.aio.AioRpcError):
                while not call.done():
                    await call.write(b"x" * 1000)
            hidden += await call.details() != "as it was asked to"
            with contextlib.suppress(grpc.aio.AioRpcError):
                async for _ in responses:
                    pass
            status = await ended.wait()
            assert (status.code(), status.details()) == (grpc.StatusCode.ABORTED, "as it was asked to")
    # Else this would show nothing.
    assert hidden
