"""The router beside a bare Envoy with a static file, before the same server, in one run.

Each line is `name value unit peer ratio`. `inference-request` is the median time of small requests, one after the other
on a connection that is kept; `inference-cpu` the CPU time of the engine per request; both without an access log on
either side, and `-logged` with one on both, the peer's in Envoy's own format. `inference-down` is one large answer.
`inference-slow-replica` is the 99th percentile over replicas that take a request at a time, one of them three times as
long, by least request beside turns; `inference-limit` that of thirty clients at three replicas with four requests each
at most, beside HAProxy's queue, and `-most` how many a replica had at once; `inference-canary` the share of requests
that a revision with 10 % gets. The rest has no peer: memory of the engine with many endpoints, how long until one
changed replica or route is in force there, how long a killed engine refuses connections,
and how long a request that finds no replica is held beyond the replica's own start.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import tempfile
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.devtools.cluster import free_ports
from retinue.proxy.program import program
from retinue.router.core.listener import Logged
from retinue.router.core.table import Access, Algorithm, Endpoint, Replica, Revision, Routing
from tests.integration.router.backends import Backend
from tests.integration.router.clients import Load, read_answer, request
from tests.integration.router.running import HOST, Running, running, until_connected
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

REQUESTS, WARM, CHANGES, WAKES = 2000, 200, 20, 20
TURNS = 20
REPLICAS = 4
FLEET, DELAY, SLOW_REQUESTS, SLOW_CLIENTS = 12, 0.03, 1200, 12
MEGABYTES, ROUNDS = 100, 5
LIMIT, LIMIT_CLIENTS, LIMIT_REQUESTS, LIMIT_TURNS = 4, 30, 10, 10
SMALL = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers `/` with two bytes and `/large` with many."""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"GET /large "):
                writer.write(SMALL)
                continue
            writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {MEGABYTES << 20}\r\n\r\n".encode())
            for _ in range(MEGABYTES):
                writer.write(bytes(1 << 20))
                await writer.drain()
    writer.close()


def bare(port: int, to: int, log: Path | None = None, address: str = "127.0.0.1") -> dict[str, object]:
    """Returns the configuration of an Envoy that passes everything on; its access log is in a format of its own."""
    types = "type.googleapis.com/envoy.extensions.filters"
    upstream = {"socket_address": {"address": address, "port_value": to}}
    file = {"@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog", "path": str(log)}
    http = {
        "access_log": [{"name": "file", "typed_config": file}] if log else [],
        "@type": f"{types}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "bare",
        "http_filters": [{"name": "router", "typed_config": {"@type": f"{types}.http.router.v3.Router"}}],
        "route_config": {
            "virtual_hosts": [
                {"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "it"}}]}
            ]
        },
    }
    return {
        "static_resources": {
            "listeners": [
                {
                    "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
                    "filter_chains": [{"filters": [{"name": "http", "typed_config": http}]}],
                }
            ],
            "clusters": [
                {
                    "name": "it",
                    "type": "STATIC",
                    "load_assignment": {
                        "cluster_name": "it",
                        "endpoints": [{"lb_endpoints": [{"endpoint": {"address": upstream}}]}],
                    },
                }
            ],
        }
    }


@contextlib.asynccontextmanager
async def bare_envoy(
    directory: Path, to: int, log: Path | None = None, address: str = "127.0.0.1"
) -> AsyncIterator[tuple[int, int]]:
    """Runs it; the values are its port and its process."""
    port, file = free_ports()[0], directory / "bare.json"
    file.write_text(json.dumps(bare(port, to, log, address)))
    options = ("--concurrency", "1", "--disable-hot-restart", "--log-level", "error")
    process = await asyncio.create_subprocess_exec(program(), "-c", str(file), *options)
    try:
        await until_connected(port)
        yield port, process.pid
    finally:
        process.kill()
        await process.wait()


class Connection:
    """A connection that is kept."""

    def __init__(self, port: int, pid: int) -> None:
        self.port = port
        self.pid = pid
        self.times: list[float] = []
        self.cpu = 0.0

    async def open(self) -> None:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port, limit=4 << 20)

    async def fetch(self, path: str) -> float:
        began = time.perf_counter()
        self.writer.write(f"GET {path} HTTP/1.1\r\nhost: {HOST}\r\n\r\n".encode())
        await read_answer(self.reader)
        return time.perf_counter() - began

    async def measure(self, count: int) -> None:
        before = cpu_seconds(self.pid)
        for _ in range(count):
            self.times.append(await self.fetch("/"))
        self.cpu += cpu_seconds(self.pid) - before


def cpu_seconds(pid: int) -> float:
    """Returns the CPU time of a process."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def resident_megabytes(pid: int) -> float:
    """Returns the memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def line(name: str, value: float, unit: str, peer: float | None = None) -> None:
    """Prints a figure."""
    print(f"{name} {value:.3f} {unit} {'-' if peer is None else f'envoy={peer:.3f}'}", end=" ")
    print("-" if peer is None else f"{value / peer:.2f}", flush=True)


def endpoint(number: int, *ports: int, hosts: tuple[str, ...] = ()) -> Endpoint:
    """Returns an endpoint with replicas at these ports."""
    replicas = tuple(Replica(str(port), "127.0.0.1", port) for port in ports)
    return Endpoint(
        str(uuid.UUID(int=number)),
        f"e{number}",
        "p",
        hosts or (f"e{number}.test",),
        (Revision(1, 100, replicas=replicas),),
        access=Access(public=True),
    )


async def compare(router: Running, directory: Path, port: int, requests: int, *, logged: bool) -> None:
    """Measures in turns, so that whatever else the machine does concerns both."""
    log, suffix = (directory / "bare.log", "-logged") if logged else (None, "")
    async with bare_envoy(directory, port, log) as (peer_port, peer_pid):
        engine = router.serving.engine.pid
        assert engine is not None
        ours, theirs = Connection(router.port, engine), Connection(peer_port, peer_pid)
        for connection in (ours, theirs):
            await connection.open()
            for _ in range(WARM):
                await connection.fetch("/")
        for _ in range(TURNS):
            for connection in (ours, theirs):
                await connection.measure(requests // TURNS)
        times, peer_times = (1000 * statistics.median(found.times) for found in (ours, theirs))
        line(f"inference-request{suffix}", times, "ms", peer_times)
        line(f"inference-cpu{suffix}", 1e6 * ours.cpu / requests, "us", 1e6 * theirs.cpu / requests)
        if logged:
            return
        rounds = [(await ours.fetch("/large"), await theirs.fetch("/large")) for _ in range(ROUNDS)]
        rate, peer = (MEGABYTES / statistics.median(times) for times in zip(*rounds, strict=True))
        line("inference-down", rate, "MiB/s", peer)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer of everything")
    quick = parser.parse_args().quick
    requests, many = (400, 100) if quick else (REQUESTS, 1000)
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="rt-bench-") as made:
        directory = Path(made)
        first = endpoint(1, port, hosts=(HOST,))
        for logged in (Logged.NONE, Logged.ALL):
            place = directory / logged
            place.mkdir()
            async with running(place, logged=logged) as router:
                await router.serve(first)
                await router.listening()
                await compare(router, place, port, requests, logged=logged is Logged.ALL)
                if logged is Logged.ALL:
                    await balance(router)
                    await queue(router, place)
                    await share(router, 5 * requests)
                    await wake(router, first)
                    await grow(router, 10, port)
                    await kill(router, 10)
                    await grow(router, many, port)
                    await kill(router, many)
    server.close()


async def balance(router: Running) -> None:
    """Measures replicas of which one is slow."""
    delays = [3 * DELAY] + [DELAY] * (FLEET - 1)
    slowest = {}
    async with contextlib.AsyncExitStack() as stack:
        fleet = [await stack.enter_async_context(Backend(str(delay), delay, at_once=1)) for delay in delays]
        for algorithm in (Algorithm.LEAST_REQUEST, Algorithm.ROUND_ROBIN):
            found = endpoint(9_999, *(backend.port for backend in fleet), hosts=("fleet.test",))
            await router.serve(replace(found, routing=Routing(algorithm)))
            times: list[float] = []

            async def client(times: list[float] = times) -> None:
                reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
                for _ in range(SLOW_REQUESTS // SLOW_CLIENTS):
                    began = time.perf_counter()
                    writer.write(b"GET / HTTP/1.1\r\nhost: fleet.test\r\n\r\n")
                    await read_answer(reader)
                    times.append(1000 * (time.perf_counter() - began))
                writer.close()

            await asyncio.gather(*(client() for _ in range(SLOW_CLIENTS)))
            slowest[algorithm] = statistics.quantiles(times, n=100)[-1]
    line("inference-slow-replica", slowest[Algorithm.LEAST_REQUEST], "ms", slowest[Algorithm.ROUND_ROBIN])


HAPROXY = """
defaults
  mode http
  timeout connect 1s
  timeout client 60s
  timeout server 60s
  timeout queue 60s
frontend front
  bind 127.0.0.1:{port}
  default_backend fleet
backend fleet
  balance leastconn
{servers}
"""


@contextlib.asynccontextmanager
async def haproxy(directory: Path, ports: list[int]) -> AsyncIterator[int]:
    """Runs an HAProxy before servers, at most so many requests at once on each and the others in its queue;
    the value is its port.
    """
    port, file = free_ports()[0], directory / "haproxy.cfg"
    servers = "\n".join(f"  server s{to} 127.0.0.1:{to} maxconn {LIMIT}" for to in ports)
    file.write_text(HAPROXY.format(port=port, servers=servers))
    process = await asyncio.create_subprocess_exec("haproxy", "-db", "-q", "-f", str(file))
    try:
        await until_connected(port)
        yield port
    finally:
        process.kill()
        await process.wait()


async def queue(router: Running, directory: Path) -> None:
    """Measures a limit of concurrency with more clients than it lets through, in turns with HAProxy's queue."""
    times: dict[str, list[float]] = {"router": [], "haproxy": []}
    most = 0
    async with contextlib.AsyncExitStack() as stack:
        fleet = [await stack.enter_async_context(Backend(str(number), DELAY)) for number in range(3)]
        ports = [backend.port for backend in fleet]
        found = endpoint(9_997, *ports, hosts=("limit.test",))
        (revision,) = found.revisions
        await router.serve(replace(found, revisions=(replace(revision, max_concurrency=LIMIT),)))
        peer = await stack.enter_async_context(haproxy(directory, ports))
        for _ in range(LIMIT_TURNS):
            for name, port in (("router", router.port), ("haproxy", peer)):

                async def client(port: int = port, found: list[float] = times[name]) -> None:
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    for _ in range(LIMIT_REQUESTS):
                        began = time.perf_counter()
                        writer.write(b"GET / HTTP/1.1\r\nhost: limit.test\r\n\r\n")
                        assert (await read_answer(reader)).status == 200
                        found.append(1000 * (time.perf_counter() - began))
                    writer.close()

                for backend in fleet:
                    backend.most = 0
                await asyncio.gather(*(client() for _ in range(LIMIT_CLIENTS)))
                if name == "router":
                    most = max(most, *(backend.most for backend in fleet))
    line("inference-limit-most", most, "requests")
    ours, theirs = (statistics.quantiles(found, n=100)[-1] for found in times.values())
    print(f"inference-limit {ours:.1f} ms haproxy={theirs:.1f} {ours / theirs:.2f}", flush=True)


async def share(router: Running, requests: int) -> None:
    """Counts the requests of a revision with 10 %."""
    async with Backend("old") as old, Backend("new") as new:
        found = endpoint(9_998, hosts=("canary.test",))
        revisions = [
            Revision(number, percent, replicas=(Replica(str(number), "127.0.0.1", backend.port),))
            for number, percent, backend in ((1, 90, old), (2, 10, new))
        ]
        await router.serve(replace(found, revisions=tuple(revisions)))
        async with Load(router.port, "canary.test") as load:
            await load.sent_more(requests)
        assert load.lost == []
        line("inference-canary", 100 * load.by_name["new"] / sum(load.by_name.values()), "%")


async def wake(router: Running, awake: Endpoint) -> None:
    """Measures how long a held request takes from the table with a replica on."""
    times = []
    for _ in range(WAKES):
        await router.serve(replace(awake, revisions=(Revision(1, 0),)))
        call = asyncio.create_task(request(router.port, HOST))
        await eventually(router.serving.gate.held)
        began = time.perf_counter()
        router.begin(awake)
        assert (await call).status == 200
        times.append(1000 * (time.perf_counter() - began))
        await eventually(lambda: not router.serving.gate.held())
    line("inference-release", statistics.median(times), "ms")


async def grow(router: Running, many: int, port: int) -> None:
    """Measures an engine with many endpoints, and changes of one of them."""
    ports = range(port, port + REPLICAS)
    endpoints = [endpoint(number, *ports) for number in range(2, many + 2)]
    began = time.perf_counter()
    await router.serve(*endpoints)
    line(f"inference-{many}-endpoints-in-force", time.perf_counter() - began, "s")
    engine = router.serving.engine.pid
    assert engine is not None
    line(f"inference-{many}-endpoints-memory", resident_megabytes(engine), "MB")
    hosts, routes = [], []
    for turn in range(CHANGES):
        began = time.perf_counter()
        await router.serve(endpoint(2, *ports[: 2 + turn % 2]))
        hosts.append(1000 * (time.perf_counter() - began))
        began = time.perf_counter()
        await router.serve(endpoint(3, *ports, hosts=("e3.test", f"turn{turn % 2}.test")))
        routes.append(1000 * (time.perf_counter() - began))
    line(f"inference-{many}-endpoints-one-host", statistics.median(hosts), "ms")
    line(f"inference-{many}-endpoints-one-route", statistics.median(routes), "ms")


async def kill(router: Running, many: int) -> None:
    """Measures how long a killed engine serves nothing."""
    engine = router.serving.engine.pid
    assert engine is not None
    began = time.perf_counter()
    os.kill(engine, signal.SIGKILL)
    await eventually(lambda: router.serving.engine.pid not in {None, engine})
    await until_connected(router.port)
    assert (await request(router.port, HOST)).status == 200
    line(f"inference-{many}-endpoints-engine-back", time.perf_counter() - began, "s")


if __name__ == "__main__":
    asyncio.run(main())
