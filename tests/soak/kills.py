"""Random processes of a cluster are killed while requests are sent, and may be away together: manager, router,
Envoy, agents and replicas.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import os
import random
import signal
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.client.errors import Unavailable
from tests.integration.sessions.replicas import Deployed, manifest, names_after
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from retinue.client.aio import Client
    from retinue.devtools.cluster import Cluster

KINDS = ("manager", "router", "envoy", "agent", "replica")
REPLICAS, CLIENTS = 4, 8
PAUSE, AWAY = 2.0, 3.0
# Without Envoy a client tries again each 10 ms.
TRIES = 100


@dataclass(slots=True)
class Outcome:
    """What was killed how often, how many requests were sent, which were lost, and how many may be by which kills."""

    killed: collections.Counter[str]
    sent: int
    broken: list[str]
    """Answers of the router: those on a replica that died."""
    refused: list[str]
    """Without an answer: those on an Envoy that died, and while it was away."""
    away: float
    """Seconds that nothing listened for clients."""

    @property
    def lost(self) -> int:
        """How many requests failed."""
        return len(self.broken) + len(self.refused)

    @property
    def bound(self) -> tuple[int, int]:
        """How many answers may be bad, and how many may be missing.

        A new Envoy has a second to find out which replicas of its table are dead: nothing knows when the manager is
        away, too.
        """
        broken = self.killed["replica"] + TRIES * self.killed["envoy"]
        return CLIENTS * broken, round(CLIENTS * (self.killed["envoy"] + TRIES * self.away))

    @property
    def good(self) -> bool:
        """Whether no more was lost than was under way in what died."""
        broken, refused = self.bound
        foreign = [line for line in self.broken if not line.startswith("502 ")]
        return not foreign and len(self.broken) <= broken and len(self.refused) <= refused


class Killer:
    """Kills and starts again; each process is away for a random time, beside others."""

    def __init__(self, cluster: Cluster, program: str, port: int, chance: random.Random) -> None:
        """`program` is the last argument of the replicas' command, `port` where clients connect."""
        self._cluster = cluster
        self._program = program
        self._port = port
        self._random = chance
        self._locks: collections.defaultdict[str, asyncio.Lock] = collections.defaultdict(asyncio.Lock)
        self.killed: collections.Counter[str] = collections.Counter()
        self.away = 0.0

    async def run(self, kinds: list[str]) -> None:
        """Kills one of each of these kinds, in this order; returns when everything runs again."""
        async with asyncio.TaskGroup() as group:
            for kind in kinds:
                await asyncio.sleep(self._random.uniform(0, PAUSE))
                group.create_task(getattr(self, f"_kill_{kind}")())

    async def _pause(self) -> None:
        await asyncio.sleep(self._random.uniform(0, AWAY))

    async def _kill_manager(self) -> None:
        async with self._locks["manager"]:
            self.killed["manager"] += 1
            await self._cluster.manager.kill()
            await self._pause()
            await self._cluster.start_manager()

    async def _kill_router(self) -> None:
        (router,) = self._cluster.routers
        async with self._locks["router"]:
            self.killed["router"] += 1
            await router.kill()
            await self._pause()
            await router.start()

    async def _kill_agent(self) -> None:
        index = self._random.randrange(len(self._cluster.agents))
        async with self._locks[f"agent {index}"]:
            self.killed["agent"] += 1
            await self._cluster.agents[index].process.kill()
            await self._pause()
            await self._cluster.start_agent(index, wait=False)

    async def _kill_envoy(self) -> None:
        async with self._locks["envoy"]:
            pid = await eventually(self._engine, ignoring=(OSError, ValueError))
            self.killed["envoy"] += 1
            began = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            # The router starts another one, when it runs itself; until the former one is gone connections reach that.
            await eventually(lambda: self._engine() != pid, ignoring=(OSError, ValueError))
            await eventually(self._listens, ignoring=OSError)
            self.away += time.monotonic() - began

    def _engine(self) -> int:
        pid = int(json.loads((self._cluster.directory / "router" / "engine.json").read_text())["pid"])
        os.kill(pid, 0)
        return pid

    async def _listens(self) -> bool:
        _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.close()
        return True

    async def _kill_replica(self) -> None:
        found = await eventually(lambda: asyncio.to_thread(programs, self._program))
        self.killed["replica"] += 1
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._random.choice(found), signal.SIGKILL)


def programs(last: str) -> list[int]:
    """Returns the processes of Python whose last argument is this."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            *words, end = path.read_bytes().split(b"\0")
            if not end and words and words[-1] == last.encode() and Path(os.fsdecode(words[0])).name == "python3":
                found.append(int(path.parent.name))
    return found


async def random_kills(cluster: Cluster, client: Client, count: int, seed: int, *, requests: int = 0) -> Outcome:
    """Kills so many random processes, each kind about as often as any other, while requests are sent, at least as many
    as `requests`. Raises AssertionError when the endpoint does not recover whole.
    """
    chance = random.Random(seed)
    kinds = [KINDS[number % len(KINDS)] for number in range(count)]
    chance.shuffle(kinds)
    program = uuid.uuid4().hex
    scaling = {"min": REPLICAS, "max": REPLICAS}
    endpoint = await Deployed.create(client, manifest("kills", program, scaling=scaling))
    ready = [(1, "READY")] * REPLICAS
    await endpoint.reach(*ready)
    killer = Killer(cluster, program, endpoint.port, chance)
    async with endpoint.load(CLIENTS) as load:
        await load.sent_more(100)
        await killer.run(kinds)
        await eventually(endpoint.states, ready.__eq__, ignoring=Unavailable)
        await whole(client, endpoint)
        while load.sent < requests:
            await load.sent_more(200)

        async def lost_of_many() -> int:
            before = len(load.lost)
            assert set(await names_after(load, 500)) == {program}
            return len(load.lost) - before

        # A replica that was killed just now is shown as ready until its agent has seen its end.
        await eventually(lost_of_many, (0).__eq__)
    await endpoint.delete()
    broken = [line for line in load.lost if line[0].isdecimal()]
    refused = [line for line in load.lost if not line[0].isdecimal()]
    return Outcome(killer.killed, load.sent, broken, refused, killer.away)


async def whole(client: Client, endpoint: Deployed) -> None:
    """Waits until the endpoint's sessions are its replicas, and no other of its programs is left."""

    async def left() -> set[str]:
        replicas = {item.session_id for item in await endpoint.replicas()}
        return {item.id async for item in client.sessions.list()} ^ replicas

    await eventually(left, set().__eq__, ignoring=Unavailable)
