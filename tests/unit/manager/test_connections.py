"""Connections without calls are closed, so that file descriptors remain for those in use."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc.aio

from retinue.client.transport import channel
from retinue.manager.listeners import IDLE_SECONDS, SERVER_OPTIONS
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# As a client of HTTP/2 begins: the preface, and empty settings.
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
# The kind of the frame by which a server begins to close a connection.
GOAWAY = 7
IDLE = "grpc.max_connection_idle_ms"


async def test_a_connection_without_a_call_ends() -> None:
    options = dict(SERVER_OPTIONS)
    assert options[IDLE] == 1000 * IDLE_SECONDS
    server = grpc.aio.server(options=tuple((options | {IDLE: 200}).items()))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HELLO)
        async with asyncio.timeout(NEVER):
            kind = 0
            while kind != GOAWAY:
                *length, kind = (await reader.readexactly(9))[:4]
                await reader.readexactly(int.from_bytes(bytes(length)))
        writer.close()
    finally:
        await server.stop(0)


def test_the_client_closes_an_idle_connection_before_the_manager_does() -> None:
    assert 2 * channel.IDLE_SECONDS < IDLE_SECONDS


class _Peers(grpc.GenericRpcHandler):
    """Answers each request with the connection that it came by."""

    def service(self, details: Any) -> Any:
        async def once(_request: bytes, context: Any) -> bytes:
            return bytes(context.peer(), "ascii")

        async def always(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            async for _ in requests:
                yield bytes(context.peer(), "ascii")

        if details.method == "/peers/Once":
            return grpc.unary_unary_rpc_method_handler(once)
        return grpc.stream_stream_rpc_method_handler(always)


async def test_a_stream_outlives_the_age_of_its_connection_and_new_calls_come_by_another() -> None:
    # An hour and whatever is said about its end, ten thousand times as fast.
    options = {name: value // 10_000 if "_age_" in name else value for name, value in SERVER_OPTIONS}
    server = grpc.aio.server(options=tuple(options.items()))
    server.add_generic_rpc_handlers((_Peers(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            once: Any = channel.unary_unary("/peers/Once")
            stream: Any = channel.stream_stream("/peers/Always")(timeout=NEVER)
            await stream.write(b"")
            first = await stream.read()

            second = await eventually(lambda: once(b"", wait_for_ready=True), lambda peer: peer != first)
            # The connection after that one is younger by a whole age than the end of the first.
            await eventually(lambda: once(b"", wait_for_ready=True), lambda peer: peer not in {first, second})

            await stream.write(b"")
            assert await stream.read() == first
            await stream.done_writing()
            assert await stream.read() == grpc.aio.EOF
    finally:
        await server.stop(0)
