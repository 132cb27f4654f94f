"""A hundred open lists of the web console at 100 events a second. Run as root; lines as in `tests.bench`.

The first line has the processors that they cost the manager's process: what it takes with them, less what it takes
without, at the same events. The second is the time from an event's commit until viewers have it; peer: with one viewer.
A viewer is the websocket of a page, through the gateway, with the request that the real page sends, and reports what it
has taken as that does; viewers run in processes of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp

from retinue.devtools.cluster import Cluster
from retinue.manager.v1 import session_service_pb2
from tests.bench import end_politely, report
from tests.bench.console_page import SECONDS, events, fill, options, page_of
from tests.integration.manager.console.page import SESSIONS, Page

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from multiprocessing.queues import Queue

    from playwright.async_api import WebSocket

    from retinue.client.aio import Client

WATCH = f"{SESSIONS}/WatchSessions"
# A user has at most 64 sockets.
PROCESSES = 4
_REPORT_BYTES = 64 << 10
_CATCH_UP_SECONDS = 5.0
_TICKS = os.sysconf("SC_CLK_TCK")
_processes = multiprocessing.get_context("spawn")


async def request_of(client: Client) -> bytes:
    """Returns the request by which the page follows the list."""
    found: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def sent(message: str | bytes) -> None:
        if isinstance(message, bytes) and not found.done():
            found.set_result(message)

    def opened(socket: WebSocket) -> None:
        if socket.url.endswith("/WatchSessions"):
            socket.on("framesent", sent)

    async with page_of(client) as page, asyncio.timeout(SECONDS):
        page.on("websocket", opened)
        await page.reload()
        return await found


def view(origin: str, cookie: str, request: bytes, count: int, delays: Queue[list[float]], seconds: float) -> None:
    """Follows the list so many times for so long, and puts the delays of events at the first into the queue."""
    asyncio.run(_view(origin, cookie, request, count, delays, seconds))


async def _view(
    origin: str, cookie: str, request: bytes, count: int, delays: Queue[list[float]], seconds: float
) -> None:
    found: list[float] = []
    # Before then all comes at once that has happened since the page was loaded.
    caught_up = time.time() + _CATCH_UP_SECONDS

    async def one(*, reads: bool) -> None:
        page, taken, reported = Page(origin, cookie=cookie), 0, 0
        async with page.stream(WATCH) as stream:
            await stream.send_str("0")
            await stream.send_bytes(request)
            await stream.send_str("")
            while True:
                message = await stream.receive()
                if message.type is not aiohttp.WSMsgType.BINARY:
                    raise RuntimeError(f"a viewer's stream has ended: {message}")
                taken += len(message.data)
                if taken - reported >= _REPORT_BYTES:
                    reported = taken
                    await stream.send_str(str(taken))
                if reads:
                    now = time.time()
                    events = session_service_pb2.WatchSessionsResponse.FromString(message.data).events
                    times = [event.create_time.ToNanoseconds() / 1e9 for event in events]
                    found.extend(now - at for at in times if at > caught_up)

    viewers = [asyncio.create_task(one(reads=number == 0)) for number in range(count)]
    done, _ = await asyncio.wait(viewers, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for viewer in viewers:
        viewer.cancel()
    await asyncio.gather(*viewers, return_exceptions=True)
    for viewer in done:
        viewer.result()
    delays.put(found)


def cpu_seconds(pid: int) -> float:
    """Returns what a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


@contextlib.asynccontextmanager
async def viewing(
    origin: str, cookies: list[str], request: bytes, count: int, seconds: float
) -> AsyncIterator[list[float]]:
    """Runs viewers beside the block, and for so long; fills the delays that they saw at its end."""
    delays: list[float] = []
    queue: Queue[list[float]] = _processes.Queue()
    number = min(PROCESSES, count)
    started = [
        _processes.Process(
            target=view,
            args=(origin, cookies[at % len(cookies)], request, count // number, queue, seconds),
            daemon=True,
        )
        for at in range(number)
    ]
    for process in started:
        process.start()
    try:
        yield delays
        for _ in started:
            delays += await asyncio.to_thread(queue.get, timeout=SECONDS)
    finally:
        for process in started:
            process.kill()
            await asyncio.to_thread(process.join)


async def main(*, quick: bool) -> None:
    """Prints both lines."""
    seconds = 10.0 if quick else 30.0
    async with Cluster(options=options()) as cluster, cluster.client() as client:
        await fill(client, 200)
        request = await request_of(client)
        url = (await client.tokens.create_console_ticket()).url
        origin, cookies = url.partition("/login")[0], []
        for name in ("one", "two"):
            await client.users.create(name, role="admin")
            page = Page(origin)
            answer = await page.log_in(token=(await client.tokens.create(user=name)).secret)
            assert answer.status == 204, answer
            cookies.append(page.cookie)
        pid = cluster.manager.pid
        assert pid is not None

        async def cores() -> float:
            began, used = time.perf_counter(), cpu_seconds(pid)
            await asyncio.sleep(seconds)
            return (cpu_seconds(pid) - used) / (time.perf_counter() - began)

        costs, late, peers = [], [], []
        async with events(client):
            for _ in range(1 if quick else 3):
                alone = await cores()
                async with viewing(origin, cookies, request, 100, seconds + 10) as delays:
                    # Processes start, and catch up.
                    await asyncio.sleep(8)
                    costs.append(await cores() - alone)
                late += delays
                async with viewing(origin, cookies, request, 1, seconds / 2 + 2 * _CATCH_UP_SECONDS) as delays:
                    pass
                peers += delays
    report("console-viewers-100-cores", statistics.median(costs), "processors", None, spread=costs)
    report("console-viewers-100-delay", statistics.median(late) * 1000, "ms", statistics.median(peers) * 1000)


if __name__ == "__main__":
    end_politely()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short")
    asyncio.run(main(quick=parser.parse_args().quick))
