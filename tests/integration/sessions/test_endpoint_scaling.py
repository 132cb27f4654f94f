"""Endpoints that are scaled by what is not the routers': a gauge of their replicas, what these use,
and a query to Prometheus.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from aiohttp import web

from retinue.client.errors import CallError
from retinue.devtools import process
from retinue.devtools.cluster import Cluster, ClusterOptions
from retinue.manager.v1 import endpoint_pb2 as epb
from tests.integration.sessions.replicas import manifest, run
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from retinue.client.aio import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")

# Shows a gauge, and computes, both as files tell it.
PROGRAM = """
import http.server, os, threading

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        depth = open("/home/work/depth").read() if os.path.exists("/home/work/depth") else "0"
        body = f"# TYPE depth gauge\\ndepth {depth}\\n".encode()
        self.send_response(200)
        self.send_header("content-type", "text/plain; version=0.0.4")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

def compute():
    while True:
        while os.path.exists("/home/work/busy"):
            sum(range(10_000))
        threading.Event().wait(0.1)

threading.Thread(target=compute, daemon=True).start()
http.server.ThreadingHTTPServer(("0.0.0.0", 8000), Handler).serve_forever()
"""


class Prometheus:
    """A server that answers every query with one number."""

    def __init__(self) -> None:
        self.value = 0.0

    async def answer(self, _request: web.Request) -> web.Response:
        result = [{"metric": {}, "value": [1.0, str(self.value)]}]
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": result}})


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def prometheus() -> AsyncIterator[tuple[Prometheus, str]]:
    """A server, and its address."""
    made = Prometheus()
    app = web.Application()
    app.router.add_post("/api/v1/query", made.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield made, f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(prometheus: tuple[Prometheus, str]) -> AsyncIterator[Cluster]:
    """A cluster with a router that asks the server, and that a test may stop."""
    options = ClusterOptions(
        agents=1, prefix="rt-scale-", router=True, manager_arguments=("--prometheus-url", prometheus[1])
    )
    async with Cluster(options=options) as cluster:
        yield cluster


def spec(name: str, metric: dict[str, object], target: str) -> epb.EndpointSpec:
    scaling = {
        "min": 1,
        "max": 3,
        "metrics": [{**metric, "target": target}],
        "stableWindow": "2s",
        "holdDown": "0s",
        "down": {"period": "1s", "percent": 100},
    }
    kernel = {"command": ["python3", "-c", PROGRAM]}
    return manifest(
        name, kernel=kernel, revision={"metricsPath": "/metrics", "readiness": {"tcp": {}}}, scaling=scaling
    )


async def test_gauges_use_and_queries_make_replicas_and_take_them_away(
    client: Client, prometheus: tuple[Prometheus, str]
) -> None:
    server, _ = prometheus

    async def tell(name: str, script: str) -> None:
        """Controls the replicas of an endpoint that there are."""
        for replica in (await client.endpoints.get(name)).replicas:
            # It may be ending.
            with contextlib.suppress(CallError):
                await run(client, replica.session_id, script)

    async def settled(name: str, is_enough: Callable[[int], bool]) -> None:
        """Waits until so many replicas are ready, and are all there are."""

        async def look() -> tuple[int, int]:
            found = (await client.endpoints.get(name)).endpoint
            return found.ready_replicas, found.replicas

        await eventually(look, lambda found: found[0] == found[1] and is_enough(found[0]))

    async def raised(name: str, is_enough: Callable[[int], bool]) -> epb.ScalingDecision:
        """Waits until so many replicas are there; returns the newest decision that asked for more than one."""
        await settled(name, is_enough)
        return next(change for change in (await client.endpoints.explain(name)).changes if change.to_target > 1)

    specs = {
        "gauge": spec("gauge", {"custom": {"name": "depth"}}, "5"),
        "used": spec("used", {"utilization": {"slot": "cpu"}}, "15"),
        "query": spec("query", {"prometheus": {"query": "sum(jobs)"}}, "10"),
    }
    for made in specs.values():
        await client.endpoints.create(made)
    for name in specs:
        await settled(name, (1).__eq__)

    server.value = 25.0
    await asyncio.gather(tell("gauge", "echo 9 > /home/work/depth"), tell("used", "touch /home/work/busy"))
    by_gauge = await raised("gauge", (2).__eq__)
    by_query = await raised("query", (3).__eq__)
    # A replica that computes all the time uses all that a busy machine leaves to it; one that waits, next to nothing.
    by_use = await raised("used", lambda count: count >= 2)
    shown = {item.metrics[0].name: item.metrics[0] for item in (by_gauge, by_query, by_use)}
    assert (shown["custom:depth"].value, shown["custom:depth"].recommendation) == ("9", 2)
    assert (shown["prometheus:sum(jobs)"].value, shown["prometheus:sum(jobs)"].recommendation) == ("25", 3)
    assert float(shown["utilization:cpu"].value) > 15

    history = await client.endpoints.history("gauge")
    assert history.samples[0].target == 1
    decision = next(item for item in history.decisions if item.to_target == 2)
    assert (decision.metrics[0].name, decision.reason) == ("custom:depth", by_gauge.reason)

    server.value = 3.0
    # A replica that starts late has not been told, and waits.
    await tell("gauge", "echo 2 > /home/work/depth")
    await tell("used", "rm -f /home/work/busy")
    for name in specs:
        await settled(name, (1).__eq__)
        assert (await client.endpoints.explain(name)).changes[0].to_target == 1
        await client.endpoints.delete(name)


async def test_a_cluster_stops_without_new_replicas_and_with_the_engine_of_a_killed_router(
    client: Client, cluster: Cluster
) -> None:
    """The last one: the cluster is gone afterwards."""
    await client.endpoints.create(manifest("toy", "toy", scaling={"min": 1, "max": 1}))
    (replica,) = (
        await eventually(
            lambda: client.endpoints.get("toy"),
            lambda found: [item.state for item in found.replicas] == [epb.REPLICA_STATE_READY],
        )
    ).replicas
    before = (await client.sessions.get(replica.session_id)).revision
    changes: set[str | None] = set()

    async def follow() -> None:
        async for event in client.sessions.watch(after_revision=before):
            changes.add(event.WhichOneof("change"))

    file = cluster.directory / "router" / "engine.json"
    engine = json.loads(await eventually(file.read_bytes, ignoring=FileNotFoundError))
    await cluster.routers[0].kill()
    assert process.start_time(engine["pid"]) == engine["start"]
    following = asyncio.create_task(follow())
    try:
        await cluster.stop()
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        left = process.start_time(engine["pid"]) == engine["start"]
        await asyncio.to_thread(process.end, engine["pid"], engine["start"])
    assert "session_moved" in changes
    assert "created" not in changes
    assert not left
