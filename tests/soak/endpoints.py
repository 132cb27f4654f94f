"""Requests to endpoints while everything moves: `python -m tests.soak.endpoints [SCENARIO…]`;
each line is `name requests lost longest`.

A scenario continues until `--requests` were answered, 10,000 by default, on a cluster of two agents with a router.
Streams run beside all of them and have to be whole. Lost is every request without an answer 200; where a replica, a
node or Envoy dies, those on it are the bound, which is printed as `bound=`. Ends with 1 when more was lost.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import os
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from retinue.client.errors import Unavailable
from retinue.devtools.cluster import Cluster, ClusterOptions
from retinue.manager.v1 import endpoint_pb2 as epb
from tests.faults.cutting import cut_off
from tests.integration.router.clients import Answer, Load
from tests.integration.sessions.replicas import Deployed, manifest, revision
from tests.soak.kills import random_kills
from tests.soak.streams import long_streams
from tests.support.eventually import eventually
from tests.support.postmaster import kill_database

if TYPE_CHECKING:
    from retinue.client.aio import Client

CLIENTS = 8
STREAMS, STREAM_PIECES = 10, 600
ASLEEP, TIMES, WAKING = 8, 5, 40
STREAM_SECONDS = 150.0
KILLS = 20
# Times that a scenario acts at least.
LEAST = 3


@dataclass(slots=True)
class Stage:
    """A cluster, an endpoint of four replicas on it, and how many requests each scenario takes."""

    cluster: Cluster
    client: Client
    endpoint: Deployed
    requests: int
    revisions: int = 1

    async def rest(self) -> None:
        """Waits until four replicas of the newest revision are ready, and no other is there."""
        await self.endpoint.reach(*[(self.revisions, "READY")] * 4)


Act: TypeAlias = Callable[[Stage, Load, int], Awaitable[int]]
"""Does something under load, for the n-th time; returns how many requests may fail by it."""


async def scale(stage: Stage, load: Load, number: int) -> int:
    """Changes the number of replicas between four and five."""
    count = 5 - number % 2
    await stage.client.endpoints.set_floor(stage.endpoint.name, count, 3600)
    await stage.endpoint.reach(*[(stage.revisions, "READY")] * count)
    return 0


async def roll(stage: Stage, load: Load, number: int) -> int:
    """Replaces all replicas."""
    await stage.client.endpoints.deploy(stage.endpoint.name, revision(f"r{number}"))
    stage.revisions += 1
    await stage.rest()
    return 0


async def kill_replica(stage: Stage, load: Load, number: int) -> int:
    """Kills a replica's program."""
    victim = (await stage.endpoint.replicas())[0]
    await stage.endpoint.kill(victim)
    await eventually(
        stage.endpoint.replicas, lambda found: victim.session_id not in {item.session_id for item in found}
    )
    await stage.rest()
    return load.clients


async def kill_manager(stage: Stage, load: Load, number: int) -> int:
    """Kills the manager."""
    await stage.cluster.manager.kill()
    await load.sent_more(500)
    await stage.cluster.start_manager()
    await eventually(stage.endpoint.states, ignoring=Unavailable)
    await load.sent_more(500)
    return 0


async def kill_postgresql(stage: Stage, load: Load, number: int) -> int:
    """Kills PostgreSQL, which the manager starts again."""
    await kill_database(stage.cluster)
    await load.sent_more(500)
    await eventually(stage.endpoint.states, ignoring=Unavailable)
    return 0


async def kill_router(stage: Stage, load: Load, number: int) -> int:
    """Kills the router's Python process."""
    (router,) = stage.cluster.routers
    await router.kill()
    await load.sent_more(500)
    await router.start()
    await load.sent_more(500)
    return 0


async def kill_agent(stage: Stage, load: Load, number: int) -> int:
    """Kills an agent's process."""
    await stage.cluster.agents[number % 2].process.kill()
    await load.sent_more(500)
    await stage.cluster.start_agent(number % 2)
    await stage.rest()
    return 0


async def drain_agent(stage: Stage, load: Load, number: int) -> int:
    """Drains an agent until no replica is on it."""
    agent = stage.cluster.agents[number % 2].id
    await stage.client.agents.drain(agent)

    async def places() -> list[str]:
        return [item.agent for item in await stage.endpoint.replicas()]

    await eventually(places, lambda found: agent not in found and len(found) == 4)
    await stage.client.agents.undrain(agent)
    return 0


async def cut_node(stage: Stage, load: Load, number: int) -> int:
    """Cuts a node off until its replicas are replaced. What is on it fails after the
    silence that the endpoint allows.
    """
    agent = stage.cluster.agents[number % 2]
    async with cut_off(agent):

        async def elsewhere() -> int:
            found = await stage.endpoint.replicas()
            return sum(item.state == epb.REPLICA_STATE_READY and item.agent != agent.id for item in found)

        await eventually(elsewhere, (4).__eq__)
    await stage.rest()
    return load.clients


async def kill_envoy(stage: Stage, load: Load, number: int) -> int:
    """Kills Envoy. Every client tries again each 10 ms: what is lost is bounded by the second until it is back."""
    file = stage.cluster.directory / "router" / "engine.json"
    former = json.loads(await asyncio.to_thread(file.read_text))["pid"]
    os.kill(former, signal.SIGKILL)
    await eventually(lambda: json.loads(file.read_text())["pid"] != former, ignoring=(OSError, ValueError))
    await load.sent_more(500)
    return 100 * load.clients


ACTS: dict[str, Act] = {
    act.__name__.replace("_", "-"): act
    for act in (
        scale,
        roll,
        drain_agent,
        kill_manager,
        kill_postgresql,
        kill_router,
        kill_agent,
        kill_replica,
        cut_node,
        kill_envoy,
    )
}


def say(*words: object) -> None:
    sys.stdout.write(f"{' '.join(map(str, words))}\n")
    sys.stdout.flush()


async def run_act(stage: Stage, name: str, act: Act) -> bool:
    """Runs one scenario; returns whether no more was lost than may be."""
    # The program of a replica ends its streams with itself: they are looked at where nothing ends that has one.
    whole_ones = act in {scale, roll, drain_agent, kill_manager, kill_postgresql, kill_router, kill_agent}
    # What the scenario before did to PostgreSQL may not be over.
    await eventually(
        lambda: stage.client.endpoints.set_floor(stage.endpoint.name, 4, 36_000), lambda _: True, ignoring=Unavailable
    )
    await stage.rest()
    bound = times = 0
    async with stage.endpoint.load(CLIENTS, pause=0.0) as load:
        streams = [
            asyncio.create_task(stage.endpoint.ask(f"/stream?{STREAM_PIECES}")) for _ in range(STREAMS * whole_ones)
        ]
        while load.sent < stage.requests or times < LEAST or any(not stream.done() for stream in streams):
            bound += await act(stage, load, times)
            times += 1
            await load.sent_more(200)
    answers = await asyncio.gather(*streams, return_exceptions=True)
    whole = sum(isinstance(item, Answer) and item.body.count(b"data: ") == STREAM_PIECES for item in answers)
    beside = f"streams={whole}/{len(answers)}" if whole_ones else f"bound={bound}"
    say(name, load.sent, len(load.lost), f"{1000 * load.longest:.0f} ms", f"times={times}", beside)
    for line in sorted(set(load.lost))[:5]:
        say("  ", load.lost.count(line), line)
    return len(load.lost) <= bound and whole == len(answers)


async def sleep_and_wake(client: Client) -> bool:
    """Lets endpoints sleep and wakes them by requests at random moments each time, before,
    while and after the replica starts.
    """
    scaling = {"min": 0, "max": 1, "holdDown": "0s", "idleAfter": "10s"}
    lost: list[int] = []
    waits: list[float] = []

    async def ask_later(endpoint: Deployed, seconds: float) -> float:
        """Returns how long a good answer took. Raises OSError and IncompleteReadError on a broken one."""
        await asyncio.sleep(seconds)
        began = time.monotonic()
        answer = await endpoint.ask()
        if answer.status != 200:
            raise ConnectionError(answer.body)
        return time.monotonic() - began

    async def one(number: int) -> None:
        endpoint = await Deployed.create(client, manifest(f"asleep{number}", f"asleep{number}", scaling=scaling))
        try:
            for _ in range(TIMES):
                await eventually(endpoint.get, lambda found: found.state == epb.ENDPOINT_STATE_ASLEEP)
                moments = [0.0, *(random.expovariate(0.5) for _ in range(WAKING - 1))]
                answers = await asyncio.gather(*(ask_later(endpoint, at) for at in moments), return_exceptions=True)
                waits.append(max((item for item in answers if isinstance(item, float)), default=0.0))
                lost.append(sum(not isinstance(item, float) for item in answers))
        finally:
            await endpoint.delete()

    await asyncio.gather(*(one(number) for number in range(ASLEEP)))
    waits.sort()
    middle = f"{waits[len(waits) // 2]:.2f} s"
    say(
        "sleep-and-wake",
        WAKING * len(lost),
        sum(lost),
        f"{1000 * waits[-1]:.0f} ms",
        f"times={len(lost)} median={middle}",
    )
    return not sum(lost)


async def kill_at_random(cluster: Cluster, client: Client, requests: int) -> bool:
    """Kills processes of all kinds at random moments."""
    seed = random.randrange(1 << 32)
    found = await random_kills(cluster, client, KILLS, seed, requests=requests)
    say("random-kills", found.sent, found.lost, f"seed={seed}", *(f"{kind}={n}" for kind, n in found.killed.items()))
    broken, refused = found.bound
    say(f"   answers {len(found.broken)}, bound={broken}; breaks {len(found.refused)}, bound={refused}")
    say(f"   away {found.away:.1f} s; {dict(collections.Counter(line[:40] for line in found.broken))}")
    return found.good


async def soak(names: list[str], requests: int) -> bool:
    """Returns whether nothing was lost that may not be."""
    options = ClusterOptions(
        agents=2,
        slots={"cpu": "8", "mem": "4g"},
        prefix="rt-load-",
        heartbeat=0.5,
        suspect_after=3.0,
        lost_after=8.0,
        router=True,
    )
    good = True
    async with Cluster(options=options) as cluster, cluster.client() as client:
        await client.resource_groups.update("default", agent_strategy="dispersed")
        if acts := [name for name in names if name in ACTS]:
            routing = {"idleTimeout": "2s"}
            spec = manifest("load", "r", scaling={"min": 4, "max": 5, "holdDown": "0s"}, routing=routing)
            endpoint = await Deployed.create(client, spec)
            stage = Stage(cluster, client, endpoint, requests)
            for name in acts:
                good = await run_act(stage, name, ACTS[name]) and good
            await endpoint.delete()
        if "sleep-and-wake" in names:
            good = await sleep_and_wake(client) and good
        if "random-kills" in names:
            good = await kill_at_random(cluster, client, requests) and good
        if "long-streams" in names:
            count, broken, seconds = await long_streams(cluster, client, STREAM_SECONDS)
            say("long-streams", count, broken, f"{seconds:.0f} s")
            good = good and not broken
    return good


def main() -> int:
    """The command."""
    names = [*ACTS, "sleep-and-wake", "random-kills", "long-streams"]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenarios", nargs="*", choices=[*names, []], metavar="SCENARIO", help=", ".join(names))
    parser.add_argument("--requests", type=int, default=10_000)
    given = parser.parse_args()
    good = asyncio.run(soak(given.scenarios or names, given.requests))
    say("endpoints: ok" if good else "endpoints: too much was lost")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
