"""The console as browsers see it: Debian's Chromium before a real manager with two agents."""

from __future__ import annotations

import os
import tempfile
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, WebError, async_playwright, expect

from retinue.devtools import state
from retinue.devtools.cluster import DIRECTORIES, Cluster, ClusterOptions
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from retinue.client.aio import Client

STATIC = Path(__file__).parents[3] / "manager/console/static"
CHROMIUM = "/usr/bin/chromium"
expect.set_options(timeout=1000 * NEVER)


@pytest.fixture(scope="session")
def directory() -> Iterator[Path]:
    """A directory that the database's user can reach; what a cluster left in it goes with it."""
    DIRECTORIES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="test-console-", dir=DIRECTORIES) as made:
        yield Path(made)
        state.clear(Path(made))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def cluster(directory: Path) -> AsyncIterator[Cluster]:
    assert (STATIC / "index.html").is_file(), "run make console"
    async with Cluster(directory, ClusterOptions(agents=2, prefix="rt-test-", gateway=True)) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    async with cluster.client() as made:
        yield made


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        # Chromium's own sandbox is not for root, who runs these tests; it goes to pages of the test's own only.
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=1000 * NEVER
        )
        try:
            yield browser
        finally:
            await browser.close()


@dataclass(slots=True)
class Visitor:
    """Someone at a browser, who is signed in. What pages report is kept: a test that ends well has none."""

    browser: Browser
    context: BrowserContext
    page: Page
    errors: list[str]

    async def terminal_text(self) -> str:
        """Returns what the terminal of the page shows, line by line."""
        frame = next(frame for frame in self.page.frames if "/terminal/" in frame.url)
        return str(
            await frame.evaluate(
                """() => {
                    const shown = terminal.buffer.active;
                    return Array.from({length: shown.length}, (_, i) => shown.getLine(i).translateToString(true)).join("\\n");
                }"""
            )
        )


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Where pictures of pages go: the documentation's, with `make pictures`."""
    return Path(os.environ.get("RETINUE_PICTURES", tmp_path))


async def link(client: Client) -> str:
    """Returns a link that signs in once."""
    return (await client.tokens.create_console_ticket()).url


@asynccontextmanager
async def _watched(context: BrowserContext) -> AsyncIterator[list[str]]:
    """Keeps what pages report; fails when one threw, or broke its policy."""
    errors: list[str] = []

    def said(message: ConsoleMessage) -> None:
        # Programs of sessions have pages of their own; and a manager that a test takes away is missed. Interfaces
        # that other tests make are another network to the browser, which then ends what is under way.
        ours = "//console." in message.location["url"]
        missed = any(part in message.text for part in ("ERR_CONNECTION", "ERR_NETWORK_CHANGED", "502"))
        if message.type == "error" and ours and not missed:
            errors.append(message.text)

    def thrown(error: WebError) -> None:
        errors.append(str(error.error))

    context.on("console", said)
    context.on("weberror", thrown)
    try:
        yield errors
        assert errors == []
    finally:
        context.remove_listener("console", said)
        context.remove_listener("weberror", thrown)


@asynccontextmanager
async def _profile(chromium: Browser, **options: Any) -> AsyncIterator[BrowserContext]:
    """A browser's profile of its own."""
    context = await chromium.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
    context.set_default_timeout(1000 * NEVER)
    try:
        yield context
    finally:
        await context.close()


async def _sign_in(context: BrowserContext, client: Client) -> Page:
    page = await context.new_page()
    await page.goto(await link(client))
    await page.wait_for_url("**/home")
    await page.goto(page.url.replace("/home", "/sessions"))
    await page.locator("footer[data-state=live]").wait_for()
    return page


async def choose(page: Page, label: str, option: str) -> None:
    """Picks an option of the select that has this label."""
    await page.get_by_label(label, exact=True).click()
    await page.get_by_role("option", name=option, exact=True).click()


@asynccontextmanager
async def visiting(chromium: Browser, client: Client, **options: Any) -> AsyncIterator[Visitor]:
    """Signs in by a link, in a browser's profile of its own; fails when a page threw, or broke its policy."""
    async with _profile(chromium, **options) as context, _watched(context) as errors:
        yield Visitor(chromium, context, await _sign_in(context, client), errors)


@dataclass(frozen=True, slots=True)
class SignedIn:
    """A browser's profile that is signed in, and where the list is."""

    context: BrowserContext
    url: str


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def signed_in(chromium: Browser, cluster: Cluster) -> AsyncIterator[SignedIn]:
    async with cluster.client() as client, _profile(chromium) as context:
        page = await _sign_in(context, client)
        made = SignedIn(context, page.url)
        await page.close()
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def visitor(chromium: Browser, signed_in: SignedIn) -> AsyncIterator[Visitor]:
    """Someone who was signed in before, at the list; tests leave the profile as it was."""
    context = signed_in.context
    async with _watched(context) as errors:
        page = await context.new_page()
        try:
            await page.goto(signed_in.url)
            await page.locator("footer[data-state=live]").wait_for()
            yield Visitor(chromium, context, page, errors)
        finally:
            for opened in context.pages:
                await opened.close()


@pytest_asyncio.fixture(loop_scope="session")
async def newcomer(chromium: Browser, client: Client) -> AsyncIterator[Visitor]:
    """Someone who has just signed in, with a profile of their own."""
    async with visiting(chromium, client) as made:
        yield made
