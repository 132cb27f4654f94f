"""Streams to an agent share connections, and a connection may take as long as a busy machine needs."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest

from retinue.manager.agent_rpc import dialer as dialing
from retinue.manager.agent_rpc.dialer import MAX_STREAMS, OPTIONS, Dialer, Purpose
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

STREAMS = 300
SLOW_SECONDS = 0.4


class PlainDialer(Dialer):
    """Dials without TLS, else as ever; counts."""

    def __init__(self) -> None:
        super().__init__(grpc.ssl_channel_credentials)
        self.opened = 0

    def open(self, agent_id: str, address: str) -> grpc.aio.Channel:
        self.opened += 1
        return grpc.aio.insecure_channel(address, (*OPTIONS, ("grpc.use_local_subchannel_pool", 1)))


class Handler(grpc.GenericRpcHandler):
    """Answers at once, and continues for as long as the caller; counts callers by connection."""

    def __init__(self) -> None:
        self.by_peer: Counter[str] = Counter()

    def service(self, handler_call_details: Any) -> Any:
        async def serve(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            self.by_peer[context.peer()] += 1
            yield b"opened"
            async for _ in requests:
                yield bytes(1 << 16)

        return grpc.stream_stream_rpc_method_handler(serve)


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[tuple[Handler, PlainDialer, int]]:
    server, handler, dialer = grpc.aio.server(), Handler(), PlainDialer()
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield handler, dialer, port
    finally:
        await dialer.close()
        await server.stop(0)


async def opened(dialer: Dialer, address: str, purpose: Purpose, stack: contextlib.AsyncExitStack) -> Any:
    channel = await stack.enter_async_context(dialer.stream("n1", address, purpose))
    call: Any = channel.stream_stream("/x/Y")()
    stack.callback(call.cancel)
    assert await call.read() == b"opened"
    return call


async def called(dialer: Dialer, address: str) -> None:
    async with dialer.stream("n2", address, Purpose.FILES) as channel:
        call: Any = channel.unary_unary("/x/Y")
        await call(b"")


async def test_many_streams_at_once_share_few_connections() -> None:
    async with served() as (handler, dialer, port), contextlib.AsyncExitStack() as stack:
        address = f"127.0.0.1:{port}"
        await asyncio.gather(*(opened(dialer, address, Purpose.PORT, stack) for _ in range(STREAMS)))
        assert dialer.opened == len(handler.by_peer) == -(-STREAMS // MAX_STREAMS)
        assert max(handler.by_peer.values()) <= MAX_STREAMS
        # What is typed does not queue behind them.
        await opened(dialer, address, Purpose.OTHER, stack)
        assert dialer.opened == -(-STREAMS // MAX_STREAMS) + 1


async def test_streams_that_are_not_read_hold_up_no_other_on_their_connection() -> None:
    async with served() as (_, dialer, port), contextlib.AsyncExitStack() as stack:
        address = f"127.0.0.1:{port}"
        for _ in range(MAX_STREAMS - 1):
            unread = await opened(dialer, address, Purpose.PORT, stack)
            for _ in range(20):
                await unread.write(b"more")
        call = await opened(dialer, address, Purpose.PORT, stack)
        assert dialer.opened == 1
        for _ in range(50):
            await call.write(b"more")
            assert len(await call.read()) == 1 << 16


async def test_nodes_are_dialled_without_the_web_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing listens there.
    monkeypatch.setenv("grpc_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_grpc_proxy", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    async with served() as (_, dialer, port), contextlib.AsyncExitStack() as stack:
        await opened(dialer, f"127.0.0.1:{port}", Purpose.OTHER, stack)


async def test_a_handshake_may_take_its_time() -> None:
    async with served() as (_, dialer, port), contextlib.AsyncExitStack() as stack:

        async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, back = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.sleep(SLOW_SECONDS)
            await asyncio.gather(piped(reader, back), piped(there, writer), return_exceptions=True)

        proxy = await asyncio.start_server(slow, "127.0.0.1", 0)
        async with proxy:
            address = f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
            await asyncio.gather(*(opened(dialer, address, Purpose.PORT, stack) for _ in range(5)))
            await stack.aclose()
            await dialer.close()


async def piped(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


async def test_a_connection_is_kept_for_a_moment_and_not_when_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialing, "IDLE_SECONDS", NEVER)
    async with served() as (_, dialer, port):
        address = f"127.0.0.1:{port}"
        for _ in range(3):
            async with contextlib.AsyncExitStack() as stack:
                await opened(dialer, address, Purpose.FILES, stack)
        assert dialer.opened == 1
        # Nothing listens there.
        for _ in range(2):
            with pytest.raises(grpc.aio.AioRpcError):
                await called(dialer, "127.0.0.1:1")
        assert dialer.opened == 3
        monkeypatch.setattr(dialing, "IDLE_SECONDS", 0.0)
        async with contextlib.AsyncExitStack() as stack:
            await opened(dialer, address, Purpose.FILES, stack)
        # Behind the moment at which it is closed.
        await asyncio.sleep(0.01)
        async with contextlib.AsyncExitStack() as stack:
            await opened(dialer, address, Purpose.FILES, stack)
        assert dialer.opened == 4
