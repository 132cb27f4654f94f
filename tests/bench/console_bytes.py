"""How large the web console is, compressed by gzip: what Home loads, where visitors arrive, and all there is. Run as
root; lines as in `tests.bench`.
"""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from retinue.devtools.cluster import Cluster
from tests.bench import end_politely, report
from tests.bench.console_page import options, page_of

if TYPE_CHECKING:
    from playwright.async_api import Page, Request

STATIC = Path(__file__).resolve().parents[2] / "manager/console/static"


async def loaded(page: Page) -> set[str]:
    """Returns the paths of what Home loads."""
    paths: set[str] = set()

    def requested(request: Request) -> None:
        paths.add(urlsplit(request.url).path)

    page.on("request", requested)
    await page.goto(page.url.partition("/sessions")[0] + "/home")
    await page.locator("footer[data-state=live]").wait_for()
    await page.wait_for_load_state("networkidle")
    return paths


def compressed() -> dict[str, int]:
    """Returns the sizes of all files by path, as gzip sends them."""
    files = [path for path in STATIC.rglob("*") if path.is_file() and path.suffix not in {".gz", ".br"}]
    return {f"/{path.relative_to(STATIC)}": len(gzip.compress(path.read_bytes(), 9)) for path in files}


async def main() -> None:
    """Prints both lines."""
    by_path = await asyncio.to_thread(compressed)
    async with Cluster(options=options()) as cluster, cluster.client() as client, page_of(client) as page:
        paths = await loaded(page)
    first = sum(size for path, size in by_path.items() if path in paths or path == "/index.html")
    report("console-bytes-first-route", first / 1000, "kB", None)
    report("console-bytes-all", sum(by_path.values()) / 1000, "kB", None)


if __name__ == "__main__":
    end_politely()
    asyncio.run(main())
