"""A router under load: a thousand requests a second, and ten thousand that wait for an endpoint at zero.

Lines as in `tests.bench`. `endpoint-load-p50` and `-p99` are times of small requests to an endpoint that come at a
steady rate, whether or not those before are answered; peer: a bare Envoy before the same server, in turns.
`endpoint-held-lost` says how many of the requests that found no replica had no good answer once there was one;
`endpoint-held-memory` is what each cost the router's engine and Python while it was held, and `endpoint-held-released`
the time from the table with the replica until the last answer. The server, the client and the router's Python share
this machine, and the first two this process.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from retinue.router.core.listener import Logged
from retinue.router.core.table import Revision
from tests.bench import end_politely, report
from tests.bench.inference import answer, bare_envoy, endpoint, resident_megabytes
from tests.integration.router.clients import read_answer
from tests.integration.router.running import HOST, Running, running

RATE, TURNS, SECONDS, CONNECTIONS = 1000, 10, 3.0, 32
HELD = 10_000
_LONGEST = 300.0
_REQUEST = f"GET / HTTP/1.1\r\nhost: {HOST}\r\n\r\n".encode()


class Clients:
    """Connections that are kept, of which each carries a request at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self.times: list[float] = []

    async def open(self) -> None:
        """Opens them, and warms them up."""
        for _ in range(CONNECTIONS):
            self._free.put_nowait(await asyncio.open_connection("127.0.0.1", self._port))
        await self.load(0.5)
        self.times.clear()

    async def load(self, seconds: float) -> list[float]:
        """Sends requests at the rate for so long; returns their times from when each was due, in seconds."""
        times: list[float] = []

        async def one(due: float) -> None:
            reader, writer = await self._free.get()
            writer.write(_REQUEST)
            assert (await read_answer(reader)).status == 200
            times.append(time.perf_counter() - due)
            self._free.put_nowait((reader, writer))

        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number in range(int(seconds * RATE)):
                due = began + number / RATE
                if (early := due - time.perf_counter()) > 0:
                    await asyncio.sleep(early)
                group.create_task(one(due))
        return times

    async def close(self) -> None:
        """Closes them."""
        while not self._free.empty():
            self._free.get_nowait()[1].close()


async def load(router: Running, directory: Path, port: int, turns: int) -> None:
    """Prints the lines of the steady rate."""
    async with bare_envoy(directory, port) as (peer_port, _):
        ours, theirs = Clients(router.port), Clients(peer_port)
        medians: tuple[list[float], list[float]] = ([], [])
        slowest: tuple[list[float], list[float]] = ([], [])
        for clients in (ours, theirs):
            await clients.open()
        for _ in range(turns):
            for number, clients in enumerate((ours, theirs)):
                times = [1000 * seconds for seconds in await clients.load(SECONDS)]
                medians[number].append(statistics.median(times))
                slowest[number].append(statistics.quantiles(times, n=100)[-1])
        for clients in (ours, theirs):
            await clients.close()
    report("endpoint-load-p50", statistics.median(medians[0]), "ms", statistics.median(medians[1]), spread=medians[0])
    report("endpoint-load-p99", statistics.median(slowest[0]), "ms", statistics.median(slowest[1]), spread=slowest[0])


async def held(router: Running, port: int, count: int) -> None:
    """Prints the lines of requests that wait."""
    awake = endpoint(2, port, hosts=("zero.test",))
    await router.serve(replace(awake, revisions=(Revision(1, 0),)))
    engine = router.serving.engine.pid
    assert engine is not None
    before = resident_megabytes(engine) + resident_megabytes(os.getpid())
    connected = asyncio.Semaphore(200)
    lost = 0

    async def one() -> None:
        nonlocal lost
        async with connected:
            reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
        writer.write(_REQUEST.replace(HOST.encode(), b"zero.test"))
        try:
            lost += (await read_answer(reader)).status != 200
        except (OSError, asyncio.IncompleteReadError):
            lost += 1
        writer.close()

    async with asyncio.timeout(_LONGEST):
        calls = [asyncio.create_task(one()) for _ in range(count)]
        while sum(router.serving.gate.held().values()) < count and not any(call.done() for call in calls):
            await asyncio.sleep(0.05)
        after = resident_megabytes(engine) + resident_megabytes(os.getpid())
        began = time.perf_counter()
        router.begin(awake)
        await asyncio.gather(*calls)
    report("endpoint-held-lost", lost, "requests", None)
    report("endpoint-held-memory", (after - before) * 1000 / count, "kB/request", None)
    report("endpoint-held-released", time.perf_counter() - began, "s", None)


async def main(turns: int, count: int) -> None:
    """Prints all lines."""
    # A request that is held is a connection of its own here: on both of its sides, and then to the server.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1000)
    port = server.sockets[0].getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="rt-bench-") as made:
        directory = Path(made)
        async with running(directory, logged=Logged.NONE) as router:
            await router.serve(endpoint(1, port, hosts=(HOST,)))
            await router.listening()
            await load(router, directory, port, turns)
            await held(router, port, count)
    server.close()


if __name__ == "__main__":
    end_politely()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer of everything")
    quick = parser.parse_args().quick
    asyncio.run(main(2, 500) if quick else main(TURNS, HELD))
