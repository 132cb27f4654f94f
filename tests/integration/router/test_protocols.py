"""What passes byte for byte: gRPC with its trailers and streams, large uploads, HEAD,
and nothing that a client claims of itself.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from retinue.router.core.table import Access, Revision
from tests.integration.router.backends import Backend
from tests.integration.router.clients import request
from tests.integration.router.running import HOST, replicas, running, token, toy
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

_METHOD = "/test.Echo/Chat"


@asynccontextmanager
async def echo_server() -> AsyncIterator[int]:
    """A gRPC server that sends every message back, and trailers at the end."""

    async def chat(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for message in requests:
            yield message
        context.set_trailing_metadata((("x-end", "whole"),))

    handler: Any = grpc.stream_stream_rpc_method_handler(chat)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", {"Chat": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


async def test_grpc_passes_in_both_directions_with_trailers_also_when_it_was_held(tmp_path: Path) -> None:
    async with running(tmp_path) as router, echo_server() as port:
        asleep = toy(Revision(1, 100, http2=True))
        await router.serve(asleep)
        await router.listening()
        options = (("grpc.default_authority", HOST), ("grpc.enable_http_proxy", 0))
        async with grpc.aio.insecure_channel(f"127.0.0.1:{router.port}", options=options) as channel:
            call: Any = channel.stream_stream(_METHOD)()
            await call.write(b"first")
            await eventually(lambda: router.serving.gate.held() == {asleep.id: 1})
            awake = toy(Revision(1, 100, http2=True, replicas=replicas(port)), id=asleep.id)
            await router.serve(awake)
            assert await call.read() == b"first"
            for number in range(20):
                await call.write(b"%d" % number)
                assert await call.read() == b"%d" % number
            await call.done_writing()
            assert await call.read() is grpc.aio.EOF
            assert dict(await call.trailing_metadata())["x-end"] == "whole"
            assert await call.code() is grpc.StatusCode.OK


async def test_an_answer_of_the_router_to_grpc_is_a_status(tmp_path: Path) -> None:
    async with running(tmp_path) as router, echo_server() as port:
        endpoint = toy(Revision(1, 100, http2=True, replicas=replicas(port)))
        await router.serve(endpoint)
        await router.listening()
        options = (("grpc.default_authority", "none.test"), ("grpc.enable_http_proxy", 0))
        async with grpc.aio.insecure_channel(f"127.0.0.1:{router.port}", options=options) as channel:
            call: Any = channel.stream_stream(_METHOD)()
            assert await call.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_large_upload_and_head_pass_and_claims_of_clients_do_not(tmp_path: Path) -> None:
    async with running(tmp_path) as router, Backend("a") as backend:
        await router.serve(toy(Revision(1, 100, replicas=replicas(backend.port))))
        await router.listening()
        uploaded = await request(router.port, HOST, method="POST", body=bytes(32 << 20))
        assert uploaded.json["size"] == 32 << 20
        assert (await request(router.port, HOST, method="HEAD")).status == 200
        seen = await request(
            router.port,
            HOST,
            x_envoy_retry_on="5xx",
            x_envoy_upstream_rq_timeout_ms="1",
            x_request_id="mine",
            x_forwarded_for="192.0.2.77",
        )
        headers = seen.json["headers"]
        assert {name for name in headers if name.startswith("x-envoy-")} <= {"x-envoy-external-address"}
        # What is before the last address is the client's own claim.
        assert headers["x-forwarded-for"].split(",")[-1] != "192.0.2.77"


async def test_a_token_in_a_held_request_is_checked_before_it_is_held(tmp_path: Path) -> None:
    async with running(tmp_path) as router, Backend("a") as backend:
        asleep = toy(Revision(1, 100), access=Access())
        await router.serve(asleep)
        await router.listening()
        assert (await request(router.port, HOST)).status == 401
        assert not router.serving.gate.held()
        call = asyncio.create_task(request(router.port, HOST, api_key=token(asleep.id)))
        await eventually(router.serving.gate.held)
        await router.serve(toy(Revision(1, 100, replicas=replicas(backend.port)), access=Access(), id=asleep.id))
        assert (await call).status == 200
