"""Every page, in both themes: no violation of WCAG AA that axe finds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, Route, expect

from tests.integration.console.conftest import Visitor, visiting
from tests.integration.sessions.replicas import manifest, revision
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.client.aio import Client
    from retinue.client.sessions import Session
    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")

AXE = (Path(__file__).parents[3] / "console/node_modules/axe-core/axe.min.js").read_text()
PAGES = {
    "home": "Home",
    "sessions": "Sessions",
    "sessions/new": "New session",
    "queue": "Queue",
    "cluster": "Nodes",
    "fairness": "Fairness",
    "endpoints": "Endpoints",
    "endpoints/new": "New endpoint",
    "endpoints/new?from=file": "New endpoint",
    "files": "Files",
    "templates": "Templates",
    "projects": "Projects",
    "quotas": "Quotas",
    "groups": "Resource groups",
    "accounts": "Users and tokens",
    "audit": "Audit",
}
ENDPOINT_PARTS = ("overview", "revisions", "scaling", "try", "logs", "tokens", "edit")
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


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def endpoint(cluster: Cluster) -> AsyncIterator[str]:
    """The id of an endpoint whose second revision waits in its rollout."""
    async with cluster.client() as client:
        made = await client.endpoints.create(manifest("shown", "one", rollout={"canary": {"steps": [{"percent": 10}]}}))
        await eventually(lambda: client.endpoints.get("shown"), lambda found: found.endpoint.ready_replicas == 1)
        await client.endpoints.deploy("shown", revision("two"))
        yield made.id
        await client.endpoints.delete("shown")


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


async def test_axe_finds_nothing(chromium: Browser, client: Client, session: Session, endpoint: str) -> None:
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
            await examine(f"session {part}")
        for part in ENDPOINT_PARTS:
            await page.goto(f"{origin}/endpoints/{endpoint}/{part}")
            await expect(page.get_by_role("tabpanel").first).to_be_visible()
            await page.wait_for_load_state("networkidle")
            await examine(f"endpoint {part}")
        await page.goto(f"{origin}/login")
        await expect(page.locator("h1")).to_have_text("Retinue")
        await examine("login")
    assert len(found) == 2 * (len(PAGES) + len(PARTS) + len(ENDPOINT_PARTS) + 1)
    assert {path: problems for path, problems in found.items() if problems} == {}


async def test_korean_is_chosen_and_kept(newcomer: Visitor) -> None:
    page = newcomer.page
    await page.get_by_role("button", name="Account of").click()
    await page.get_by_role("menuitemradio", name="한국어").click()
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
    await page.get_by_role("button", name="Account of").click()
    await page.get_by_role("menuitem", name="Sign out").click()
    await page.wait_for_url("**/login")
    await page.goto(page.url.replace("/login", "/sessions"))
    await page.wait_for_url("**/login")
    # The calls of the former page were refused, and the browser says so.
    newcomer.errors.clear()


async def test_what_a_lost_network_did_not_bring_is_asked_for_again(newcomer: Visitor) -> None:
    page, lost = newcomer.page, set[str]()

    async def lose_once(route: Route) -> None:
        path = urlsplit(route.request.url).path
        if path in lost:
            await route.continue_()
        else:
            lost.add(path)
            await route.abort("internetdisconnected")

    await page.route("**/assets/audit-*.js", lose_once)
    await page.route("**/ListAuditRecords", lose_once)
    await page.get_by_role("navigation", name="Menu").get_by_role("link", name="Audit").click()
    await expect(page.locator("h1")).to_have_text("Audit")
    await expect(page.get_by_role("row")).not_to_have_count(0)
    await expect(page.get_by_role("alert")).to_have_count(0)
    assert len(lost) == 2
    # The browser names what it lost.
    newcomer.errors.clear()


STATIC = Path(__file__).parents[3] / "manager/console/static"


def _bytes(*paths: str) -> int:
    """Returns how many bytes gzip leaves of these files of the console."""
    return sum((STATIC / f"{path.lstrip('/')}.gz").stat().st_size for path in paths)


async def test_little_is_loaded(chromium: Browser, client: Client) -> None:
    """The first route has at most 220 kB, and all of the console 600 kB, as gzip sends them."""
    loaded: set[str] = set()
    async with visiting(chromium, client) as visitor:
        page = await visitor.context.new_page()
        page.on("request", lambda request: loaded.add(urlsplit(request.url).path))
        await page.goto(visitor.page.url.replace("/sessions", "/home"))
        await expect(page.locator("h1")).to_have_text("Home")
        await page.wait_for_load_state("networkidle")
    assets = {path for path in loaded if path.startswith("/assets/")}
    assert any(path.endswith(".css") for path in assets)
    assert _bytes(*assets) <= 220_000
    everything = [f"assets/{file.name}" for file in (STATIC / "assets").iterdir() if file.suffix in {".js", ".css"}]
    assert _bytes(*everything) <= 600_000
