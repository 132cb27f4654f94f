"""A list of sessions in Debian's Chromium, and events beneath it at a steady rate: what measurements of the console
share.

The cluster is real but for its kernels, which do nothing, so that events cost the machine little: ten sessions a second
from their request to their end are about a hundred events.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from typing import TYPE_CHECKING

from playwright.async_api import Page, async_playwright

from retinue.client.spec import session_spec
from retinue.devtools.cluster import ClusterOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.aio import Client

CHROMIUM = "/usr/bin/chromium"
ROWS = 5_000
SESSIONS_PER_SECOND = 10
SECONDS = 300.0
"""After so long something counts as never."""
_SPEC = session_spec(type="batch", command=["true"], slots={"cpu": "1", "mem": "1m"})


def options() -> ClusterOptions:
    """Returns the parts of the cluster."""
    return ClusterOptions(
        agents=2,
        slots={"cpu": "100000", "mem": "1024g"},
        prefix="rt-bench-",
        agent_arguments=("--null-kernels",),
        gateway=True,
    )


async def fill(client: Client, rows: int) -> None:
    """Runs so many sessions to their end."""
    await client.sessions.create_many([_SPEC] * rows)
    async with asyncio.timeout(SECONDS):
        while [session async for session in client.sessions.list(limit=1)]:
            await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def page_of(client: Client) -> AsyncIterator[Page]:
    """Opens a browser whose page is signed in, shows the list and follows it."""
    async with async_playwright() as playwright:
        # Chromium's own sandbox is not for root; it goes to pages of this cluster only.
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            page = await browser.new_page(viewport={"width": 1280, "height": 800})
            page.set_default_timeout(SECONDS * 1000)
            await page.goto((await client.tokens.create_console_ticket()).url)
            await page.wait_for_url("**/home")
            await page.goto(page.url.replace("/home", "/sessions"))
            await page.locator("footer[data-state=live]").wait_for()
            yield page
        finally:
            await browser.close()


@contextlib.asynccontextmanager
async def events(client: Client) -> AsyncIterator[None]:
    """Makes about a hundred events a second for as long as the block lasts; says how many they were."""
    count = 0

    async def create() -> None:
        started, number = time.perf_counter(), 0
        while True:
            await client.sessions.create_many([_SPEC])
            number += 1
            await asyncio.sleep(max(0.0, started + number / SESSIONS_PER_SECOND - time.perf_counter()))

    async def watch() -> None:
        nonlocal count
        async for _ in client.sessions.watch(min_interval=1.0):
            count += 1

    tasks = [asyncio.create_task(create()), asyncio.create_task(watch())]
    began = time.perf_counter()
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        sys.stderr.write(f"{count / (time.perf_counter() - began):.0f} events/s\n")
    for end in ends:
        if isinstance(end, Exception):
            raise end
