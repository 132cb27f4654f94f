"""An endpoint from end to end: real replicas on nodes, behind a real router, through a rollout and through sleep."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from retinue.client.aio import Client
from retinue.client.errors import NotFound
from retinue.client.manifest import read_manifest
from retinue.devtools import process
from retinue.devtools.cluster import Cluster, ClusterOptions
from retinue.manager.v1 import endpoint_pb2 as epb
from tests.integration.router.clients import Load, request
from tests.support.eventually import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROGRAM = """
import http.server, sys

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    # Head and body in one piece.
    wbufsize = -1

    def do_GET(self):
        body = b'{"name": "%s"}' % sys.argv[1].encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

http.server.ThreadingHTTPServer(("0.0.0.0", 8000), Handler).serve_forever()
"""


def spec(name: str) -> epb.EndpointSpec:
    """What a manifest says: replicas answer with `name`, and go as soon as they may."""
    kernel = {"command": ["python3", "-c", PROGRAM, name], "slots": {"cpu": "0.5", "mem": "128m"}}
    revision = {
        "port": 8000,
        "maxConcurrency": 8,
        "readiness": {"http": {"path": "/"}},
        "session": {"kernel": kernel, "terminationGrace": "0s"},
    }
    scaling = {"min": 0, "max": 2, "holdDown": "0s", "idleAfter": "10s"}
    text = json.dumps({"name": "toy", "revision": revision, "scaling": scaling})
    ((found, _),) = read_manifest(text, "the test", default="endpoint").endpoints
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def routed() -> AsyncIterator[Cluster]:
    """A cluster with a router."""
    options = ClusterOptions(agents=2, prefix="rt-edge-", heartbeat=0.5, suspect_after=3.0, lost_after=6.0, router=True)
    async with Cluster(options=options) as cluster:
        yield cluster


@pytest_asyncio.fixture(loop_scope="session")
async def client(routed: Cluster) -> AsyncIterator[Client]:
    async with routed.client() as client:
        yield client


async def states(client: Client) -> list[tuple[int, str]]:
    """The replicas that there are: revision and state of each."""
    found = (await client.endpoints.get("toy")).replicas
    return sorted((item.revision, epb.ReplicaState.Name(item.state).removeprefix("REPLICA_STATE_")) for item in found)


async def test_an_endpoint_serves_through_a_rollout_and_wakes_for_a_request(client: Client, routed: Cluster) -> None:
    await client.endpoints.create(spec("one"))
    await client.endpoints.set_floor("toy", 2, 3600)
    await eventually(lambda: states(client), [(1, "READY"), (1, "READY")].__eq__)
    # It has an address once a router has said where clients reach it.
    endpoint = (await eventually(lambda: client.endpoints.get("toy"), lambda found: found.endpoint.url)).endpoint
    assert endpoint.state == epb.ENDPOINT_STATE_READY
    host = urlsplit(endpoint.url).netloc
    port = int(host.rpartition(":")[2])
    bearer = f"Bearer {(await client.endpoints.create_token('toy')).secret}"

    await eventually(lambda: request(port, host), lambda found: found.status == 401, ignoring=OSError)
    # A router that does not know the replicas yet holds what comes.
    answer = await request(port, host, authorization=bearer)
    assert (answer.status, answer.json) == (200, {"name": "one"})

    async with Load(port, host, clients=2, pause=0.02, headers=f"authorization: {bearer}\r\n") as load:
        await load.sent_more(20)
        await client.endpoints.deploy("toy", spec("two").revision)
        await eventually(lambda: states(client), [(2, "READY"), (2, "READY")].__eq__)
        await load.sent_more(20)
    assert load.lost == []
    assert set(load.by_name) == {"one", "two"}
    assert (await client.endpoints.get("toy")).endpoint.rollout.state == epb.ROLLOUT_STATE_DONE

    await client.endpoints.set_floor("toy", 0, 3600)
    await eventually(lambda: states(client), [].__eq__)
    assert (await client.endpoints.get("toy")).endpoint.state == epb.ENDPOINT_STATE_ASLEEP
    answer = await request(port, host, authorization=bearer)
    assert (answer.status, answer.json) == (200, {"name": "two"})

    await client.endpoints.delete("toy")
    with pytest.raises(NotFound):
        await eventually(lambda: client.endpoints.get("toy"), lambda _: False)
    await eventually(lambda: request(port, host, authorization=bearer), lambda found: found.status in {404, 410})
    assert not await routed.wait_clean(60)
    assert not routed.casualties()


async def test_a_cluster_stops_without_new_replicas_and_with_the_engine_of_a_killed_router(
    client: Client, routed: Cluster
) -> None:
    """The last one: the cluster is gone afterwards."""
    await client.endpoints.create(spec("one"))
    await eventually(lambda: states(client), [(1, "READY")].__eq__)
    (replica,) = (await client.endpoints.get("toy")).replicas
    before = (await client.sessions.get(replica.session_id)).revision
    changes: set[str | None] = set()

    async def follow() -> None:
        async for event in client.sessions.watch(after_revision=before):
            changes.add(event.WhichOneof("change"))

    file = routed.directory / "router" / "engine.json"
    engine = json.loads(await eventually(file.read_bytes, ignoring=FileNotFoundError))
    await routed.routers[0].kill()
    assert process.start_time(engine["pid"]) == engine["start"]
    following = asyncio.create_task(follow())
    try:
        await routed.stop()
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        left = process.start_time(engine["pid"]) == engine["start"]
        await asyncio.to_thread(process.end, engine["pid"], engine["start"])
    assert "session_moved" in changes
    assert "created" not in changes
    assert not left
