"""Every page, in both themes: no violation of WCAG AA that axe finds, nothing wider than a telephone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from retinue.client.aio import Client
from retinue.client.session import Session
from retinue.devtools.cluster import Cluster
from tests.integration.console.conftest import MILLISECONDS, Visitor, visiting

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


async def _violations(page: Page) -> list[str]:
    """Returns what axe finds against WCAG 2 A and AA in a page and its frames of the same origin."""
    await page.evaluate(AXE)
    found = await page.evaluate(
        "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'], iframes: false})"
    )
    return [
        f"{violation['id']}: {node['html'][:200]} {node.get('failureSummary', '')[:300]}"
        for violation in found["violations"]
        for node in violation["nodes"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_nothing(chromium: Browser, client: Client, session: Session, scheme: str) -> None:
    # The policy of the pages allows no script but their own, which axe is not.
    async with visiting(chromium, client, bypass_csp=True, color_scheme=scheme) as visitor:
        page = visitor.page
        origin = page.url.removesuffix("/sessions")
        found = {}
        for path, title in PAGES.items():
            await page.goto(f"{origin}/{path}")
            await expect(page.locator("h1")).to_have_text(title, timeout=MILLISECONDS)
            await page.wait_for_load_state("networkidle")
            found[path] = await _violations(page)
        for part in PARTS:
            await page.goto(f"{origin}/sessions/{session.id}/{part}")
            await expect(page.get_by_role("tabpanel").first).to_be_visible(timeout=MILLISECONDS)
            await page.wait_for_load_state("networkidle")
            found[part] = await _violations(page)
        await page.goto(f"{origin}/login")
        await expect(page.locator("h1")).to_have_text("Retinue", timeout=MILLISECONDS)
        found["login"] = await _violations(page)
        assert {path: problems for path, problems in found.items() if problems} == {}


async def test_nothing_is_wider_than_a_telephone(chromium: Browser, client: Client, session: Session) -> None:
    async with visiting(chromium, client, viewport={"width": 390, "height": 844}) as visitor:
        page = visitor.page
        origin = page.url.removesuffix("/sessions")
        paths = [*PAGES, *(f"sessions/{session.id}/{part}" for part in PARTS)]
        wide = {}
        for path in paths:
            await page.goto(f"{origin}/{path}")
            await expect(page.locator("h1")).to_be_visible(timeout=MILLISECONDS)
            await page.wait_for_load_state("networkidle")
            width = await page.evaluate("document.documentElement.scrollWidth")
            if width > 390:
                wide[path] = width
        assert wide == {}


async def test_korean_is_chosen_and_kept(visitor: Visitor) -> None:
    page = visitor.page
    await page.get_by_label("Language").select_option("ko")
    await expect(page.locator("h1")).to_have_text("세션", timeout=MILLISECONDS)
    await page.reload()
    await expect(page.locator("h1")).to_have_text("세션", timeout=MILLISECONDS)
    assert await page.evaluate("document.documentElement.lang") == "ko"


async def test_nothing_is_kept_in_the_page_and_the_cookie_is_not_its_own(visitor: Visitor) -> None:
    page = visitor.page
    assert await page.evaluate("Object.keys(localStorage)") == []
    assert await page.evaluate("document.cookie") == ""
    assert "ticket" not in page.url
    assert "token" not in page.url


async def test_signing_out_ends_it(visitor: Visitor) -> None:
    page = visitor.page
    await page.get_by_role("button", name="Sign out").click()
    await page.wait_for_url("**/login")
    await page.goto(page.url.replace("/login", "/sessions"))
    await page.wait_for_url("**/login")
    # The calls of the former page were refused, and the browser says so.
    visitor.errors.clear()
