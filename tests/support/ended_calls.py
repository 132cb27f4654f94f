"""A server of gRPC that ends calls whose callers still send, as the path of the method says: /HOW/CODE."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

RESPONSES = (b"1", b"2", b"3")
DETAILS = "as it was asked to"


class Handler(grpc.GenericRpcHandler):
    """Ends a call with CODE: AT_ONCE; ANSWERED, which is after the first request and RESPONSES;
    or ECHOED, with the first byte of each request as its response.
    """

    def service(self, handler_call_details: Any) -> Any:
        """Serves any method."""
        how, code = handler_call_details.method.strip("/").split("/")

        async def serve(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]) -> Any:
            if how == "ANSWERED":
                await anext(requests)
                for response in RESPONSES:
                    yield response
            elif how == "ECHOED":
                async for request in requests:
                    yield request[:1]
            if code != "OK":
                await context.abort(grpc.StatusCode[code], DETAILS)

        return grpc.stream_stream_rpc_method_handler(serve)


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[grpc.aio.Channel]:
    """A channel to such a server."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(None)


class FailsLate:
    """The inner call of a call of grpc.aio. None of its requests can be sent, and each fails behind the server's end:
    the one of the two orders that the library does not leave to the reader of the responses.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def send_serialized_message(self, _message: bytes) -> None:
        """Fails, once the server's status is there."""
        await self._inner.status()
        raise grpc.aio.InternalError('Failed "execute_batch": (SendMessageOperation,)')
