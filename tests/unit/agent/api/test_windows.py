"""A stream that is not read: gRPC accepts one window of its bytes and no more, on each hop."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest

from retinue.agent.api import server as agent_server
from retinue.manager import listeners
from retinue.manager.agent_rpc import dialer
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

WINDOW = 32 * 1024
ROUNDS = 3
MESSAGE = 4096
METHOD, ROUND = "/test.Unread/Stream", "/test.Unread/Round"
PLAIN = (("grpc.http2.bdp_probe", 0),)


async def _answer(request: bytes, _context: Any) -> bytes:
    return request


@contextlib.asynccontextmanager
async def serving(options: Sequence[tuple[str, Any]], behaviour: Any) -> AsyncIterator[str]:
    server = grpc.aio.server(options=options)
    handler: Any = grpc.stream_stream_rpc_method_handler(behaviour)
    methods = {"Stream": handler, "Round": grpc.unary_unary_rpc_method_handler(_answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Unread", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def _settled(accepted: list[int], channel: grpc.aio.Channel) -> int:
    """Returns how many bytes were accepted, once no more are."""
    await eventually(lambda: sum(accepted) > WINDOW - 2 * MESSAGE)
    for _ in range(ROUNDS):
        # Who makes more room says so on the connection before it answers this.
        call: Any = channel.unary_unary(ROUND)
        assert await call(b"") == b""
    return sum(accepted)


@pytest.mark.parametrize("options", [agent_server.OPTIONS, listeners.SERVER_OPTIONS], ids=["agent", "manager"])
async def test_a_server_that_does_not_read(options: Sequence[tuple[str, Any]]) -> None:
    accepted: list[int] = []

    async def never_read(_requests: Any, context: Any) -> None:
        await context.send_initial_metadata(())
        await asyncio.Event().wait()

    async with serving(options, never_read) as address, grpc.aio.insecure_channel(address, options=PLAIN) as channel:
        call: Any = channel.stream_stream(METHOD)()

        async def write() -> None:
            while True:
                await call.write(bytes(MESSAGE))
                accepted.append(MESSAGE)

        writing = asyncio.create_task(write())
        assert await _settled(accepted, channel) <= WINDOW
        writing.cancel()
        call.cancel()
        await asyncio.gather(writing, return_exceptions=True)


async def test_a_manager_that_does_not_read() -> None:
    accepted: list[int] = []

    async def endless(_requests: Any, context: Any) -> None:
        while True:
            await context.write(bytes(MESSAGE))
            accepted.append(MESSAGE)

    async with (
        serving(PLAIN, endless) as address,
        grpc.aio.insecure_channel(address, options=dialer.OPTIONS) as channel,
    ):
        call: Any = channel.stream_stream(METHOD)()
        await call.initial_metadata()
        assert await _settled(accepted, channel) <= WINDOW
        call.cancel()
