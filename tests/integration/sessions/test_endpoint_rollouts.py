"""Endpoints on nodes behind a router under load: rollouts, gangs as replicas, drained agents, sleep, two routers."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from retinue.client.errors import NotFound
from retinue.manager.v1 import endpoint_pb2 as epb
from tests.integration.sessions.replicas import Deployed, manifest, names_after, revision
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.aio import Client
    from retinue.devtools.cluster import Cluster

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.usefixtures("routed")]

TWO = {"min": 2, "max": 2}


@contextlib.asynccontextmanager
async def deployed(client: Client, spec: epb.EndpointSpec) -> AsyncIterator[Deployed]:
    """An endpoint with two replicas that are ready, deleted at the end."""
    endpoint = await Deployed.create(client, spec)
    try:
        await endpoint.reach((1, "READY"), (1, "READY"))
        yield endpoint
    finally:
        await endpoint.delete()


async def test_all_requests_move_at_once_when_a_blue_green_rollout_is_promoted(client: Client) -> None:
    rollout = {"blueGreen": {"keepOld": "600s"}}
    async with deployed(client, manifest("both", "blue", scaling=TWO, rollout=rollout)) as endpoint:
        async with endpoint.load() as load:
            await client.endpoints.deploy("both", revision("green"))
            await endpoint.reach((1, "READY"), (1, "READY"), (2, "READY"), (2, "READY"))
            assert set(await names_after(load, 100)) == {"blue"}
            await client.endpoints.promote("both")
            await eventually(endpoint.get, lambda found: shares(found) == {2: 100})
            # Kept for a while, so that going back is at once.
            assert len(await endpoint.states()) == 4
            await eventually(lambda: answering(endpoint), {"green"}.__eq__)
            # From then on, all; what was begun before may end after.
            async with endpoint.load() as begun_after:
                assert set(await names_after(begun_after, 100)) == {"green"}
            assert begun_after.lost == []
            await client.endpoints.roll_back("both")
            await endpoint.rollout(epb.ROLLOUT_STATE_ROLLED_BACK)
            await endpoint.reach((1, "READY"), (1, "READY"))
            async with endpoint.load() as begun_after:
                assert set(await names_after(begun_after, 50)) == {"blue"}
        assert load.lost == begun_after.lost == []


async def answering(endpoint: Deployed) -> set[str]:
    """Returns who answers requests that begin now. Routers follow the manager's shares a moment later."""
    async with endpoint.load() as load:
        return set(await names_after(load, 20))


def shares(endpoint: epb.Endpoint) -> dict[int, int]:
    """Returns the shares in force."""
    return {item.revision: item.effective_percent for item in endpoint.traffic if item.effective_percent}


async def test_a_canary_moves_in_steps_and_goes_back_by_itself_on_errors(client: Client) -> None:
    steps = [{"percent": 20, "hold": "1s"}, {"percent": 50}]
    rollout = {"canary": {"steps": steps}, "abortOn": {"errorPercent": 10, "minRequests": 20}}
    async with deployed(client, manifest("steps", "old", scaling=TWO, rollout=rollout)) as endpoint:
        async with endpoint.load() as load:
            await client.endpoints.deploy("steps", revision("new"))
            await eventually(endpoint.get, lambda found: shares(found) == {1: 50, 2: 50})
            assert set(await names_after(load, 100)) == {"old", "new"}
            await client.endpoints.promote("steps")
            await endpoint.reach((2, "READY"), (2, "READY"))
        assert load.lost == []

        async with endpoint.load() as load:
            await client.endpoints.deploy("steps", revision("wrong", "fail"))
            found = await endpoint.rollout(epb.ROLLOUT_STATE_ROLLED_BACK)
            assert "were errors" in found.rollout.message
            await endpoint.reach((2, "READY"), (2, "READY"))
            lost = len(load.lost)
            async with endpoint.load() as begun_after:
                assert set(await names_after(begun_after, 100)) == {"new"}
        # What the replica itself answered, and nothing else.
        assert len(load.lost) == lost >= 2
        assert all(item.startswith("500 ") and '"wrong"' in item for item in load.lost)


async def test_a_drained_agent_is_left_only_when_other_replicas_are_ready(cluster: Cluster, client: Client) -> None:
    async with deployed(client, manifest("moved", "moved", scaling=TWO)) as endpoint:
        agent = (await endpoint.replicas())[0].agent
        least: list[int] = []

        async def others() -> list[str]:
            found = await endpoint.replicas()
            least.append(sum(item.state == epb.REPLICA_STATE_READY for item in found))
            return [item.agent for item in found]

        async with endpoint.load() as load:
            await load.sent_more(20)
            await client.agents.drain(agent)
            try:
                await eventually(others, lambda found: len(found) == 2 and agent not in found)
            finally:
                await client.agents.undrain(agent)
            await load.sent_more(50)
        assert load.lost == []
        assert min(least) >= 2


GANG = """
import http.server, json, sys, urllib.request

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def do_GET(self):
        if sys.argv[1] == "sub1":
            body = b'"sub1"'
        else:
            with urllib.request.urlopen("http://sub1:9000/", timeout=300) as answer:
                body = json.dumps({"name": "main1 with " + json.load(answer)}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

http.server.ThreadingHTTPServer(("0.0.0.0", int(sys.argv[2])), Handler).serve_forever()
"""


async def test_a_gang_over_two_nodes_is_one_replica_and_replaced_as_a_whole(client: Client) -> None:
    def command(name: str, port: int) -> list[str]:
        return ["python3", "-c", GANG, name, str(port)]

    # Only one of its kernels fits on an agent.
    kernel = {"command": command("main1", 8000), "slots": {"cpu": "2.5", "mem": "64m"}}
    session = {
        "clusterSize": 2,
        "clusterMode": "MULTI_NODE",
        "roles": [{"role": "sub", "kernel": {"command": command("sub1", 9000)}}],
    }
    spec = manifest("gang", kernel=kernel, session=session, scaling={"min": 1, "max": 1})
    endpoint = await Deployed.create(client, spec)
    try:
        await endpoint.reach((1, "READY"))
        (replica,) = await endpoint.replicas()
        found = await client.sessions.get(replica.session_id)
        assert len({kernel.agent for kernel in found.kernels}) == 2
        assert (await endpoint.ask()).json == {"name": "main1 with sub1"}

        await (await client.sessions.get(replica.session_id)).terminate(force=True)
        (other,) = await eventually(
            endpoint.replicas,
            lambda now: (
                len(now) == 1 and now[0].session_id != replica.session_id and now[0].state == epb.REPLICA_STATE_READY
            ),
        )
        assert other.session_id != replica.session_id
        assert (await endpoint.ask()).json == {"name": "main1 with sub1"}
    finally:
        await endpoint.delete()


async def test_endpoints_sleep_and_wake_without_a_lost_request(client: Client) -> None:
    """Two at once: each has to be idle for ten seconds."""
    scaling = {"min": 0, "max": 1, "holdDown": "0s", "idleAfter": "10s"}

    async def sleep_and_wake(number: int) -> list[int]:
        endpoint = await Deployed.create(client, manifest(f"idle{number}", f"idle{number}", scaling=scaling))
        try:
            await eventually(endpoint.get, lambda found: found.state == epb.ENDPOINT_STATE_ASLEEP)
            await endpoint.reach()
            # Some before it is noticed that anything is asked for, some while the replica starts.
            calls = [asyncio.create_task(endpoint.ask()) for _ in range(5)]
            await eventually(endpoint.get, lambda found: found.target == 1)
            calls += [asyncio.create_task(endpoint.ask()) for _ in range(5)]
            return [(await call).status for call in calls]
        finally:
            await endpoint.delete()

    assert await asyncio.gather(*(sleep_and_wake(number) for number in range(2))) == [[200] * 10] * 2


async def test_two_routers_serve_the_same_and_one_continues_without_the_other(cluster: Cluster, client: Client) -> None:
    async with deployed(client, manifest("twice", "one", scaling=TWO)) as endpoint:
        port = await cluster.add_router(f"r-{secrets.token_hex(4)}")
        second = replace(endpoint, port=port)
        await eventually(second.ask, lambda answer: answer.status == 200, ignoring=OSError)
        async with endpoint.load() as here, second.load() as there:
            await client.endpoints.deploy("twice", revision("two"))
            await endpoint.reach((2, "READY"), (2, "READY"))
            await asyncio.gather(*(names_after(load, 20) for load in (here, there)))
            await eventually(
                lambda: client.endpoints.explain("twice"),
                lambda explained: (explained.routers, explained.routers_current) == (2, 2),
            )
        assert here.lost == there.lost == []
        await cluster.routers.pop().stop()
        # A router that is gone is not waited for beyond its lease.
        async with endpoint.load() as here:
            await client.endpoints.deploy("twice", revision("three"))
            await endpoint.reach((3, "READY"), (3, "READY"))
        assert here.lost == []


async def test_an_endpoint_with_a_floor_serves_through_a_rollout_sleeps_and_wakes(
    cluster: Cluster, client: Client
) -> None:
    scaling = {"min": 0, "max": 2, "holdDown": "0s", "idleAfter": "10s"}
    endpoint = await Deployed.create(client, manifest("toy", "one", revision={"maxConcurrency": 8}, scaling=scaling))
    await client.endpoints.set_floor("toy", 2, 3600)
    await endpoint.reach((1, "READY"), (1, "READY"))
    await eventually(endpoint.get, lambda found: found.state == epb.ENDPOINT_STATE_READY)
    async with endpoint.load(2, pause=0.02) as load:
        assert set(await names_after(load, 20)) == {"one"}
        await client.endpoints.deploy("toy", revision("two", revision={"maxConcurrency": 8}))
        await endpoint.reach((2, "READY"), (2, "READY"))
        await load.sent_more(20)
    assert load.lost == []
    assert set(load.by_name) == {"one", "two"}
    await endpoint.rollout(epb.ROLLOUT_STATE_DONE)

    await client.endpoints.set_floor("toy", 0, 3600)
    await endpoint.reach()
    await eventually(endpoint.get, lambda found: found.state == epb.ENDPOINT_STATE_ASLEEP)
    answer = await endpoint.ask()
    assert (answer.status, answer.json["name"]) == (200, "two")
    await endpoint.delete()
    with pytest.raises(NotFound):
        await client.endpoints.get("toy")
    await eventually(endpoint.ask, lambda found: found.status in {404, 410})
    assert not await cluster.wait_clean(NEVER)
    assert not cluster.casualties()
