"""The list of the web console, in Debian's Chromium. Run as root; lines as in `tests.bench`.

* Frames of 5,000 rows that are scrolled all the while, under 100 events a second; peer: the same page without events,
  in turns.
* A change of a session, from the request until its row shows it; peer: until a watching client of Python has it, of the
  same change. Once without other events, and (`-busy`) among 100 a second.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from typing import TYPE_CHECKING

from retinue.devtools.cluster import Cluster
from tests.bench import end_politely, report
from tests.bench.console_page import ROWS, SECONDS, events, fill, options, page_of

if TYPE_CHECKING:
    from playwright.async_api import Page

    from retinue.client.aio import Client

_FRAMES = """seconds => new Promise(resolve => {
    const list = document.getElementById("session-list");
    const gaps = [];
    let last, step = 60;
    const end = performance.now() + seconds * 1000;
    const frame = now => {
        if (last !== undefined) gaps.push(now - last);
        last = now;
        const before = list.scrollTop;
        list.scrollTop += step;
        if (list.scrollTop === before) step = -step;
        if (now < end) requestAnimationFrame(frame);
        else resolve(gaps);
    };
    requestAnimationFrame(frame);
})"""
# By name, when the row was first seen with it; in the frame that shows it, before that is painted.
_OBSERVE = """id => {
    window.seen = {};
    new MutationObserver(() => {
        const name = document.querySelector(`.row[data-session='${id}'] a`)?.textContent;
        if (name !== undefined) window.seen[name] ??= (performance.timeOrigin + performance.now()) / 1000;
    }).observe(document.getElementById("session-list"), {subtree: true, childList: true, characterData: true});
}"""


async def frames(page: Page, client: Client, rounds: int, seconds: float) -> None:
    """Prints the 95th percentile of the time between two frames."""

    async def slow() -> float:
        gaps: list[float] = await page.evaluate(_FRAMES, seconds)
        return statistics.quantiles(gaps, n=20)[-1]

    await slow()
    busy, quiet = [], []
    for _ in range(rounds):
        quiet.append(await slow())
        async with events(client):
            busy.append(await slow())
    report("console-frame-p95", statistics.median(busy), "ms", statistics.median(quiet), spread=busy)


async def delays(page: Page, client: Client, name: str, rounds: int) -> None:
    """Prints how long after a request its change is on screen, and at a client."""
    session = await client.sessions.create(type="batch", command=["true"], name=f"{name}-first", hold=True)
    await page.get_by_label("Search").fill(f"id:{session.id}")
    await page.locator(f".row[data-session='{session.id}']").wait_for()
    await page.evaluate(_OBSERVE, session.id)
    known: dict[str, float] = {}

    async def watch() -> None:
        async for event in client.sessions.watch(after_revision=session.revision, incarnation=session.incarnation):
            if event.session_id == session.id and event.HasField("session_updated"):
                known.setdefault(event.session_updated.name, time.time())

    watching = asyncio.create_task(watch())
    sent: dict[str, float] = {}
    try:
        for number in range(rounds):
            new = f"{name}-{number}"
            sent[new] = time.time()
            await client.sessions.update(session.id, name=new)
            # Not in step with frames.
            await asyncio.sleep(0.35 + number % 7 / 30)
        seen: dict[str, float] = {}
        async with asyncio.timeout(SECONDS):
            while not (sent.keys() <= seen.keys() and sent.keys() <= known.keys()):
                seen = await page.evaluate("window.seen")
                await asyncio.sleep(0.1)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await session.terminate()
    shown = [(seen[new] - sent[new]) * 1000 for new in sent]
    theirs = [(known[new] - sent[new]) * 1000 for new in sent]
    report(name, statistics.median(shown), "ms", statistics.median(theirs), spread=shown)


async def main(*, quick: bool) -> None:
    """Prints all lines."""
    async with Cluster(options=options()) as cluster, cluster.client() as client:
        await fill(client, 500 if quick else ROWS)
        async with page_of(client) as page:
            await frames(page, client, 1 if quick else 7, 4 if quick else 10)
            await delays(page, client, "console-event", 20 if quick else 150)
            async with events(client):
                await delays(page, client, "console-event-busy", 20 if quick else 100)


if __name__ == "__main__":
    end_politely()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small, for a look")
    asyncio.run(main(quick=parser.parse_args().quick))
