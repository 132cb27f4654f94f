"""What one sees first, and what leads on from there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.async_api import Browser, expect

from tests.integration.console.conftest import Visitor, visiting
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from retinue.client.aio import Client
    from retinue.devtools.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_the_first_session_is_two_clicks_away(chromium: Browser, client: Client, cluster: Cluster) -> None:
    await client.users.create("fresh", projects={"default": "member"})
    token = (await client.tokens.create(user="fresh")).secret
    async with cluster.client(token=token) as own, visiting(chromium, own) as visitor:
        page = visitor.page
        await page.goto(page.url.replace("/sessions", "/home"))
        await expect(page.get_by_text("Start your first session")).to_be_visible()
        await page.get_by_role("main").get_by_role("link", name="New session").click()
        await page.get_by_role("button", name="Launch").click()
        await expect(page.locator(".bar-top .state")).to_contain_text("Running")
        (session,) = [each async for each in own.sessions.list()]
        await page.goto(page.url.split("/sessions")[0] + "/home")
        running = page.locator("section", has=page.get_by_role("heading", name="Running sessions"))
        await expect(running.get_by_role("link", name=session.view.spec.name)).to_be_visible()
        await session.terminate()


async def test_it_says_why_a_session_waits_and_what_is_free(visitor: Visitor, client: Client) -> None:
    page = visitor.page
    session = await client.sessions.create(type="interactive", name="too-big-for-all", slots={"cpu": 64})
    explained = await eventually(session.explain, lambda found: found.reason not in {"", "QUEUED"})
    await page.goto(page.url.replace("/sessions", "/home"))
    waiting = page.locator("section", has=page.get_by_role("heading", name="Waiting, and why"))
    line = waiting.get_by_role("listitem").filter(has_text="too-big-for-all")
    # In the server's words, and no name of an enum.
    await expect(line).to_contain_text(explained.message[1:40])
    await expect(line).not_to_contain_text(explained.reason)
    free = page.locator("section", has=page.get_by_role("heading", name="Free in the cluster"))
    await expect(free.get_by_role("meter", name="cpu")).to_have_attribute("aria-valuetext", "8 of 8 free")
    await expect(page.get_by_text("2 of 2 nodes are up")).to_be_visible()
    await session.terminate()


async def test_the_palette_goes_by_keys_alone(visitor: Visitor, client: Client) -> None:
    page = visitor.page
    session = await client.sessions.create(type="batch", name="sought-after", command=["true"], hold=True)
    await expect(page.locator(f".row[data-session='{session.id}']")).to_be_visible()
    await page.keyboard.press("Control+k")
    field = page.get_by_role("combobox", name="Search or go to")
    await expect(field).to_be_focused()
    await page.keyboard.type("sought")
    await expect(page.get_by_role("option")).to_have_count(1)
    await page.keyboard.press("Enter")
    await expect(page.locator("h1")).to_have_text("sought-after")
    await page.keyboard.press("Control+k")
    await page.keyboard.type("node")
    option = page.get_by_role("option", name="Nodes")
    await expect(option).to_be_visible()
    while await option.get_attribute("data-highlighted") is None:
        await page.keyboard.press("ArrowDown")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/cluster")
    await page.keyboard.press("Control+k")
    await expect(field).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(field).to_have_count(0)
    await session.terminate()


async def test_the_palette_says_where_one_is(visitor: Visitor) -> None:
    """A combobox with a list of groups, as screen readers know them; keys move in both and leave them."""
    page = visitor.page
    opener = page.get_by_role("button", name="Search or go to")
    await opener.focus()
    await page.keyboard.press("Enter")
    field = page.get_by_role("combobox", name="Search or go to")
    await expect(field).to_be_focused()
    listed = page.get_by_role("listbox")
    await expect(field).to_have_attribute("aria-controls", str(await listed.get_attribute("id")))
    groups = listed.get_by_role("group")
    await expect(groups.first).to_have_accessible_name("Actions")
    options = listed.get_by_role("option")

    async def at(index: int) -> None:
        option = options.nth(index)
        await expect(option).to_have_attribute("data-highlighted", "")
        await expect(field).to_have_attribute("aria-activedescendant", str(await option.get_attribute("id")))

    await at(0)
    await page.keyboard.press("ArrowDown")
    await at(1)
    await page.keyboard.press("ArrowUp")
    await at(0)
    # In a field with text, Home and End are keys of the text.
    await page.keyboard.type("udit")
    await page.keyboard.press("Home")
    await page.keyboard.type("A")
    await expect(field).to_have_value("Audit")
    await page.keyboard.press("End")
    await page.keyboard.type("!")
    await expect(field).to_have_value("Audit!")
    await expect(options).to_have_count(0)
    await expect(page.get_by_text("Nothing matches.")).to_be_visible()
    await page.keyboard.press("Backspace")
    await at(0)
    await page.keyboard.press("Escape")
    await expect(field).to_have_count(0)
    await expect(opener).to_be_focused()
    await page.keyboard.press("Enter")
    await page.keyboard.type("audit")
    await at(0)
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/audit")
    await expect(field).to_have_count(0)
