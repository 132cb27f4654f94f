"""Pictures of every page, in both themes and on three screens, beside those that are stored: a broken layout fails,
and so does what is wider than its screen.

`make pictures` stores them anew, when pages are to look otherwise.
"""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from retinue.devtools.cluster import Cluster, ClusterOptions
from tests.integration.console.conftest import visiting
from tests.integration.console.test_pages import ENDPOINT_PARTS, PAGES, PARTS
from tests.integration.sessions.replicas import manifest, revision
from tests.support.eventually import eventually
from tests.support.pictures import TOLERANCE, difference, load, reduced

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.aio import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")

STORED = Path(__file__).parents[2] / "pictures"
SCREENS = {390: 844, 1440: 900, 2560: 1440}
# They draw what was measured and when things happened, which is never the same: only what is grossly broken shows.
MEASURED = {
    "fairness": 0.05,
    "session-overview": 0.1,
    "session-events": 0.15,
    "endpoint-overview": 0.1,
    "endpoint-scaling": 0.1,
}
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(tmp_path_factory: pytest.TempPathFactory, directory: Path) -> AsyncIterator[Cluster]:
    """A cluster that no other test puts anything into."""
    made = Cluster(directory / "pictures", ClusterOptions(agents=2, prefix="rt-test-", gateway=True, router=True))
    (directory / "pictures").mkdir()
    async with made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def places(cluster: Cluster) -> AsyncIterator[dict[str, dict[str, str]]]:
    """Pages by their kind and the names of their pictures: each has something on it."""
    async with cluster.client() as client, AsyncExitStack() as stack:
        yield await _fill(client, stack)


async def _fill(client: Client, stack: AsyncExitStack) -> dict[str, dict[str, str]]:
    shown = await client.sessions.create(
        type="interactive", name="shown", cluster_size=2, ports=[("web", "http", 8000)], command=["sleep", "3600"]
    )
    stack.push_async_callback(shown.terminate)
    await shown.wait("RUNNING")
    for name, command in {"succeeded": "true", "failed": "false"}.items():
        ended = await client.sessions.create(type="batch", name=name, command=[command])
        await ended.wait_ended()
    waiting = await client.sessions.create(type="interactive", name="waiting", slots={"cpu": 64})
    stack.push_async_callback(waiting.terminate)
    served = await _serve(client)
    stack.push_async_callback(client.endpoints.delete, "served")
    return {
        "page": {path.replace("/", "-").replace("?from=", "-"): f"/{path}" for path in PAGES},
        "session": {f"session-{part}": f"/sessions/{shown.id}/{part}" for part in PARTS},
        "endpoint": {f"endpoint-{part}": f"/endpoints/{served}/{part}" for part in ENDPOINT_PARTS},
    }


async def _serve(client: Client) -> str:
    """Returns the id of an endpoint whose second revision has a tenth of the requests, and waits for a person."""
    steps = {"canary": {"steps": [{"percent": 10}, {"percent": 50}]}}
    made = await client.endpoints.create(manifest("served", "one", rollout=steps))
    await eventually(lambda: client.endpoints.get("served"), lambda found: found.endpoint.ready_replicas == 1)
    await client.endpoints.deploy("served", revision("two"))
    await eventually(
        lambda: client.endpoints.get("served"),
        lambda found: {share.revision: share.percent for share in found.endpoint.traffic} == {1: 90, 2: 10},
    )
    return made.id


async def _still(page: Page) -> None:
    """Waits until what the size changes is drawn."""
    await page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done, 250)))")


@pytest.mark.parametrize("kind", ["page", "session", "endpoint"])
async def test_pages_look_as_they_are_stored(
    chromium: Browser, cluster: Cluster, places: dict[str, dict[str, str]], tmp_path: Path, kind: str
) -> None:
    keep = "RETINUE_PICTURES" in os.environ
    differing, wide = {}, {}
    async with cluster.client() as client, visiting(chromium, client, reduced_motion="reduce") as visitor:
        page = visitor.page
        origin = page.url.removesuffix("/sessions")
        for name, path in places[kind].items():
            await page.goto(origin + path)
            await expect(page.locator("h1")).to_be_visible()
            await page.wait_for_load_state("networkidle")
            await expect(page.get_by_role("status").filter(has_text="Loading")).to_have_count(0)
            if name == "session-terminal":
                await expect(page.frame_locator("iframe.terminal").locator("#status")).to_contain_text("connected")
            for theme in THEMES:
                await page.emulate_media(color_scheme=theme)
                for width, height in SCREENS.items():
                    await page.set_viewport_size({"width": width, "height": height})
                    await _still(page)
                    if (shown := await page.evaluate("document.documentElement.scrollWidth")) > width:
                        wide[name, width] = shown
                    # Lines come all the time.
                    masked = [page.get_by_role("log")] if name == "endpoint-logs" else []
                    taken = await page.screenshot(caret="hide", animations="disabled", mask=masked)
                    picture, file = reduced(taken), f"{name}-{width}-{theme}.png"
                    if keep:
                        STORED.mkdir(exist_ok=True)
                        picture.save(STORED / file, optimize=True)
                        continue
                    stored = load(STORED / file)
                    share = 1.0 if stored is None else difference(picture, stored)
                    if share > MEASURED.get(name, TOLERANCE):
                        (tmp_path / file).write_bytes(taken)
                        differing[file] = round(share, 4)
    assert wide == {}
    assert differing == {}, f"what was seen is in {tmp_path}"
