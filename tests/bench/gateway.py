"""Bytes and requests over HTTP through the gateway, beside Caddy straight before the same server.

Run as root; each line is `name value unit peer ratio`. Ours: client, Caddy, the manager, the agent, a Caddy in the kernel that serves files. The
peer: client, a Caddy that passes all on, a Caddy outside of any kernel that serves the same files. Neither has TLS towards the client.
`http-down` is one large file: ratios above 1 say that ours carries more. `http-request` is the median time of small requests, one after the other
on a connection that is kept: ratios above 1 say that ours takes longer.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

from retinue.client.errors import CallError
from retinue.client.session import Session
from retinue.devtools.cluster import Cluster, ClusterOptions
from retinue.manager.gateway.caddy import program
from tests.bench.tunnel import free_port, wait_listening

MEGABYTES, ROUNDS, REQUESTS = 100, 7, 300
PORT = 8080
UNTIL_THERE = "cd /home/work; until [ -x caddy ]; do sleep 0.1; done"


def serving_files(port: int, root: str) -> Mapping[str, Any]:
    """The configuration of a Caddy that serves the files of a directory."""
    return _server(port, {"handler": "file_server", "root": root})


def passing_on(port: int, to: int) -> Mapping[str, Any]:
    """The configuration of a Caddy that passes on to another server."""
    return _server(port, {"handler": "reverse_proxy", "upstreams": [{"dial": f"127.0.0.1:{to}"}]})


def _server(port: int, handler: Mapping[str, Any]) -> Mapping[str, Any]:
    server = {
        "listen": [f"127.0.0.1:{port}"],
        "automatic_https": {"disable": True},
        "routes": [{"handle": [handler]}],
    }
    return {
        "admin": {"disabled": True, "config": {"persist": False}},
        "logging": {"logs": {"default": {"level": "ERROR"}}},
        "apps": {"http": {"servers": {"bench": server}}},
    }


@contextmanager
def caddy(configuration: Mapping[str, Any], port: int) -> Iterator[None]:
    """A Caddy of this machine while the block lasts."""
    with subprocess.Popen([program(), "run", "--config", "-"], stdin=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(configuration))
        process.stdin.close()
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


def compare(ours: Browser, theirs: Browser, megabytes: int) -> None:
    """Measures in turns, so that whatever else the machine does concerns both."""
    for browser in (ours, theirs):
        browser.fetch("/large")
    rounds = [(ours.fetch("/large"), theirs.fetch("/large")) for _ in range(ROUNDS)]
    rates = sorted(megabytes / mine for mine, _ in rounds)
    rate, peer = statistics.median(rates), megabytes / statistics.median(theirs for _, theirs in rounds)
    print(
        f"http-down {rate:.0f} MiB/s caddy={peer:.0f} {rate / peer:.2f} min={rates[0]:.0f} max={rates[-1]:.0f}",
        flush=True,
    )
    turns = [(ours.fetch("/small"), theirs.fetch("/small")) for _ in range(REQUESTS)]
    times = sorted(1000 * mine for mine, _ in turns)
    median, peer = statistics.median(times), 1000 * statistics.median(theirs for _, theirs in turns)
    print(
        f"http-request {median:.2f} ms caddy={peer:.2f} {median / peer:.2f} min={times[0]:.2f} max={times[-1]:.2f}",
        flush=True,
    )


async def answers(session: Session) -> bool:
    """Whether the program in the kernel listens."""
    try:
        async with session.open_port("web"):
            return True
    except CallError:
        return False


async def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small file")
    megabytes = 10 if parser.parse_args().quick else MEGABYTES
    make = f"head -c {megabytes << 20} /dev/zero > large; echo small > small"
    async with Cluster(options=ClusterOptions(agents=1, gateway=True)) as cluster, cluster.client() as client:
        configuration = json.dumps(serving_files(PORT, "/home/work"))
        session = await client.sessions.create(
            type="interactive",
            command=["sh", "-c", f"{UNTIL_THERE}; {make}; echo '{configuration}' | ./caddy run --config -"],
            slots={"cpu": "1", "mem": "512m"},
            termination_grace=0,
            ports=[("web", "http", PORT)],
        )
        await session.wait("RUNNING", timeout=60)
        with ExitStack() as stack:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="rt-bench-"))
            await asyncio.to_thread(subprocess.run, ["/bin/sh", "-c", make], cwd=directory, check=True)
            files, front = free_port(), free_port()
            stack.enter_context(caddy(serving_files(files, directory), files))
            stack.enter_context(caddy(passing_on(front, files), front))
            await session.files().upload(program(), "caddy")
            async with asyncio.timeout(60):
                while not await answers(session):
                    await asyncio.sleep(0.1)
            ticket = await session.create_port_ticket("web")
            await asyncio.to_thread(compare, let_in(ticket.url), Browser(front, {}), megabytes)
        await session.terminate(force=True)
        await session.wait_ended(60)


if __name__ == "__main__":
    asyncio.run(main())
