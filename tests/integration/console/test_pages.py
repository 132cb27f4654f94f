"""Every page, in both themes: no violation of WCAG AA that axe finds, nothing wider than a telephone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from retinue.client.aio import Client
from retinue.client.sessions import Session
from retinue.devtools.cluster import Cluster
from tests.integration.console.conftest import Visitor, visiting

pytestmark = pytest.mark.asyncio(loop_scope="session")

AXE = (Path(__file__).parents[3] / "console/node_modules/axe-core/axe.min.js").read_text()
PAGES = {
    "sessions": "Sessions",
    "sessions/new": "New session",
    "queue": "Queue",
    "cluster": "Cluster",
    "fairness": "Fairness",
    "endpoints": "Endpoints",
    "templates": "Templates",
    "quotas": "Quotas",
    "groups": "Resource groups",
    "accounts": "Users and tokens",
    "audit": "Audit",
}
PARTS = ("overview", "logs", "terminal", "files", "apps", "code", "graph", "events", "spec")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def session(cluster: Cluster) -> AsyncIterator[Session]:
    async with cluster.client() as client:
        made = await client.sessions.create(
            type="interactive", name="shown", cluster_size=2, ports=[("web", "http", 8000)], command=["sleep", "3600"]
        )
        waiting = await client.sessions.create(type="interactive", name="waiting", slots={"cpu": 64})
        await made.wait("RUNNING")
        yield made
        await asyncio.gather(made.terminate(), waiting.terminate())


# What of them looks at colours is all that differs between themes.
STANDARDS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
COLOURS = ["color-contrast", "link-in-text-block"]


async def _violations(page: Page, rules: list[str]) -> list[str]:
    """Returns what axe finds against these standards or rules in a page and its frames of the same origin."""
    if await page.evaluate("typeof axe") == "undefined":
        await page.evaluate(AXE)
    found = await page.evaluate("rules => axe.run(document, {runOnly: rules, iframes: false})", rules)
    return [
        f"{violation['id']}: {node['html'][:200]} {node.get('failureSummary', '')[:300]}"
        for violation in found["violations"]
        for node in violation["nodes"]
    ]


async def test_axe_finds_nothing(chromium: Browser, client: Client, session: Session) -> None:
    found: dict[str, list[str]] = {}

    # The policy of the pages allows no script but their own, which axe is not.
    async with visiting(chromium, client, bypass_csp=True) as visitor:
        page = visitor.page
        origin = page.url.removesuffix("/sessions")

        async def examine(path: str) -> None:
            await page.emulate_media(color_scheme="light")
            found[f"{path} light"] = await _violations(page, STANDARDS)
            await page.emulate_media(color_scheme="dark")
            found[f"{path} dark"] = await _violations(page, COLOURS)

        for path, title in PAGES.items():
            await page.goto(f"{origin}/{path}")
            await expect(page.locator("h1")).to_have_text(title)
            await page.wait_for_load_state("networkidle")
            await examine(path)
        for part in PARTS:
            await page.goto(f"{origin}/sessions/{session.id}/{part}")
            await expect(page.get_by_role("tabpanel").first).to_be_visible()
            await page.wait_for_load_state("networkidle")
            await examine(part)
        await page.goto(f"{origin}/login")
        await expect(page.locator("h1")).to_have_text("Retinue")
        await examine("login")
    assert len(found) == 2 * (len(PAGES) + len(PARTS) + 1)
    assert {path: problems for path, problems in found.items() if problems} == {}


async def test_nothing_is_wider_than_a_telephone(chromium: Browser, client: Client, session: Session) -> None:
    async with visiting(chromium, client, viewport={"width": 390, "height": 844}) as visitor:
        page = visitor.page
        origin = page.url.removesuffix("/sessions")
        paths = [*PAGES, *(f"sessions/{session.id}/{part}" for part in PARTS)]
        wide = {}
        for path in paths:
            await page.goto(f"{origin}/{path}")
            await expect(page.locator("h1")).to_be_visible()
            await page.wait_for_load_state("networkidle")
            width = await page.evaluate("document.documentElement.scrollWidth")
            if width > 390:
                wide[path] = width
        assert wide == {}


async def test_korean_is_chosen_and_kept(newcomer: Visitor) -> None:
    page = newcomer.page
    await page.get_by_label("Language").select_option("ko")
    await expect(page.locator("h1")).to_have_text("세션")
    await page.reload()
    await expect(page.locator("h1")).to_have_text("세션")
    assert await page.evaluate("document.documentElement.lang") == "ko"


async def test_nothing_is_kept_in_the_page_and_the_cookie_is_not_its_own(newcomer: Visitor) -> None:
    page = newcomer.page
    assert await page.evaluate("Object.keys(localStorage)") == []
    assert await page.evaluate("document.cookie") == ""
    assert "ticket" not in page.url
    assert "token" not in page.url


async def test_signing_out_ends_it(newcomer: Visitor) -> None:
    page = newcomer.page
    await page.get_by_role("button", name="Sign out").click()
    await page.wait_for_url("**/login")
    await page.goto(page.url.replace("/login", "/sessions"))
    await page.wait_for_url("**/login")
    # The calls of the former page were refused, and the browser says so.
    newcomer.errors.clear()
