"""Words on pages are whole, or can be read whole: with names as long as they may be, on small laptops."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from retinue.client.spec import session_spec
from retinue.manager.v1.template_service_pb2 import Template
from tests.integration.console.conftest import visiting
from tests.integration.console.test_pages import ENDPOINT_PARTS, PAGES, PARTS
from tests.integration.sessions.replicas import manifest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.aio import Client
    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")

LONG = "a-name-as-long-as-one-may-be-which-a-newcomer-gives-to-a-thing"
# Words of the console's own, by page: these fit, and need nothing that says them whole.
OWN_WORDS = {"sessions": r"cpu \d", "sessions/new": ""}
# Text that a box cuts off, unless it, or what it is in, says it whole when it is pointed at. What scrolls is not cut.
CUT = """excused => {
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const found = new Set();
    while (walker.nextNode()) {
        const text = walker.currentNode;
        const owner = text.parentElement;
        if (text.data.trim() === "" || !owner.checkVisibility({visibilityProperty: true, opacityProperty: true})) continue;
        if (owner.closest(`${excused}, textarea, .sr-only, [inert], [aria-hidden=true], svg`) !== null) continue;
        const range = document.createRange();
        range.selectNodeContents(text);
        const shown = range.getBoundingClientRect();
        if (shown.width < 2) continue;
        for (let box = owner; box !== document.body; box = box.parentElement) {
            const {overflowX, overflowY, position} = getComputedStyle(box);
            const edge = box.getBoundingClientRect();
            if (edge.width < 2 || edge.height < 2) break;
            if (overflowX === "auto" || overflowX === "scroll" || overflowY === "auto" || overflowY === "scroll") break;
            const hidden = [overflowX, overflowY].some(each => each === "hidden" || each === "clip");
            const inner = box.clientWidth > 0 ? {right: edge.left + box.clientLeft + box.clientWidth} : edge;
            const beyond = shown.right > inner.right + 1 || shown.left < edge.left - 1 || shown.bottom > edge.bottom + 2;
            if (hidden && beyond) {
                found.add(text.data.trim().slice(0, 60));
                break;
            }
            if (position === "fixed") break;
        }
    }
    return [...found];
}"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def paths(cluster: Cluster) -> AsyncIterator[list[str]]:
    """All pages, on which everything has a long name."""
    async with cluster.client() as client:
        await client.projects.create(LONG)
        await client.users.create(LONG, projects={LONG: "member"})
        await client.resource_groups.create(LONG)
        await client.quotas.set("user", LONG, slots={"cpu": "2", "mem": "4g"})
        spec = session_spec(type="interactive", slots={"cpu": 1})
        await client.templates.create(Template(name=LONG, description=f"{LONG} {LONG}", spec=spec))
        running = await client.sessions.create(
            type="interactive", name=LONG, cluster_size=2, ports=[(LONG[:15], "http", 8000)], labels={LONG: LONG}
        )
        waiting = await client.sessions.create(type="interactive", name=f"w{LONG[1:]}", slots={"cpu": 64})
        ended = await client.sessions.create(type="batch", name=f"e{LONG[1:]}", command=["false"])
        endpoint = await client.endpoints.create(manifest(LONG[:40].rstrip("-"), "one"))
        await running.wait("RUNNING")
        await ended.wait_ended()
        yield [
            *PAGES,
            *(f"sessions/{running.id}/{part}" for part in PARTS),
            f"sessions/{waiting.id}",
            f"sessions/{ended.id}",
            *(f"endpoints/{endpoint.id}/{part}" for part in ENDPOINT_PARTS),
        ]
        await running.terminate()
        await waiting.terminate()
        await client.endpoints.delete(endpoint.id)
        await client.templates.delete(LONG)
        await client.resource_groups.delete(LONG)
        await client.users.delete(LONG)
        await client.projects.delete(LONG)


@pytest.mark.parametrize("language", ["en", "ko"])
async def test_no_word_is_cut(chromium: Browser, client: Client, paths: list[str], language: str) -> None:
    found: dict[str, list[str]] = {}
    async with visiting(chromium, client, locale=language) as visitor:
        page = visitor.page
        origin = page.url.removesuffix("/sessions")
        for path in paths:
            await page.goto(f"{origin}/{path}")
            await expect(page.locator("h1")).to_be_visible()
            await page.wait_for_load_state("networkidle")
            for width in (1280, 1440):
                await page.set_viewport_size({"width": width, "height": 900})
                await page.evaluate(
                    "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
                )
                cut = await page.evaluate(CUT, "[title]")
                if path in OWN_WORDS:
                    own = re.compile(OWN_WORDS[path])
                    shown = [words for words in await page.evaluate(CUT, "pre") if LONG[1:9] not in words]
                    cut += [words for words in shown if own.match(words)]
                if cut:
                    found[f"{path} {width}"] = cut
        assert await page.evaluate("document.documentElement.lang") == language
    assert found == {}, "\n".join(f"{where}: {words}" for where, words in found.items())
