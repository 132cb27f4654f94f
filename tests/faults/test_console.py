"""What browsers' sockets go through is killed under them: nothing of them stays, and the list is as the server's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest
import pytest_asyncio

from retinue.client.errors import Unavailable
from retinue.manager.console.core.limits import MAX_SOCKETS
from retinue.manager.v1 import kernel_service_pb2, session_pb2
from retinue.manager.v1 import session_service_pb2 as pb
from retinue.manager.v1.journal_position_pb2 import JournalPosition
from retinue.types.v1 import terminal_pb2
from tests.integration.manager.console.page import SESSIONS, Page, stalled
from tests.integration.sessions.http_sessions import engines
from tests.support.eventually import NEVER, eventually
from tests.support.postmaster import kill_database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.aio import Client
    from retinue.client.sessions import Session
    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")

ATTACH, WATCH = "/rpc/retinue.manager.v1.KernelService/Attach", f"{SESSIONS}/WatchSessions"
# How long a program sleeps that is looked for by that: no other one of this machine does.
MARK = str(10**9 + secrets.randbelow(10**9)).encode()
BROKEN = (aiohttp.ClientError, ConnectionError)


async def logged_in(client: Client) -> Page:
    link = await client.tokens.create_console_ticket()
    page = Page(link.origin.rstrip("/"))
    assert (await page.log_in(ticket=link.url.partition("#ticket=")[2])).status == 204
    return page


@pytest_asyncio.fixture(loop_scope="session")
async def page(client: Client) -> Page:
    return await logged_in(client)


@pytest_asyncio.fixture(loop_scope="session")
async def session(client: Client) -> AsyncIterator[Session]:
    session = await client.sessions.create(
        type="interactive", command=["sleep", "1000"], slots={"cpu": "0.5", "mem": "128m"}, termination_grace=0
    )
    await session.wait("RUNNING", timeout=NEVER)
    yield session
    await session.terminate(force=True)
    await session.wait_ended(NEVER)


def programs() -> list[str]:
    """Processes of this machine that terminals run."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "cmdline").read_bytes() == b"sleep\0" + MARK + b"\0":
                found.append(entry.name)
    return found


def descriptors(cluster: Cluster) -> int:
    """How many the manager has open."""
    return len(os.listdir(f"/proc/{cluster.manager.pid}/fd"))


async def watching(stack: contextlib.AsyncExitStack, page: Page) -> aiohttp.ClientWebSocketResponse:
    stream = await stack.enter_async_context(page.stream(WATCH))
    await stream.send_bytes(b"")
    await stream.receive_bytes(timeout=NEVER)
    return stream


async def all_open(
    stack: contextlib.AsyncExitStack, page: Page, session: Session
) -> list[aiohttp.ClientWebSocketResponse]:
    """As many sockets as a user may have; one is a terminal."""
    terminal = await stack.enter_async_context(page.stream(ATTACH))
    spec = terminal_pb2.CommandSpec(command=["sleep", MARK.decode()])
    start = kernel_service_pb2.AttachStart(session=session.id, spec=spec)
    await terminal.send_bytes(kernel_service_pb2.AttachRequest(start=start).SerializeToString())
    await terminal.receive_bytes(timeout=NEVER)
    await eventually(lambda: asyncio.to_thread(programs))
    return [terminal, *[await watching(stack, page) for _ in range(MAX_SOCKETS - 1)]]


async def cut(streams: list[aiohttp.ClientWebSocketResponse]) -> None:
    """Waits until all have ended, in whatever way."""
    async with asyncio.timeout(NEVER):
        for stream in streams:
            while not stream.closed:
                await stream.receive()


async def opened_again(page: Page, session: Session) -> None:
    """All sockets are free again, and good."""

    async def look() -> bool:
        async with contextlib.AsyncExitStack() as stack:
            await all_open(stack, page, session)
        return True

    await eventually(look, ignoring=(*BROKEN, TypeError))
    await eventually(lambda: asyncio.to_thread(programs), lambda found: not found)


async def test_a_killed_engine_leaves_nothing_open(cluster: Cluster, session: Session, page: Page) -> None:
    # Sockets of the tests before may still be closing.
    before = await stalled(page, lambda: descriptors(cluster))
    async with contextlib.AsyncExitStack() as stack:
        streams = await all_open(stack, page, session)
        await eventually(lambda: descriptors(cluster), lambda found: found > before + MAX_SOCKETS)
        [engine] = engines(cluster)
        os.kill(engine, signal.SIGKILL)
        await cut(streams)
    await eventually(lambda: asyncio.to_thread(programs), lambda found: not found)
    await opened_again(page, session)
    await eventually(lambda: descriptors(cluster), lambda found: found <= before + MAX_SOCKETS // 2)


async def test_a_killed_manager_keeps_log_ins(cluster: Cluster, session: Session, page: Page) -> None:
    async with contextlib.AsyncExitStack() as stack:
        streams = await all_open(stack, page, session)
        await cluster.manager.kill()
        await cut(streams)
    await eventually(lambda: asyncio.to_thread(programs), lambda found: not found)
    await cluster.start_manager()
    await opened_again(page, session)
    assert await page.status() == "0"


class Watcher:
    """A page's list: it resumes over breaks, after the last revision that it has seen."""

    def __init__(self, page: Page, after: int) -> None:
        self._page = page
        self.after = after
        self.events: list[session_pb2.SessionEvent] = []

    async def run(self) -> None:
        while True:
            with contextlib.suppress(*BROKEN, TypeError):
                async with self._page.stream(WATCH) as stream:
                    request = pb.WatchSessionsRequest(after=JournalPosition(revision=self.after))
                    await stream.send_bytes(request.SerializeToString())
                    while True:
                        response = pb.WatchSessionsResponse.FromString(await stream.receive_bytes())
                        self.events += response.events
                        self.after = response.position.revision
            await asyncio.sleep(0.2)


@pytest.mark.parametrize("killed", ["engine", "manager"])
async def test_a_resumed_watch_misses_and_repeats_nothing(
    cluster: Cluster, client: Client, page: Page, killed: str
) -> None:
    made = [await client.sessions.create(type="batch", command=["true"], slots={"cpu": "64"})]
    assert made[0].revision is not None
    watcher = Watcher(page, made[0].revision - 1)
    running = asyncio.create_task(watcher.run())
    try:
        await eventually(lambda: watcher.events)
        for number in range(10):
            if number == 5 and killed == "engine":
                os.kill(engines(cluster)[0], signal.SIGKILL)
            elif number == 5:
                await cluster.manager.kill()
                await cluster.start_manager()
            made.append(await client.sessions.create(type="batch", command=["true"], slots={"cpu": "64"}))
        for session in made:
            await session.terminate()
            await session.wait_ended(NEVER)
        last = (await client.sessions.history(made[-1].id))[-1].revision
        await eventually(lambda: watcher.after >= last)
    finally:
        running.cancel()
        await asyncio.wait([running])
    revisions = [event.revision for event in watcher.events]
    assert revisions == sorted(set(revisions))
    ids = {session.id for session in made}
    expected = {event.revision for one in ids for event in await client.sessions.history(one)}
    assert {event.revision for event in watcher.events if event.session_id in ids} == expected


async def test_a_killed_database_is_an_outage_and_no_more(
    cluster: Cluster, client: Client, session: Session, page: Page
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        streams = await all_open(stack, page, session)
        await kill_database(cluster)
        # Answered or refused, and never without an answer.
        answer = await page.log_in(token="rtn_" + 43 * "A")
        assert answer.status in {401, 503}
        await eventually(client.tokens.create_console_ticket, ignoring=Unavailable)
        # The program in the terminal has not noticed.
        assert not streams[0].closed
        assert await asyncio.to_thread(programs)
    await eventually(lambda: asyncio.to_thread(programs), lambda found: not found)
    await opened_again(page, session)
