"""Bytes and requests over HTTP through the gateway, beside a bare Envoy before the same program, in one run.

Run as root; each line is `name value unit peer ratio`. Ours: client, the gateway's Envoy, the node's packet filter, a
program in a kernel. The peer: client, an Envoy that passes all on, and from there the same way to the same program;
where the name says `outside`, the same program outside of any kernel, at the loopback address. None has TLS towards the
client. `http-down` is one large file: ratios above 1 say that ours carries more. `http-request` is the median time of
small requests, one after the other on a connection that is kept: ratios above 1 say that ours takes longer.
`http-cpu` is the CPU time of either engine for such a request.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import re
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from retinue.client.errors import CallError
from retinue.devtools.cluster import Cluster, ClusterOptions
from tests.bench.inference import bare_envoy, cpu_seconds
from tests.bench.tunnel import free_port, wait_listening

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from retinue.client.aio import Client
    from retinue.client.sessions import Session

MEGABYTES, ROUNDS, REQUESTS, TURNS = 100, 9, 2000, 20
PORT = 8080
# Answers `/small`, and any other path with so many MiB, which are copied by Linux:
# it is faster than all that is before it.
PROGRAM = """
import asyncio, os, sys

SMALL = b"HTTP/1.1 200 OK\\r\\ncontent-length: 6\\r\\n\\r\\nsmall\\n"
SIZE = int(sys.argv[2]) << 20
LARGE = os.fdopen(os.memfd_create("large"), "r+b")
LARGE.truncate(SIZE)

async def answer(reader, writer):
    try:
        while True:
            if (await reader.readuntil(b"\\r\\n\\r\\n")).startswith(b"GET /small "):
                writer.write(SMALL)
                continue
            writer.write(b"HTTP/1.1 200 OK\\r\\ncontent-length: %d\\r\\n\\r\\n" % SIZE)
            await asyncio.get_running_loop().sendfile(writer.transport, LARGE)
    except (ConnectionError, asyncio.IncompleteReadError):
        writer.close()

async def main():
    await (await asyncio.start_server(answer, "127.0.0.1", int(sys.argv[1]))).serve_forever()

asyncio.run(main())
"""


@contextmanager
def server(port: int, megabytes: int) -> Iterator[None]:
    """The program on this machine while the block lasts."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM, str(port), str(megabytes)]) as process:
        try:
            wait_listening(port)
            yield
        finally:
            process.terminate()


class Browser:
    """One connection that is kept, with a host name and a cookie."""

    def __init__(self, port: int, headers: Mapping[str, str]) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._headers = headers
        self._room = memoryview(bytearray(1 << 20))

    def fetch(self, path: str) -> float:
        """Seconds to receive the whole answer."""
        began = time.perf_counter()
        self._connection.request("GET", path, headers=dict(self._headers))
        answer = self._connection.getresponse()
        assert answer.status == 200, (answer.status, answer.read())
        while answer.readinto(self._room):
            pass
        return time.perf_counter() - began


def let_in(url: str) -> Browser:
    """A browser that has followed a link."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection("127.0.0.1", parts.port or 80, timeout=60)
    connection.request("GET", f"{parts.path}?{parts.query}", headers={"Host": parts.netloc})
    answer = connection.getresponse()
    assert answer.status == 303, answer.read()
    cookie = (answer.getheader("Set-Cookie") or "").partition(";")[0]
    connection.close()
    return Browser(parts.port or 80, {"Host": parts.netloc, "Cookie": cookie})


@dataclass(frozen=True, slots=True)
class Side:
    """A browser, and the process of the engine that it talks to."""

    browser: Browser
    pid: int

    def times(self) -> tuple[list[float], float]:
        """Returns the times of small requests, and the CPU time of the engine for all of them."""
        before = cpu_seconds(self.pid)
        times = [self.browser.fetch("/small") for _ in range(REQUESTS // TURNS)]
        return times, cpu_seconds(self.pid) - before


def compare(suffix: str, ours: Side, theirs: Side, megabytes: int) -> None:
    """Measures in turns, so that whatever else the machine does concerns both."""
    for side in (ours, theirs):
        side.browser.fetch("/large")
    rounds = [(ours.browser.fetch("/large"), theirs.browser.fetch("/large")) for _ in range(ROUNDS)]
    rates = sorted(megabytes / mine for mine, _ in rounds)
    rate, peer = statistics.median(rates), megabytes / statistics.median(other for _, other in rounds)
    print(
        f"http{suffix}-down {rate:.0f} MiB/s envoy={peer:.0f} {rate / peer:.2f} min={rates[0]:.0f} max={rates[-1]:.0f}",
        flush=True,
    )
    turns = [(ours.times(), theirs.times()) for _ in range(TURNS)]
    times = sorted(1000 * time for (mine, _), _ in turns for time in mine)
    median, peer = statistics.median(times), 1000 * statistics.median(time for _, (other, _) in turns for time in other)
    print(
        f"http{suffix}-request {median:.2f} ms envoy={peer:.2f} {median / peer:.2f} "
        f"min={times[0]:.2f} max={times[-1]:.2f}",
        flush=True,
    )
    cpu, peer = (1e6 * sum(side[1] for side in sides) / REQUESTS for sides in zip(*turns, strict=True))
    print(f"http{suffix}-cpu {cpu:.0f} us envoy={peer:.0f} {cpu / peer:.2f}", flush=True)


def leased_port(cluster: Cluster) -> tuple[str, int]:
    """Returns where the gateway reaches the program, as the manager's log says."""
    log = (cluster.directory / "logs" / "manager.log").read_text(errors="replace")
    address, port = re.findall(rf"browsers reach port {PORT} of \S+ at ([0-9.]+):([0-9]+)", log)[-1]
    return address, int(port)


def engine_of(manager: int) -> int:
    """Returns the process of a manager's gateway."""
    (found,) = (
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit()
        and (entry / "cmdline").read_bytes().startswith(b"envoy\0")
        and int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == manager
    )
    return found


async def answers(session: Session) -> bool:
    """Whether the program in the kernel listens."""
    try:
        async with session.open_port("web"):
            return True
    except CallError:
        return False


@contextlib.asynccontextmanager
async def serving(client: Client, megabytes: int) -> AsyncIterator[Session]:
    """A session with the program, once it listens."""
    session = await client.sessions.create(
        type="interactive",
        command=["python3", "-c", PROGRAM, str(PORT), str(megabytes)],
        slots={"cpu": "1", "mem": "512m"},
        termination_grace=0,
        ports=[("web", "http", PORT)],
    )
    try:
        await session.wait("RUNNING", timeout=60)
        async with asyncio.timeout(60):
            while not await answers(session):
                await asyncio.sleep(0.1)
        yield session
    finally:
        await session.terminate(force=True)
        await session.wait_ended(60)


async def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small file")
    megabytes = 10 if parser.parse_args().quick else MEGABYTES
    async with (
        Cluster(options=ClusterOptions(agents=1, gateway=True)) as cluster,
        cluster.client() as client,
        serving(client, megabytes) as session,
        contextlib.AsyncExitStack() as stack,
    ):
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rt-bench-")))
        ticket = await session.create_port_ticket("web")
        browser = await asyncio.to_thread(let_in, ticket.url)
        await asyncio.to_thread(browser.fetch, "/small")
        assert cluster.manager.pid is not None
        ours = Side(browser, engine_of(cluster.manager.pid))
        port = free_port()
        stack.enter_context(server(port, megabytes))
        for suffix, place in (("", leased_port(cluster)), ("-outside", ("127.0.0.1", port))):
            made = directory / f"peer{suffix}"
            made.mkdir()
            async with bare_envoy(made, place[1], address=place[0]) as (front, pid):
                await asyncio.to_thread(compare, suffix, ours, Side(Browser(front, {}), pid), megabytes)


if __name__ == "__main__":
    asyncio.run(main())
