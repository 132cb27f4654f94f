"""A user beside strangers who flood the manager's port: how long its reads take; peer: the same alone, in turns. What
the strangers cost the manager: processor time for each second, and memory.

Eight strangers, each with an address of its own, in a process of their own: it opens a connection again as soon as one
has ended. Without credentials they cannot know any method's answer, so that they send what costs a server most.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import ssl
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from retinue.client.spec import session_spec
from retinue.devtools.cluster import Cluster, ClusterOptions
from tests.bench import end_politely, report
from tests.bench.console_viewers import cpu_seconds
from tests.bench.idle import memory
from tests.bench.neighbours import WAITING, share
from tests.bench.submission import child
from tests.support.floods import FLOODS
from tests.support.http2_frames import PREFACE

STRANGERS = 8
# Between two calls of the user: it is no flood itself.
PAUSE = 0.005


async def stranger(host: str, port: int, source: str, kind: str, context: ssl.SSLContext) -> None:
    """Floods by one connection after the other, until it is ended."""
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(
                host, port, ssl=context, server_hostname="manager.retinue", local_addr=(source, 0)
            )
            try:
                await asyncio.gather(_write(writer, kind), _read(reader))
            finally:
                writer.transport.abort()
        # What ends at once is tried again at once, but not in a loop that takes the machine from the others.
        await asyncio.sleep(0.01)


async def _write(writer: asyncio.StreamWriter, kind: str) -> None:
    for piece in itertools.chain([PREFACE], FLOODS[kind]()):
        writer.write(piece)
        await writer.drain()


async def _read(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 20):
        pass
    raise ConnectionResetError


async def flood(endpoint: str, ca: str, kind: str) -> None:
    """Has all strangers flood, until it is ended."""
    context = ssl.create_default_context(cafile=ca)
    context.set_alpn_protocols(["h2"])
    host, _, port = endpoint.rpartition(":")
    sources = [f"127.0.0.{number}" for number in range(2, 2 + STRANGERS)]
    await asyncio.gather(*(stranger(host, int(port), source, kind, context) for source in sources))


async def main(gets: int, rounds: int) -> None:
    """Prints all figures."""
    options = ClusterOptions(agents=1, slots={"cpu": "4", "mem": "2g"}, prefix="rt-bench-")
    async with Cluster(options=options) as cluster, cluster.client() as client:
        pid = cluster.manager.pid
        assert pid is not None
        made = await client.sessions.create_many([session_spec(type="interactive", command=["true"], slots=WAITING)])
        known = made.results[0].accepted.id

        async def measure(number: int) -> tuple[list[float], float]:
            times, began, before = [], time.perf_counter(), cpu_seconds(pid)
            for _ in range(number):
                start = time.perf_counter()
                await client.sessions.get(known)
                times.append(time.perf_counter() - start)
                await asyncio.sleep(PAUSE)
            return times, (cpu_seconds(pid) - before) / (time.perf_counter() - began)

        await measure(50)
        for kind in FLOODS:
            alone: list[float] = []
            among: list[float] = []
            shares: tuple[list[float], list[float]] = ([], [])
            most = before = memory(pid)
            for _ in range(rounds):
                for into, loud in ((alone, False), (among, True)):
                    with contextlib.ExitStack() as stack:
                        if loud:
                            arguments = (str(cluster.settings.endpoint), str(cluster.settings.ca), kind)
                            stack.enter_context(child(Path(__file__), "--flood", *arguments))
                            # It has started then, and its first connections have ended.
                            await asyncio.sleep(3)
                        times, busy = await measure(gets)
                        most = max(most, memory(pid))
                    into.extend(times)
                    shares[loud].append(busy)
            report(f"strangers-{kind}-get-p50", share(among, 0.5), "ms", share(alone, 0.5))
            report(f"strangers-{kind}-get-p99", share(among, 0.99), "ms", share(alone, 0.99))
            beyond = [loud - quiet for quiet, loud in zip(*shares, strict=True)]
            report(f"strangers-{kind}-cores", statistics.median(beyond), "cores", None, spread=beyond)
            report(f"strangers-{kind}-memory", most - before, "MB", None)


if __name__ == "__main__":
    end_politely()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gets", type=int, default=1000, help="reads in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="small, for a look")
    parser.add_argument("--flood", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.quick:
        given.gets, given.rounds = 200, 1
    if given.flood:
        asyncio.run(flood(*given.flood))
    else:
        asyncio.run(main(given.gets, given.rounds))
