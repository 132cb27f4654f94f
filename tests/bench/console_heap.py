"""The memory of an open list of the web console at 100 events a second, for an hour. Run as root; lines as in
`tests.bench`.

The figure is by how many percent the page's heap, after a collection, is larger at the end than once as many new
sessions have come as the page keeps: until then the listed ones make room for others.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from typing import TYPE_CHECKING

from retinue.devtools.cluster import Cluster
from tests.bench import end_politely, report
from tests.bench.console_page import ROWS, SESSIONS_PER_SECOND, events, fill, options, page_of

if TYPE_CHECKING:
    from playwright.async_api import CDPSession

_POLL_SECONDS = 60.0
_MIB = 1 << 20


async def heap(tools: CDPSession) -> float:
    """Returns bytes of what the page's scripts keep."""
    for _ in range(2):
        await tools.send("HeapProfiler.collectGarbage")
    return float((await tools.send("Runtime.getHeapUsage"))["usedSize"])


async def main(minutes: float) -> None:
    """Prints the line."""
    async with Cluster(options=options()) as cluster, cluster.client() as client:
        await fill(client, ROWS)
        async with page_of(client) as page, events(client):
            tools = await page.context.new_cdp_session(page)
            began = time.monotonic()
            await asyncio.sleep(min(ROWS / SESSIONS_PER_SECOND, minutes * 20))
            first = last = await heap(tools)
            while (left := began + minutes * 60 - time.monotonic()) > 0:
                await asyncio.sleep(min(left, _POLL_SECONDS))
                last = await heap(tools)
                sys.stderr.write(f"{(time.monotonic() - began) / 60:.0f} min: {last / _MIB:.1f} MiB\n")
    report("console-heap-growth", (last / first - 1) * 100, "%", None)
    report("console-heap", last / _MIB, "MiB", None)


if __name__ == "__main__":
    end_politely()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--quick", action="store_true", help="three minutes")
    given = parser.parse_args()
    asyncio.run(main(3.0 if given.quick else given.minutes))
