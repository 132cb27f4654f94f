"""Model servers as users have them, behind a router: one of gRPC, and one that streams its
answer as server-sent events.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest

from tests.integration.router.clients import request
from tests.integration.sessions.replicas import Deployed, manifest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.aio import Client

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.usefixtures("routed")]

PYTHON = "/var/cache/retinue/model/bin/python"
CHAT = """
import asyncio, json

import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

app = FastAPI()
more = asyncio.Event()

@app.get("/health")
async def health():
    return "ready"

@app.post("/more")
async def resume():
    more.set()

@app.post("/v1/chat/completions")
async def complete(question: dict):
    async def answer():
        for number, word in enumerate(question["messages"][-1]["content"].upper().split()):
            if number == 1:
                await more.wait()
            chunk = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": word}}]}
            yield f"data: {json.dumps(chunk)}\\n\\n"
        yield "data: [DONE]\\n\\n"
    return StreamingResponse(answer(), media_type="text/event-stream")

uvicorn.run(app, host="0.0.0.0", port=8000, log_level="warning")
"""
FLOWERS = """
import json
from concurrent.futures import ThreadPoolExecutor

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from sklearn.datasets import load_iris
from sklearn.tree import DecisionTreeClassifier

iris = load_iris()
model = DecisionTreeClassifier(random_state=0).fit(iris.data, iris.target)

def predict(request, context):
    return str(iris.target_names[model.predict([json.loads(request)])[0]]).encode()

def predict_each(requests, context):
    for request in requests:
        yield predict(request, context)
    context.set_trailing_metadata((("x-end", "whole"),))

methods = {"One": grpc.unary_unary_rpc_method_handler(predict), "Each": grpc.stream_stream_rpc_method_handler(predict_each)}
server = grpc.server(ThreadPoolExecutor(8))
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("flowers.Iris", methods),))
health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
server.add_insecure_port("0.0.0.0:8000")
server.start()
server.wait_for_termination()
"""


def served_by(name: str, program: str, **revision: Any) -> Any:
    """Returns an endpoint of a program that Python for models runs."""
    kernel = {"command": [PYTHON, "-c", program], "slots": {"cpu": "1", "mem": "512m"}}
    return manifest(name, kernel=kernel, revision=revision, scaling={"min": 1, "max": 1})


async def test_tokens_arrive_one_by_one_while_the_model_still_works(client: Client) -> None:
    endpoint = await Deployed.create(client, served_by("chat", CHAT))
    try:
        await endpoint.reach((1, "READY"))
        body = json.dumps({"stream": True, "messages": [{"role": "user", "content": "a b c"}]}).encode()
        lines = [
            "POST /v1/chat/completions HTTP/1.1",
            f"host: {endpoint.host}",
            f"authorization: {endpoint.bearer}",
            "content-type: application/json",
            f"content-length: {len(body)}",
        ]
        reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
        try:
            writer.write("\r\n".join([*lines, "", ""]).encode() + body)
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"text/event-stream" in head
            assert json.loads(await anext(events(reader)))["choices"][0]["delta"] == {"content": "A"}
            # The model waits until it has been asked to continue, by a client that saw the first token.
            assert (await endpoint.ask("/more", method="POST")).status == 200
            rest = [item async for item in events(reader)]
            assert [json.loads(item)["choices"][0]["delta"]["content"] for item in rest[:2]] == ["B", "C"]
            assert rest[2] == "[DONE]"
        finally:
            writer.close()
        command = [
            "curl",
            "-s",
            "--http2-prior-knowledge",
            "-w",
            " by %{http_version}",
            f"{endpoint_url(endpoint)}/health",
        ]
        curl = await asyncio.create_subprocess_exec(
            *command, "-H", f"authorization: {endpoint.bearer}", stdout=asyncio.subprocess.PIPE
        )
        assert (await curl.communicate())[0] == b'"ready" by 2'
    finally:
        await endpoint.delete()


def endpoint_url(endpoint: Deployed) -> str:
    return f"http://{endpoint.host}"


async def events(reader: asyncio.StreamReader) -> AsyncIterator[str]:
    """Yields the data of the events of an answer in chunks, of which each has one or more."""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        chunk = (await reader.readexactly(size + 2)).decode()
        for item in chunk.split("\n\n")[:-1]:
            yield item.removeprefix("data: ")


async def test_a_grpc_model_is_probed_by_its_health_and_streams_both_ways(client: Client) -> None:
    spec = served_by("iris", FLOWERS, protocol="GRPC", readiness={"grpc": {}, "period": "1s"})
    endpoint = await Deployed.create(client, spec)
    try:
        await endpoint.reach((1, "READY"))
        options = (("grpc.default_authority", endpoint.host), ("grpc.enable_http_proxy", 0))
        metadata = (("authorization", endpoint.bearer),)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{endpoint.port}", options=options) as channel:
            one: Any = channel.unary_unary("/flowers.Iris/One")
            assert await one(b"[5.1, 3.5, 1.4, 0.2]", metadata=metadata) == b"setosa"
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await one(b"[5.1, 3.5, 1.4, 0.2]")
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED

            call: Any = channel.stream_stream("/flowers.Iris/Each")(metadata=metadata)
            for flower, name in ((b"[5.1, 3.5, 1.4, 0.2]", b"setosa"), (b"[6.3, 3.3, 6.0, 2.5]", b"virginica")):
                await call.write(flower)
                assert await call.read() == name
            await call.done_writing()
            assert await call.read() is grpc.aio.EOF
            assert dict(await call.trailing_metadata())["x-end"] == "whole"
        assert (await request(endpoint.port, endpoint.host)).status == 401
    finally:
        await endpoint.delete()


KERNEL = """
import http.server, os
with open("kernel", "w") as file:
    file.write(os.uname().release)
http.server.HTTPServer(("", 8000), http.server.SimpleHTTPRequestHandler).serve_forever()
"""


async def test_a_replica_is_a_virtual_machine(client: Client) -> None:
    kernel = {"command": ["python3", "-c", KERNEL], "slots": {"cpu": "1", "mem": "256m"}, "isolation": "ISOLATION_VM"}
    revision = {"port": 8000, "readiness": {"http": {"path": "/"}}}
    spec = manifest("machine", kernel=kernel, revision=revision, scaling={"min": 1, "max": 1})
    endpoint = await Deployed.create(client, spec)
    try:
        await endpoint.reach((1, "READY"))
        answer = await endpoint.ask("/kernel")
        assert answer.status == 200
        assert answer.body.decode() not in {"", os.uname().release}
    finally:
        await endpoint.delete()
