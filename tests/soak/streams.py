"""Streams of minutes, of server-sent events, over WebSockets and by gRPC,
while replicas and the router are replaced under them.
"""

from __future__ import annotations

import asyncio
import base64
import os
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from tests.integration.sessions.replicas import Deployed, manifest
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.aio import Client
    from retinue.devtools.cluster import Cluster

PYTHON = "/var/cache/retinue/model/bin/python"
EACH = 10
# A number each tenth of a second, so many in all; /ws is a WebSocket, /health an answer, all else are events.
WEB = """
import base64, hashlib, http.server, sys, time

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        count = int(self.path.partition("?")[2] or 0)
        if self.path.startswith("/ws"):
            key = self.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            self.send_response(101)
            self.send_header("upgrade", "websocket")
            self.send_header("connection", "Upgrade")
            self.send_header("sec-websocket-accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
            self.end_headers()
            for number in range(count):
                self.wfile.write(b"\\x81\\x08%08d" % number)
                time.sleep(0.1)
            self.wfile.write(b"\\x88\\x02\\x03\\xe8")
            self.close_connection = True
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for number in range(count):
            self.wfile.write(b"10\\r\\ndata: %08d\\n\\n\\r\\n" % number)
            time.sleep(0.1)
        self.wfile.write(b"0\\r\\n\\r\\n")

class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128

Server(("0.0.0.0", 8000), Handler).serve_forever()
"""
GRPC = """
import time
from concurrent.futures import ThreadPoolExecutor

import grpc

def count(request, context):
    for number in range(int(request)):
        yield b"%08d" % number
        time.sleep(0.1)
    context.set_trailing_metadata((("x-end", "whole"),))

server = grpc.server(ThreadPoolExecutor(32))
methods = {"Up": grpc.unary_stream_rpc_method_handler(count)}
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Count", methods),))
server.add_insecure_port("0.0.0.0:8000")
server.start()
server.wait_for_termination()
"""


async def events(endpoint: Deployed, count: int) -> bool:
    """Returns whether all events came, and the end after them."""
    return (await endpoint.ask(f"/events?{count}")).body == b"".join(b"data: %08d\n\n" % n for n in range(count))


async def frames(endpoint: Deployed, count: int) -> bool:
    """Returns whether all frames came, and the close after them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
    try:
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [f"GET /ws?{count} HTTP/1.1", f"host: {endpoint.host}", f"authorization: {endpoint.bearer}"]
        lines += ["upgrade: websocket", "connection: Upgrade", "sec-websocket-version: 13", f"sec-websocket-key: {key}"]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        if not (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101"):
            return False
        return await reader.read(-1) == b"".join(b"\x81\x08%08d" % n for n in range(count)) + b"\x88\x02\x03\xe8"
    finally:
        writer.close()


async def messages(endpoint: Deployed, count: int) -> bool:
    """Returns whether all messages came, and the trailers after them."""
    options = (("grpc.default_authority", endpoint.host), ("grpc.enable_http_proxy", 0))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{endpoint.port}", options=options) as channel:
        method: Any = channel.unary_stream("/test.Count/Up")
        call = method(b"%d" % count, metadata=(("authorization", endpoint.bearer),))
        found = [item async for item in call]
        return found == [b"%08d" % n for n in range(count)] and dict(await call.trailing_metadata())["x-end"] == "whole"


@asynccontextmanager
async def _deployed(client: Client, name: str, program: str, **revision: Any) -> AsyncIterator[Deployed]:
    kernel = {"command": [PYTHON, "-c", program], "slots": {"cpu": "0.5", "mem": "128m"}}
    spec = manifest(name, kernel=kernel, revision=revision, scaling={"min": 2, "max": 2})
    endpoint = await Deployed.create(client, spec)
    try:
        await endpoint.reach((1, "READY"), (1, "READY"))
        yield endpoint
    finally:
        await endpoint.delete()


async def long_streams(cluster: Cluster, client: Client, seconds: float) -> tuple[int, int, float]:
    """Returns how many streams there were, how many were not whole, and how long they took."""
    count = int(seconds * 10)
    tcp = {"tcp": {}, "period": "1s"}
    async with (
        _deployed(client, "web", WEB, readiness=tcp) as web,
        _deployed(client, "calls", GRPC, readiness=tcp, protocol="GRPC") as calls,
    ):
        began = time.monotonic()
        streams = [
            asyncio.create_task(read(endpoint, count))
            for read, endpoint in ((events, web), (frames, web), (messages, calls))
            for _ in range(EACH)
        ]
        for endpoint in (web, calls):
            await client.endpoints.deploy(endpoint.name, (await client.endpoints.revision(endpoint.name)).spec)
            # The old ones drain as long as they have streams.
            await eventually(
                endpoint.states,
                lambda found: [item for item in found if item[1] == "READY"] == [(2, "READY")] * 2,
            )
        (router,) = cluster.routers
        # A router of a cluster takes its engine with it when it is asked to stop.
        await router.kill()
        await router.start()
        results = await asyncio.gather(*streams, return_exceptions=True)
        return len(results), sum(item is not True for item in results), time.monotonic() - began
