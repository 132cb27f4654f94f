"""What clients of endpoints see when something dies: a row of the table in docs/how-to/routers.md each,
on one cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from retinue.client.errors import Unavailable
from retinue.manager.v1 import endpoint_pb2 as epb
from retinue.manager.v1 import fleet_service_pb2
from tests.faults.cutting import cut_off
from tests.faults.loss.held import PATH, count_begun, end_streams, held_kernel
from tests.integration.router.clients import Answer, is_whole
from tests.integration.sessions.replicas import Deployed, manifest, names_after, revision
from tests.support.eventually import eventually
from tests.support.postmaster import kill_database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from retinue.client.aio import Client
    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")

# What a replica on a node that vanished still owes, and what a hung one does, is given up after so long: far longer
# than an answer takes.
SILENCE = {"idleTimeout": "10s"}
# Seconds between two requests of a client.
PAUSE = 0.05
TWO = {"min": 2, "max": 2}
TWO_READY = [(1, "READY"), (1, "READY")]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    async with cluster.client() as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def awake(client: Client) -> AsyncIterator[Deployed]:
    """An endpoint with two replicas that are ready, which no test changes."""
    made = await Deployed.create(client, manifest("awake", "awake", scaling=TWO))
    await made.reach(*TWO_READY)
    yield made
    await made.delete()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def asleep(client: Client) -> AsyncIterator[Deployed]:
    """An endpoint whose replicas never start, as one that is starting or asleep; requests to it are held for 2 s."""
    made = await Deployed.create(client, never_started("asleep", "2s"))
    yield made
    await made.delete()


def never_started(name: str, hold: str) -> epb.EndpointSpec:
    kernel = {"slots": {"cpu": "64"}}
    return manifest(name, name, kernel=kernel, scaling={"min": 1, "max": 1}, routing={"holdTimeout": hold})


def error_of(answer: Answer) -> tuple[int, str, str]:
    """Returns the status, the code and the pause of an answer of the router."""
    return answer.status, answer.json["error"]["code"], answer.headers.get("retry-after", "")


async def test_without_a_manager_requests_are_answered_and_held_ones_end(
    cluster: Cluster, awake: Deployed, asleep: Deployed
) -> None:
    async with awake.load(pause=PAUSE) as load:
        await load.sent_more(50)
        await cluster.manager.kill()
        try:
            assert error_of(await asleep.ask()) == (503, "STARTING", "10")
            await load.sent_more(100)
        finally:
            await cluster.start_manager()
        await awake.reach(*TWO_READY)
        await load.sent_more(100)
    assert load.lost == []


async def test_while_nothing_is_heard_of_the_manager_requests_are_answered_and_held_ones_end(
    cluster: Cluster, awake: Deployed, asleep: Deployed
) -> None:
    async with awake.load(pause=PAUSE) as load:
        await load.sent_more(50)
        # Its connections stay open, as they do when the network between is cut.
        cluster.manager.signal(signal.SIGSTOP)
        try:
            assert error_of(await asleep.ask()) == (503, "STARTING", "10")
            await load.sent_more(300)
        finally:
            cluster.manager.signal(signal.SIGCONT)
        await eventually(awake.states, TWO_READY.__eq__, ignoring=Unavailable)
        await load.sent_more(100)
    assert load.lost == []


async def test_without_postgresql_requests_are_answered(cluster: Cluster, awake: Deployed) -> None:
    async with awake.load(pause=PAUSE) as load:
        await load.sent_more(50)
        await kill_database(cluster)
        await load.sent_more(200)
        # The manager starts it again.
        await eventually(awake.states, TWO_READY.__eq__, ignoring=Unavailable)
        await load.sent_more(50)
    assert load.lost == []


async def engine_of(cluster: Cluster) -> int:
    """Returns the process of the router's engine."""
    text = await eventually(lambda: engine_file(cluster).read_text(), ignoring=FileNotFoundError)
    return int(json.loads(text)["pid"])


def engine_file(cluster: Cluster) -> Path:
    return cluster.directory / "router" / "engine.json"


async def test_without_the_routers_program_requests_are_answered_and_held_ones_fail_at_once(
    cluster: Cluster, client: Client, awake: Deployed, asleep: Deployed
) -> None:
    engine = await engine_of(cluster)
    holding = await Deployed.create(client, never_started("holding", "3600s"))
    async with awake.load(pause=PAUSE) as load:
        await load.sent_more(50)
        held = asyncio.create_task(holding.ask())
        await eventually(lambda: count_held(holding))
        await cluster.routers[0].kill()
        try:
            assert (await held).status == 503
            later = await holding.ask()
            assert (later.status, later.headers["retry-after"]) == (503, "2")
            await load.sent_more(100)
        finally:
            await cluster.routers[0].start()
        await eventually(asleep.ask, lambda answer: error_of(answer)[1:] == ("STARTING", "10"))
        await load.sent_more(100)
    assert load.lost == []
    assert await engine_of(cluster) == engine
    await holding.delete()


async def count_held(endpoint: Deployed) -> int:
    """Returns how many requests the router reports to hold."""
    async for found in endpoint.client.endpoints.stats(endpoint.name, 1.0):
        return found.held
    return 0


async def test_a_killed_engine_breaks_its_connections_and_comes_back_with_its_table(
    cluster: Cluster, awake: Deployed
) -> None:
    engine = await engine_of(cluster)
    os.kill(engine, signal.SIGKILL)
    answer = await eventually(awake.ask, ignoring=(OSError, asyncio.IncompleteReadError))
    assert answer.status == 200
    assert await engine_of(cluster) != engine


async def test_without_agents_programs_requests_are_answered(cluster: Cluster, awake: Deployed) -> None:
    async with awake.load(pause=PAUSE) as load:
        await load.sent_more(50)
        try:
            await asyncio.gather(*(cluster.agents[index].process.kill() for index in range(2)))
            for agent in cluster.agents:
                await eventually(
                    lambda agent=agent: awake.client.agents.get(agent.id),  # type: ignore[misc]
                    lambda found: found.state != fleet_service_pb2.AGENT_STATE_ALIVE,
                )
            await load.sent_more(100)
        finally:
            await asyncio.gather(*(cluster.start_agent(index) for index in range(2)))
        await load.sent_more(50)
        await awake.reach(*TWO_READY)
    assert load.lost == []


async def test_streams_of_a_draining_replica_outlive_the_router_and_the_manager(
    cluster: Cluster, client: Client
) -> None:
    spec = manifest("streams", kernel=held_kernel("old"), scaling={"min": 1, "max": 1})
    endpoint = await Deployed.create(client, spec)
    try:
        await endpoint.reach((1, "READY"))
        (old,) = await endpoint.replicas()
        stream = asyncio.create_task(endpoint.ask(PATH))
        await eventually(lambda: count_begun(client, old))
        await client.endpoints.deploy("streams", revision("new"))
        await endpoint.reach((1, "DRAINING"), (2, "READY"))
        # A manager that starts does not know of the stream.
        await cluster.routers[0].kill()
        await cluster.routers[0].start()
        await cluster.manager.kill()
        await cluster.start_manager()
        assert not stream.done()
        await eventually(lambda: end_streams(client, old), lambda _: True, ignoring=Unavailable)
        assert is_whole((await stream).body)
        await endpoint.reach((2, "READY"))
    finally:
        await endpoint.delete()


async def test_a_killed_replica_breaks_what_is_on_it_and_is_replaced(client: Client) -> None:
    endpoint = await Deployed.create(client, manifest("killed", kernel=held_kernel("killed"), scaling=TWO))
    try:
        await endpoint.reach(*TWO_READY)
        victim, other = await endpoint.replicas()
        streams = [asyncio.create_task(endpoint.ask(PATH)) for _ in range(6)]

        async def begun() -> tuple[int, int]:
            return await count_begun(client, victim), await count_begun(client, other)

        on_victim, on_other = await eventually(begun, lambda found: sum(found) == len(streams))
        assert on_victim
        assert on_other
        async with endpoint.load(pause=PAUSE) as load:
            await load.sent_more(50)
            await endpoint.kill(victim)
            await eventually(
                endpoint.replicas, lambda found: victim.session_id not in {item.session_id for item in found}
            )
            await endpoint.reach(*TWO_READY)
        # Its sockets took requests until the last of them was closed.
        assert all(line.startswith("502 ") and "REPLICA_BROKE" in line for line in load.lost), load.lost
        async with endpoint.load(pause=PAUSE) as later:
            await later.sent_more(100)
        assert later.lost == []
        await end_streams(client, other)
        answers = await asyncio.gather(*streams, return_exceptions=True)
        broken = [item for item in answers if isinstance(item, asyncio.IncompleteReadError | ConnectionError)]
        whole = [item for item in answers if isinstance(item, Answer)]
        # A broken answer never looks whole.
        assert (len(broken), len(whole)) == (on_victim, on_other)
        assert all(is_whole(item.body) for item in whole)
    finally:
        await endpoint.delete()


async def test_a_hung_replica_times_out_by_silence_and_is_taken_out(client: Client) -> None:
    endpoint = await Deployed.create(client, manifest("hung", "hung", scaling=TWO, routing=SILENCE))

    async def lost_of_more() -> list[str]:
        async with endpoint.load(pause=PAUSE) as load:
            await load.sent_more(50)
        return load.lost

    try:
        await endpoint.reach(*TWO_READY)
        # Requests that hang, beside others.
        asked = [endpoint.ask("/slow?3600" if number % 2 else "/") for number in range(10)]
        answers = await asyncio.gather(*asked)
        assert [answer.status for answer in answers] == [200, 504] * 5
        assert {error_of(answer)[1] for answer in answers if answer.status == 504} == {"TIMEOUT"}
        # A replica that hangs whole.
        (hung, _) = await endpoint.replicas()
        await endpoint.tell(hung, "hang")
        answers = await asyncio.gather(*(endpoint.ask() for _ in range(10)))
        assert {answer.status for answer in answers} <= {200, 504}
        assert {error_of(answer)[1] for answer in answers if answer.status == 504} <= {"TIMEOUT"}
        await endpoint.reach((1, "READY"), (1, "UNREADY"))
        # The router may know a moment later; from then on it asks the other one only.
        await eventually(lost_of_more, [].__eq__)
        assert await lost_of_more() == []
        await endpoint.tell(hung, "")
        await endpoint.reach(*TWO_READY)
    finally:
        await endpoint.delete()


async def test_replicas_of_a_lost_node_are_replaced_and_the_surplus_goes_when_it_is_back(
    cluster: Cluster, client: Client
) -> None:
    # Three fit on a node: each has one at least.
    kernel = {"slots": {"cpu": "1.2", "mem": "64m"}}
    spec = manifest("node", "node", kernel=kernel, scaling={"min": 4, "max": 4}, routing=SILENCE)
    endpoint = await Deployed.create(client, spec)
    try:
        await endpoint.reach(*TWO_READY * 2)
        replicas = await endpoint.replicas()
        agent = next(item for item in cluster.agents if item.id == replicas[0].agent)
        lost = [item for item in replicas if item.agent == agent.id]
        async with contextlib.AsyncExitStack() as cut:
            async with endpoint.load(pause=2 * PAUSE) as load:
                await load.sent_more(50)
                await cut.enter_async_context(cut_off(agent))
                await eventually(
                    endpoint.replicas,
                    lambda found: (
                        [item.agent == agent.id for item in found if item.state == epb.REPLICA_STATE_READY]
                        == [False] * 3
                    ),
                )
            # What was on the node when it vanished is all that was lost: everything else found another replica.
            assert len(load.lost) <= load.clients * len(lost), load.lost
            async with endpoint.load(pause=PAUSE) as later:
                await later.sent_more(100)
                await cut.aclose()
                await endpoint.reach(*TWO_READY * 2)
                await later.sent_more(50)
            assert later.lost == []
    finally:
        await endpoint.delete()


async def test_requests_are_held_while_no_replica_is_ready(client: Client) -> None:
    endpoint = await Deployed.create(client, manifest("unready", "unready", scaling={"min": 1, "max": 1}))
    try:
        await endpoint.reach((1, "READY"))
        (replica,) = await endpoint.replicas()
        await endpoint.tell(replica, "unready")
        await endpoint.reach((1, "UNREADY"))
        calls: list[asyncio.Task[Answer]] = []

        async def ask_one_more() -> int:
            # The router may know a moment later.
            calls.append(asyncio.create_task(endpoint.ask()))
            return await count_held(endpoint)

        await eventually(ask_one_more)
        assert not calls[-1].done()
        await endpoint.tell(replica, "")
        assert {(await call).status for call in calls} == {200}
    finally:
        await endpoint.delete()


async def test_without_room_fewer_replicas_serve_and_the_queue_is_bounded(client: Client) -> None:
    # One fits on a node.
    kernel = held_kernel("full", slots={"cpu": "3.5", "mem": "64m"})
    spec = manifest(
        "full",
        kernel=kernel,
        revision={"maxConcurrency": 1, "queue": 2},
        scaling={"min": 3, "max": 3},
    )
    endpoint = await Deployed.create(client, spec)
    try:
        await eventually(endpoint.get, lambda found: found.ready_replicas == 2)
        found = await eventually(endpoint.get, lambda found: found.conditions)
        assert [item.type for item in found.conditions] == ["REPLICAS_PENDING"]
        assert "cpu" in found.conditions[0].message
        asked = {asyncio.create_task(endpoint.ask(PATH)) for _ in range(12)}
        # Those that are served are as long as it takes until others are refused.
        refused, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        assert {error_of(await call) for call in refused} == {(503, "OVERLOADED", "1")}
        for replica in await endpoint.replicas():
            if replica.state == epb.REPLICA_STATE_READY:
                await end_streams(client, replica)
        answers = await asyncio.gather(*asked)
        assert sum(answer.status == 200 for answer in answers) >= 2
        assert {error_of(answer) for answer in answers if answer.status != 200} == {(503, "OVERLOADED", "1")}
    finally:
        await endpoint.delete()


async def test_a_bad_revision_never_serves_and_says_why(client: Client) -> None:
    endpoint = await Deployed.create(client, manifest("bad", "good", scaling={"min": 1, "max": 1}))
    try:
        await endpoint.reach((1, "READY"))
        async with endpoint.load(pause=PAUSE) as load:
            await client.endpoints.deploy(
                endpoint.name, revision(kernel={"command": ["sh", "-c", "echo no model here; exit 3"]})
            )
            await eventually(endpoint.get, lambda found: "REVISION_FAILING" in {item.type for item in found.conditions})
            explained = await client.endpoints.explain(endpoint.name)
            assert explained.failure_output.splitlines()[-1] == "no model here"
            assert 2 in {item.revision for item in explained.replicas if item.state == epb.REPLICA_STATE_GONE}
            # After more of the kind it goes back by itself; each try waits longer than the one before.
            await client.endpoints.roll_back(endpoint.name)
            found = await endpoint.rollout(epb.ROLLOUT_STATE_ROLLED_BACK)
            assert found.rollout.message == "rolled back by admin"
            assert set(await names_after(load, 50)) == {"good"}
        assert load.lost == []
    finally:
        await endpoint.delete()
